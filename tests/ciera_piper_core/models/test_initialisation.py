"""Tests of first weights: their distribution, and that every part of a model gets what the whole one has there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import DeviceMesh, distribute_tensor

from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.initialisation import draw, initialise
from ciera_piper_core.models.transformer import Transformer
from ciera_piper_core.moe.grouped import Experts as Stack
from ciera_piper_core.training.recipe import Routing
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

ATTENTION = Attention(4, 2, 8, 8)
ARCHITECTURE = Architecture(
    "three", 32, 64, (Layer(ATTENTION, dense=FeedForward(48)), Layer(ATTENTION, Experts(6, 2, 24))) * 2
)


def made(dtype: torch.dtype = torch.float32, seed: int = 4) -> Transformer:
    model = Transformer(ARCHITECTURE, dtype=dtype, routing=Routing("loss_free"))
    initialise(model, seed)
    return model


def test_matrices_are_normal_by_their_inputs_and_norms_are_1() -> None:
    for name, weight in made().named_parameters():
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight)), name
        else:
            assert weight.std().item() == pytest.approx(weight.shape[-1] ** -0.5, rel=0.1), name
            assert abs(weight.mean().item()) < 4 / (weight.numel() * weight.shape[-1]) ** 0.5, name


def test_no_two_matrices_are_alike_and_a_seed_makes_them() -> None:
    model, again, other = made(), made(), made(seed=5)
    firsts = set()
    for (name, weight), same, different in zip(
        model.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, same), name
        if weight.dim() > 1:
            assert not torch.equal(weight, different), name
            firsts |= {row.flatten()[0].item() for row in (weight if weight.dim() == 3 else [weight])}
    matrices = sum(len(weight) if weight.dim() == 3 else 1 for weight in model.parameters() if weight.dim() > 1)
    assert len(firsts) == matrices


def test_a_narrower_type_is_the_same_numbers_rounded() -> None:
    for precise, rounded in zip(made().parameters(), made(torch.bfloat16).parameters(), strict=True):
        assert torch.equal(precise.to(torch.bfloat16), rounded)


def test_a_stage_gets_its_part_of_the_whole() -> None:
    whole, stage = dict(made().named_parameters()), Transformer(ARCHITECTURE, dtype=torch.float32)
    del stage.layers["0"], stage.layers["2"]
    stage.embedding = stage.norm = stage.output = None
    initialise(stage, 4)
    assert {name.split(".")[1] for name, _ in stage.named_parameters()} == {"1", "3"}
    for name, weight in stage.named_parameters():
        assert torch.equal(weight, whole[name]), name


def test_a_shard_gets_its_experts_also_under_another_name() -> None:
    whole = dict(made().named_parameters())
    shard = Transformer(ARCHITECTURE, dtype=torch.float32)
    held = {"1": [5, 2], "3": [0, 1, 4]}
    for number, experts in held.items():
        routed = shard.layers[number].routed_experts
        routed.experts = Stack(len(experts), 32, 24, dtype=torch.float32)
    wrapped = torch.nn.ModuleDict({"inner": shard})
    initialise(
        wrapped,
        4,
        name_of=lambda name: name.removeprefix("inner."),
        experts_of=lambda name: held[name.split(".")[1]],
    )
    for name, weight in shard.named_parameters():
        experts = held.get(name.split(".")[1]) if ".experts." in name else None
        assert torch.equal(weight, whole[name] if experts is None else whole[name][experts]), name


def test_what_is_drawn_by_hand_is_what_the_model_has() -> None:
    model = dict(made().named_parameters())
    name = "layers.1.attention.weights.qkv"
    assert torch.equal(draw(4, name, tuple(model[name].shape)), model[name])
    name = "layers.3.routed_experts.experts.down"
    assert torch.equal(draw(4, name, (32, 24), expert=3), model[name][3])


def test_biases_of_routers_begin_at_0() -> None:
    model = made()
    router = model.layers["1"].routed_experts.router
    router.bias.fill_(3)
    initialise(model, 4)
    assert torch.count_nonzero(router.bias) == 0


def test_a_wrong_number_of_experts_and_a_sharded_parameter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layers.1.routed_experts.experts.up holds 6 experts, not the 2"):
        initialise(Transformer(ARCHITECTURE, dtype=torch.float32), 4, experts_of=lambda name: [0, 1])

    def body(context: object) -> None:
        mesh = DeviceMesh("cpu", torch.arange(2))
        part = torch.nn.Module()
        part.weight = torch.nn.Parameter(distribute_tensor(torch.empty(4, 4), mesh))
        with pytest.raises(ValueError, match="weight is sharded already: initialise before sharding"):
            initialise(part, 4)

    run_world(2, body, tmp_path)
