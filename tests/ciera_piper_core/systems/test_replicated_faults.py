"""Tests of what replicated systems refuse, leave out and stop at (settings, overflows, NaN), and of low precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.systems.tutel import TutelSystem
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training.build import DTYPES
from ciera_piper_core.training.health import NonFiniteError
from tests.ciera_piper_core.systems.expert_family import WORLD, batch, build, plain_run, ranks_of, recipe, worst
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.training.recipe import Precision


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = ranks_of(context)
        refusals = {
            "ep=4": (recipe(experts=6), "ep=4 does not divide the 6 experts of a layer"),
            "ep=3": (recipe(), "ep=3 does not divide 4 ranks"),
            "ep=4:placement=uneven": (recipe(experts=3), "ep=4 is more than the 3 experts"),
            "ep=2:tp=4": (recipe(), "tp=4 does not divide ep=2"),
            "ep=1": (recipe(microbatches=3), "does not make 3 microbatches on each of 4 ranks"),
        }
        for options, (given, message) in refusals.items():
            with pytest.raises(ValueError, match=message):
                build(XMoESystem, given, ranks, options)
        with pytest.raises(ValueError, match=r"capacity is 0 or more, not -1"):
            build(TutelSystem, recipe(), ranks, "capacity=-1")
        # 0: the most ranks that divide.
        assert XMoESystem.arrange(recipe(experts=6), 4, {"ep": 0, "placement": "even", "tp": 1})["ep"] == 2
        assert XMoESystem.arrange(recipe(experts=6), 4, {"ep": 0, "placement": "uneven", "tp": 1})["ep"] == 4

    run_world(WORLD, body, tmp_path)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_learns_and_keeps_masters_in_fp32(tmp_path: Path, precision: Precision) -> None:
    travels: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp32"}
    given = recipe(precision=precision, gradient_precision=travels[precision], learning_rate=3e-3)

    def body(context: Context) -> tuple[list[float], int]:
        built = build(XMoESystem, given, ranks_of(context), "ep=4")
        assert isinstance(built, XMoESystem)
        losses = [0.0] * 8
        for step in range(8):
            losses[step] = built.accumulate(batch(step))
            built.update()
        assert {weight.dtype for weight in built.masters.masters.values()} == {torch.float32}
        assert {weight.dtype for weight in built.model.parameters()} == {DTYPES[precision]}
        return losses, context.group.rank

    results = run_world(WORLD, body, tmp_path)
    assert len({tuple(losses) for losses, _ in results}) == 1
    losses = results[0][0]
    assert losses[-1] < losses[0] - 0.5
    assert worst(losses[:1], plain_run(given, 1).losses) < 0.02


def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[bool, bool, float]:
        built = build(XMoESystem, recipe(precision="fp16"), ranks_of(context), "ep=4")
        assert isinstance(built, XMoESystem)
        before = {name: weight.clone() for name, weight in built.model.named_parameters()}
        built.accumulate(batch(0))
        if context.group.rank == 2:
            built.masters.masters["layers.1.routed_experts.experts.up"].grad[0, 0, 0] = math.inf
        scale = built.scaler.scale
        norm = built.update()
        same = all(torch.equal(weight, before[name]) for name, weight in built.model.named_parameters())
        return math.isfinite(norm), same, built.scaler.scale / scale

    assert run_world(WORLD, body, tmp_path) == [(False, True, 0.5)] * WORLD


def test_a_nan_is_found_with_its_step_and_layer(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        built = build(XMoESystem, recipe(), ranks_of(context), "ep=4")
        assert isinstance(built, XMoESystem)
        built.accumulate(batch(0))
        built.update()
        if context.group.rank == 1:
            with torch.no_grad():
                built.model.get_parameter("layers.1.routed_experts.experts.up")[0, 0, 0] = math.nan
        with pytest.raises(NonFiniteError) as caught:
            built.accumulate(batch(1))
        return str(caught.value)

    messages = run_world(WORLD, body, tmp_path)
    assert len(set(messages)) == 1
    assert messages[0].startswith("step 1: weight of layers.1.routed_experts.experts.up is not finite")


def test_a_nan_in_activations_is_found_in_its_layer(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        built = build(XMoESystem, recipe(), ranks_of(context), "ep=4")
        assert isinstance(built, XMoESystem)
        if context.group.rank == 3:
            hurt = built.model.get_submodule("layers.2.attention")
            hurt.register_forward_hook(lambda module, inputs, output: output * math.nan)
        with pytest.raises(NonFiniteError) as caught:
            built.accumulate(batch(0))
        return str(caught.value)

    messages = run_world(WORLD, body, tmp_path)
    assert len(set(messages)) == 1
    assert messages[0].startswith("step 0: output of layers.2.")


def test_evaluation_is_the_plain_loss_and_learns_nothing(tmp_path: Path) -> None:
    given = recipe()

    def body(context: Context) -> tuple[float, float, bool]:
        built = build(XMoESystem, given, ranks_of(context), "ep=4")
        assert isinstance(built, XMoESystem)
        loss = built.evaluate(batch(7))
        counted = [int(module.counts.sum()) for module in built.experts.values()]
        return loss, built.accumulate(batch(7)), counted == [0, 0]

    (first, learnt, uncounted), *rest = run_world(WORLD, body, tmp_path)
    assert uncounted
    assert all(one[0] == first for one in rest)
    assert first == learnt
