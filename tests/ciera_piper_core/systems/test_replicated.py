"""Tests of systems that spread experts and copy the rest: the plain model's losses, gradients and norms, for any EP."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest

from ciera_piper_core.systems.tutel import TutelSystem
from ciera_piper_core.systems.xmoe import XMoESystem
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.expert_family import (
    WORLD,
    Run,
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
    from collections.abc import Sequence
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

    Case: TypeAlias = tuple[type[TrainingSystem], Recipe, str]

STEPS = 2


def runs(tmp_path: Path, cases: Sequence[Case], steps: int = STEPS, world: int = WORLD) -> list[Run]:
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
    cases: list[Case] = [(XMoESystem, given, f"ep={ep}") for ep in (1, 2, 4)]
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
    cases: list[Case] = [(system, one, "ep=4") for one in given for system in (XMoESystem, TutelSystem)]
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
    cases: list[Case] = [(system, one, "ep=2") for one in given for system in (XMoESystem, TutelSystem)]
    found = runs(tmp_path, cases)
    for place, one in enumerate(given):
        wanted = plain_run(one, STEPS)
        for run, (system, _, _) in zip(found[2 * place : 2 * place + 2], cases[2 * place :], strict=False):
            check(run, wanted, f"{system.name} {one.checkpointing} {one.optimizer}")


def test_ranks_with_the_same_tokens_share_expert_blocks(tmp_path: Path) -> None:
    given = recipe(microbatches=2, routing=Routing(kind="capacity", balance_weight=0.1))
    cases: list[Case] = [
        (XMoESystem, given, "ep=4:tp=2"),
        (XMoESystem, given, "ep=2:tp=2"),
        (XMoESystem, given, "ep=4:tp=4"),
    ]
    wanted = plain_run(given, STEPS)
    for run, (_, _, options) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, options)


def test_experts_that_do_not_divide_are_placed_unevenly_only_when_asked(tmp_path: Path) -> None:
    given = recipe(experts=6)
    cases: list[Case] = [(system, given, "ep=4:placement=uneven") for system in (XMoESystem, TutelSystem)]
    wanted = plain_run(given, STEPS)
    for run, (system, _, _) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, system.name)


def test_an_expert_without_tokens_gets_none_and_no_gradient(tmp_path: Path) -> None:
    # Layer 2's skew leaves the last experts with nothing; their ranks take part all the same.
    given = recipe(routing=Routing(balance_weight=0, skew=40))
    cases: list[Case] = [(system, given, "ep=4") for system in (XMoESystem, TutelSystem)]
    wanted = plain_run(given, STEPS)
    idle = [e for e, g in enumerate(wanted.gradients["layers.1.routed_experts.experts.up"]) if not g.abs().max()]
    assert len(idle) >= 4
    for run, (system, _, _) in zip(runs(tmp_path, cases), cases, strict=True):
        check(run, wanted, system.name)


@pytest.mark.slow
def test_twenty_steps_stay_within_the_tolerance(tmp_path: Path) -> None:
    given = recipe(microbatches=2)
    cases: list[Case] = [(system, given, "ep=4") for system in (XMoESystem, TutelSystem)]
    wanted = plain_run(given, 20)
    for run, (system, _, _) in zip(runs(tmp_path, cases, steps=20), cases, strict=True):
        assert worst(run.losses, wanted.losses) < system.loss_tolerance, system.name
    assert wanted.losses[-1] < wanted.losses[0] - 0.5
