"""Every system, whatever tokens choose: each rank its own experts, all the same one, experts without a token for long.

A sequence of one token, again and again, is the same vector at all places of a layer, so that all of it goes to one
expert; which one, the plain model says. So routes are chosen by the batch, and no system is touched.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.models.architecture import Architecture, Attention, Experts, Layer
from ciera_piper_core.moe.router import Router
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.recipe import Recipe, Routing
from tests.ciera_piper_core.systems.every_system import WORLDS, built, named
from tests.ciera_piper_core.systems.expert_family import (
    BATCH,
    HIDDEN,
    SEQUENCE,
    Run,
    batch,
    difference,
    packed,
    unpacked,
    worst,
)
from tests.ciera_piper_core.systems.expert_family import recipe as of_family
from tests.ciera_piper_core.training.resumed_runs import alone
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

EXPERTS, QUARTERS, LONG = 8, 4, 100
SPREAD = ("ted:tp=2:ep=2", "xmoe:ep=4", "tutel:ep=4", "piper:pp=2:ep=2", "piper+ciera:pp=2:ep=2", "deepspeed-moe:ep=4")
"""Systems that spread experts, over so many ranks that they do not divide 5 of them."""


def recipe(top_k: int = 1, skew: float = 0.0) -> Recipe:
    """Two layers of experts, without anything that would spread the load."""
    layer = Layer(Attention(4, 2, 8, 8), Experts(EXPERTS, top_k, 24))
    return Recipe(
        Architecture("two", HIDDEN, 256, (layer, layer)),
        sequence=SEQUENCE,
        global_batch=BATCH,
        microbatches=2,
        routing=Routing(balance_weight=0, skew=skew),
    )


@cache
def experts_of_token() -> Tensor:
    """``(layers, 256)``: the expert that takes a sequence of that token in each layer, before the first step."""
    model = build_model(recipe())
    seen: list[Tensor] = []
    for part in model.modules():
        if isinstance(part, Router):
            part.register_forward_hook(lambda module, inputs, routes: seen.append(routes.experts))
    with torch.no_grad():
        model(torch.arange(256)[:, None].expand(256, SEQUENCE))
    chosen = torch.stack(seen).reshape(len(seen), 256, SEQUENCE)
    assert (chosen == chosen[:, :, :1]).all()
    return chosen[:, :, 0]


def own_experts() -> Tensor:
    """A batch whose quarter r goes to experts 2r and 2r + 1 alone, in all layers: on four ranks, to rank r's own."""
    quarters = []
    for quarter in range(QUARTERS):
        fits = (experts_of_token() // 2 == quarter).all(0).nonzero().flatten().tolist()
        quarters.append(fits[0])
    tokens = torch.tensor(quarters).repeat_interleave(BATCH // QUARTERS)
    return tokens[:, None].repeat(1, SEQUENCE + 1)


def one_expert() -> Tensor:
    """A batch of which all tokens go to the same expert of a layer, so that all ranks but one have none."""
    # Of the third quarter: its token's next choices are far behind the first two.
    return own_experts()[BATCH // 2][None].repeat(BATCH, 1)


def train(system: TrainingSystem, batches: Sequence[Tensor]) -> Run:
    losses, norms, gradients = [], [], {}
    for number, one in enumerate(batches):
        losses.append(system.accumulate(one))
        if number == 0:
            gradients = system.full_gradients()
        norms.append(system.update())
    return Run(losses, norms, gradients, system.full_parameters())


def trained(label: str, given: Recipe, batches: Sequence[Sequence[Tensor]], folder: Path) -> list[Run]:
    """A new system for each of the lists of batches."""

    def body(context: Context) -> bytes:
        runs = []
        for each in batches:
            system = built(label, context, given)
            runs.append(train(system, each))
            system.close()
        return packed(runs)

    runs: list[Run] = unpacked(run_world(WORLDS.get(label, QUARTERS), body, folder, timeout_s=150)[0])
    return runs


@pytest.mark.timeout(180)
@pytest.mark.parametrize("label", WORLDS)
def test_each_its_own_experts_and_all_the_same_one(label: str, tmp_path: Path) -> None:
    rounded = named(label) == "zeropp"
    batches = [[own_experts()] * 3, [one_expert()] * 3]
    for each, run in zip(batches, trained(label, recipe(), batches, tmp_path), strict=True):
        wanted = train(Plain(recipe(), alone(), {}), each)
        used = wanted.gradients["layers.1.routed_experts.experts.up"].abs().amax((1, 2)) > 0
        assert int(used.sum()) == len({int(sequence[0]) for sequence in each[0]})
        assert worst(run.losses, wanted.losses) < (0.02 if rounded else 1e-5), label
        assert difference(run.gradients, wanted.gradients) < (0.2 if rounded else 1e-6), label
        # Of an expert that nobody asked, exactly nothing.
        assert not run.gradients["layers.1.routed_experts.experts.up"][~used].any(), label


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("label", WORLDS)
def test_experts_without_a_token_for_a_hundred_steps_only_decay(label: str, tmp_path: Path) -> None:
    given, batches = recipe(2, skew=40.0), [batch(step) for step in range(LONG)]
    if named(label) == "deepspeed-moe":
        # Its gate takes no skew. The two experts of one token stay its own, if it learns slowly.
        given, batches = replace(recipe(2), learning_rate=1e-5, weight_decay=1.0), [one_expert()] * LONG
    (run,) = trained(label, given, [batches], tmp_path)
    wanted = train(Plain(given, alone(), {}), batches)
    first = dict(build_model(given).named_parameters())
    for name in ("layers.0.routed_experts.experts.up", "layers.1.routed_experts.experts.down"):
        idle = ~(wanted.gradients[name].abs().amax((1, 2)) > 0)
        assert int(idle.sum()) == EXPERTS - 2, name
        decayed = first[name].detach()[idle] * (1 - given.learning_rate * given.weight_decay) ** LONG
        for one in (wanted, run):
            assert torch.allclose(one.parameters[name][idle], decayed, rtol=1e-5, atol=0), (label, name)
            moved = first[name].detach()[~idle] * (1 - given.learning_rate * given.weight_decay) ** LONG
            assert not torch.allclose(one.parameters[name][~idle], moved, rtol=1e-4), (label, name)
    near = 0.02 if label == "zeropp" else 1e-5
    assert worst(run.losses[:20], wanted.losses[:20]) < near, label
    assert math.isclose(run.losses[-1], wanted.losses[-1], rel_tol=0.02, abs_tol=1e-3), label


@pytest.mark.timeout(120)
@pytest.mark.parametrize("label", SPREAD)
def test_experts_that_do_not_divide_are_refused_or_placed_as_asked(label: str, tmp_path: Path) -> None:
    name, given = named(label), of_family(experts=5, microbatches=2)

    def refused(context: Context) -> None:
        with pytest.raises(ValueError, match=r"does not divide (the )?5 experts"):
            built(label, context, given)

    run_world(QUARTERS, refused, tmp_path)
    if name == "deepspeed-moe":
        return
    batches = [batch(0), batch(1)]
    (run,) = trained(f"{label}:placement=uneven", given, [batches], tmp_path)
    wanted = train(Plain(given, alone(), {}), batches)
    assert worst(run.losses + run.norms, wanted.losses + wanted.norms) < 1e-5
    assert difference(run.gradients, wanted.gradients) < 1e-6
