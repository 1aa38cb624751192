"""Tests of systems that spread experts and copy the rest: the plain model's losses, gradients and norms, for any EP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.systems.tutel import TutelSystem
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training.build import DTYPES
from ciera_piper_core.training.health import NonFiniteError
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.expert_family import (
    WORLD,
    Run,
    batch,
    build,
    difference,
    packed,
    plain_run,
    ranks_of,
    recipe,
    same_on_all_ranks,
    train,
    unpacked,
    worst,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Precision, Recipe

STEPS = 3


def runs(
    tmp_path: Path, cases: list[tuple[type[TrainingSystem], Recipe, str]], steps: int = STEPS, world: int = WORLD
) -> list[Run]:
    """What rank 0 has of each case; all ranks have the same losses and norms."""

    def body(context: Context) -> list[bytes]:
        found = []
        for system, given, options in cases:
            built = build(system, given, ranks_of(context), options)
            run = train(built, steps)
            assert same_on_all_ranks([*run.losses, *run.norms])
            assert bool(run.parameters) == (context.group.rank == 0)
            built.close()
            found.append(packed(run))
        return found

    return [unpacked(one) for one in run_world(world, body, tmp_path, timeout_s=80)[0]]


def check(run: Run, wanted: Run, what: str, later: float = 1e-5) -> None:
    """First gradients and their norm to 1e-6 of it, losses to 1e-5.

    Args:
        later: for losses and norms after the first step.
    """
    assert difference(run.gradients, wanted.gradients) < 1e-6, what
    assert worst(run.norms[:1], wanted.norms[:1]) < 1e-6, what
    assert worst(run.losses[:1], wanted.losses[:1]) < 1e-6, what
    assert worst(run.norms, wanted.norms) < later, what
    assert worst(run.losses, wanted.losses) < later, what
    # A weight whose gradient is next to nothing may go either way under Adam.
    assert difference(run.parameters, wanted.parameters) < 1e-3, what
    for name, gradient in wanted.gradients.items():
        # Each parameter for itself: a factor of two in small ones would be lost in the whole.
        assert difference({name: run.gradients[name]}, {name: gradient}) < 1e-5, f"{what}: {name}"


def test_gradients_of_any_ep_are_the_plain_models(tmp_path: Path) -> None:
    given = recipe(microbatches=2)
    cases = [(XMoESystem, given, f"ep={ep}") for ep in (1, 2, 4)]
    cases += [(TutelSystem, given, f"ep={ep}") for ep in (1, 2, 4)]
    wanted = plain_run(given, STEPS)
    for run, (system, _, options) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, f"{system.name}:{options}")


def test_every_kind_of_routing_is_the_plain_models(tmp_path: Path) -> None:
    kinds = [
        Routing(kind="capacity", balance_weight=0.1),
        Routing(kind="expert_choice"),
        Routing(kind="loss_free", bias_rate=0.1),
    ]
    given = [recipe(routing=routing) for routing in kinds]
    cases = [(system, one, "ep=4") for one in given for system in (XMoESystem, TutelSystem)]
    found = runs(tmp_path, cases)
    for place, one in enumerate(given):
        wanted = plain_run(one, STEPS)
        for run, (system, _, _) in zip(found[2 * place : 2 * place + 2], cases[2 * place :], strict=False):
            # A token next to the bound may change sides: the plain model cut into microbatches differs as much.
            later = 2e-3 if one.routing.kind == "expert_choice" else 1e-5
            check(run, wanted, f"{system.name} {one.routing.kind}", later)


def test_recomputation_ties_and_adafactor_change_nothing(tmp_path: Path) -> None:
    given = [
        recipe(checkpointing="full", microbatches=2),
        recipe(checkpointing="selective", tied=True),
        recipe(optimizer="adafactor", clip_norm=0),
    ]
    cases = [(system, one, "ep=2") for one in given for system in (XMoESystem, TutelSystem)]
    found = runs(tmp_path, cases)
    for place, one in enumerate(given):
        wanted = plain_run(one, STEPS)
        for run, (system, _, _) in zip(found[2 * place : 2 * place + 2], cases[2 * place :], strict=False):
            check(run, wanted, f"{system.name} {one.checkpointing} {one.optimizer}")


def test_ranks_with_the_same_tokens_share_expert_blocks(tmp_path: Path) -> None:
    given = recipe(microbatches=2, routing=Routing(kind="capacity", balance_weight=0.1))
    cases = [(XMoESystem, given, "ep=4:tp=2"), (XMoESystem, given, "ep=2:tp=2"), (XMoESystem, given, "ep=4:tp=4")]
    wanted = plain_run(given, STEPS)
    for run, (_, _, options) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, options)


def test_experts_that_do_not_divide_are_placed_unevenly_only_when_asked(tmp_path: Path) -> None:
    given = recipe(experts=6)
    cases = [(system, given, "ep=4:placement=uneven") for system in (XMoESystem, TutelSystem)]
    wanted = plain_run(given, STEPS)
    for run, (system, _, _) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, system.name)


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
        with pytest.raises(ValueError, match="capacity=-1.0 is below 0"):
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

    for rank, message in enumerate(run_world(WORLD, body, tmp_path)):
        assert message.startswith("step 1")
        assert ("layers.1.routed_experts" if rank == 1 else "layers.1") in message


def test_an_expert_without_tokens_gets_none_and_no_gradient(tmp_path: Path) -> None:
    # Layer 2's skew leaves the last experts with nothing; their ranks take part all the same.
    given = recipe(routing=Routing(balance_weight=0, skew=40))
    cases = [(system, given, "ep=4") for system in (XMoESystem, TutelSystem)]
    wanted = plain_run(given, STEPS)
    idle = [e for e, g in enumerate(wanted.gradients["layers.1.routed_experts.experts.up"]) if not g.abs().max()]
    assert len(idle) >= 4
    for run, (system, _, _) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, system.name)


def test_evaluation_is_the_plain_loss_and_learns_nothing(tmp_path: Path) -> None:
    given = recipe()

    def body(context: Context) -> tuple[float, float, bool]:
        built = build(XMoESystem, given, ranks_of(context), "ep=4")
        assert isinstance(built, XMoESystem)
        loss = built.evaluate(batch(7))
        counted = [int(module.counts.sum()) for module in built.experts.values()]
        return loss, built.accumulate(batch(7)), counted == [0, 0]

    plain = plain_run(given, 1)
    (first, learnt, uncounted), *rest = run_world(WORLD, body, tmp_path)
    assert uncounted
    assert all(one[0] == first for one in rest)
    assert first == learnt
    assert plain.losses[0] != first  # another batch
