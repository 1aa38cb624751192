"""Tests of masters: they are the unrounded weights, sum gradients in float32, and their state can move and be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.optimizer import MasterWeights
from tests.ciera_piper_core.training.small_recipe import small_recipe

if TYPE_CHECKING:
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.training.recipe import Recipe

UP = "layers.1.routed_experts.experts.up"


def make(**settings: str) -> tuple[Transformer, MasterWeights]:
    recipe: Recipe = small_recipe(**settings)
    model = build_model(recipe)
    return model, MasterWeights(model, recipe)


def fill_gradients(weights: MasterWeights, seed: int) -> None:
    for name, weight in weights.working.items():
        generator = torch.Generator().manual_seed(seed + len(name))
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)


def test_single_precision_needs_no_copy() -> None:
    model, weights = make()
    assert all(weights.masters[name] is weight for name, weight in model.named_parameters())
    fill_gradients(weights, 0)
    weights.working["norm.weight"].grad = None
    weights.collect_gradients()
    assert torch.count_nonzero(weights.gradients()["norm.weight"]) == 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_masters_are_the_first_weights_unrounded(precision: str) -> None:
    precise = dict(build_model(small_recipe()).named_parameters())
    model, weights = make(precision=precision)
    for name, weight in model.named_parameters():
        assert weight.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        assert torch.equal(weights.masters[name], precise[name])
        assert torch.equal(weight, precise[name].to(weight.dtype))
    with pytest.raises(ValueError, match=r"embedding.weight is torch.bfloat16; masters are made from float32"):
        MasterWeights(model.to(torch.bfloat16), small_recipe())


def test_gradients_of_microbatches_are_summed_in_float32() -> None:
    _, weights = make(precision="bf16")
    one = weights.working["norm.weight"]
    for value in (256.0, 1.0, 1.0):
        one.grad = torch.full_like(one, value)
        weights.collect_gradients()
        assert one.grad is None
    assert weights.gradients()["norm.weight"][0] == 258, "in bfloat16 it would stay 256"


@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_steps_smaller_than_a_rounding_add_up(optimizer: str) -> None:
    model, weights = make(precision="bf16", optimizer=optimizer)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for _ in range(12):
        fill_gradients(weights, 5)
        weights.collect_gradients()
        weights.step()
        for name, weight in model.named_parameters():
            assert torch.equal(weight, weights.masters[name].to(torch.bfloat16)), name
            assert weight.grad is None
            assert weights.masters[name].grad is None
    assert all(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_there_are_no_gradients_before_they_are_collected() -> None:
    _, weights = make(precision="bf16")
    with pytest.raises(ValueError, match="has no gradient: collect_gradients comes first"):
        weights.gradients()


def test_what_is_frozen_has_no_master() -> None:
    recipe = small_recipe(precision="bf16")
    model = build_model(recipe)
    model.layers["0"].attention_norm.weight.requires_grad_(False)
    weights = MasterWeights(model, recipe)
    assert "layers.0.attention_norm.weight" not in weights.masters
    assert model.layers["0"].attention_norm.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_a_resumed_run_has_the_same_bits(precision: str, optimizer: str) -> None:
    _, weights = make(precision=precision, optimizer=optimizer)
    _, resumed = make(precision=precision, optimizer=optimizer)
    parts = {name.rpartition(".")[2] for name in weights.state_dict()}
    assert parts == {"master", "step"} | (
        {"exp_avg", "exp_avg_sq"} if optimizer == "adam" else {"row", "column", "variance"}
    )
    for step in range(4):
        if step == 2:
            resumed.load_state_dict({name: value.clone() for name, value in weights.state_dict().items()})
        for one in (weights, resumed)[: 1 if step < 2 else 2]:
            fill_gradients(one, step)
            one.collect_gradients()
            one.step()
    for name, value in weights.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    for name, weight in weights.working.items():
        assert torch.equal(weight, resumed.working[name]), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_experts_that_move_are_stepped_as_if_they_had_stayed(precision: str, optimizer: str) -> None:
    _, stayed = make(precision=precision, optimizer=optimizer)
    _, moved = make(precision=precision, optimizer=optimizer)
    # As if the others had gone to another rank.
    here = [6, 1, 3]
    for step in range(4):
        for weights in (stayed, moved):
            fill_gradients(weights, step)
        if step >= 2:
            moved.working[UP].grad = stayed.working[UP].grad[here].clone()  # type: ignore[index]
        for weights in (stayed, moved):
            weights.collect_gradients()
            weights.step()
        if step == 1:
            state = {name: value[here] if value.dim() else value for name, value in moved.state(UP).items()}
            parameter = moved.working[UP]
            moved.set_state(UP, state)
            assert moved.working[UP] is parameter
            assert len(parameter) == 3
    for name, value in moved.state(UP).items():
        expected = stayed.state(UP)[name]
        assert torch.equal(value, expected[here] if expected.dim() else expected), name
    assert torch.equal(moved.working[UP], stayed.working[UP][here])
    with pytest.raises(KeyError, match=f"state of {UP} without 'master'"):
        moved.set_state(UP, {name: value for name, value in moved.state(UP).items() if name != "master"})
