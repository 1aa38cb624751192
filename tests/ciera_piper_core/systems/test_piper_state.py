"""A pipelined run is saved and goes on, also over other stages and other groups of experts; and experts move in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.moe.migration.migrator import Migrator
from ciera_piper_core.moe.migration.trigger import Costs, Policy
from ciera_piper_core.systems.expert_migration import attach
from ciera_piper_core.systems.piper import PiperSystem
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.pipelined_family import (
    all_ranks,
    architecture,
    batch,
    built,
    check_same,
    recipe,
    trained,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

BEFORE, AFTER = 2, 2


def resume(
    system: type[TrainingSystem], given: Recipe, saved: dict[str, Any], resumed: dict[str, Any], folder: Path
) -> None:
    """Train, save, go on; then the same from the checkpoint."""
    first = built(system, given, all_ranks(), **saved)
    trained(first, BEFORE)
    save_checkpoint(first, folder / "run", BEFORE)
    expected = trained(first, AFTER, BEFORE)
    first.close()
    second = built(system, given, all_ranks(), **resumed)
    # Something to be overwritten: also what was gathered before.
    trained(second, 1, 50)
    latest = latest_checkpoint(folder / "run")
    assert latest is not None
    load_checkpoint(second, latest)
    got = trained(second, AFTER, BEFORE)
    if saved == resumed:
        assert got.losses == expected.losses
        assert got.norms == expected.norms
    else:
        check_same(got, expected, what=str(resumed), loss=1e-5)
    second.close()


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        ({"pp": 2, "ep": 2}, {"pp": 2, "ep": 2}),
        ({"pp": 2, "ep": 2}, {"pp": 4}),
        ({"pp": 2, "ep": 2, "schedule": "zbv"}, {"pp": 2, "ep": 1}),
    ],
)
def test_piper_resumes(saved: dict[str, Any], resumed: dict[str, Any], tmp_path: Path) -> None:
    given = recipe(architecture=architecture(tied=True), routing=Routing(kind="loss_free"))
    run_world(4, lambda context: resume(PiperSystem, given, saved, resumed, tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [({"pp": 2, "ep": 2}, {"pp": 2, "ep": 2}), ({"pp": 2, "ep": 2}, {"pp": 2, "ep": 1, "schedule": "interleaved"})],
)
def test_piper_with_ciera_resumes(saved: dict[str, Any], resumed: dict[str, Any], tmp_path: Path) -> None:
    given = recipe(precision="fp32")
    run_world(4, lambda context: resume(PiperCieraSystem, given, saved, resumed, tmp_path), tmp_path)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_experts_move_while_training(schedule: str, tmp_path: Path) -> None:
    def body(context: Context) -> int:
        given = recipe(routing=Routing(skew=2.0))
        still = built(PiperSystem, given, all_ranks(), pp=2, ep=2, schedule=schedule)
        expected = trained(still, 6)
        moving = built(PiperSystem, given, all_ranks(), pp=2, ep=2, schedule=schedule)
        assert isinstance(moving, PiperSystem)
        # Whatever it costs, and with room for one more: the number of experts of a rank may change.
        free = Costs(1.0, 0.0, 0.0, 1)
        migrator = attach(moving, Policy(check_every=2, window=2, threshold=1.0, margin=0.0, spare_experts=1), free)
        check_same(trained(moving, 6), expected, what=schedule, weights=1e-3)
        moved = [check for check in migrator.history if check.moved is not None]
        for check in moved:
            assert check.layer in moving.experts
        still.close()
        moving.close()
        return len(moved)

    moves = run_world(4, body, tmp_path)
    assert any(moves)
    # Ranks of a stage decide alike.
    assert moves[0] == moves[1]
    assert moves[2] == moves[3]


def test_the_option_attaches_it(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        system = built(PiperSystem, recipe(), all_ranks(), pp=2, ep=2, migrate=5)
        assert isinstance(system, PiperSystem)
        assert isinstance(system.migration, Migrator)
        assert system.migration.policy.check_every == 5
        system.accumulate(batch(0))
        system.update()
        system.close()

    run_world(4, body, tmp_path)


def test_weights_of_the_first_step_are_the_plain_models(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        for tied in (False, True):
            given = recipe(architecture=architecture(tied=tied))
            plain = {name: weight.detach() for name, weight in build_model(given).named_parameters()}
            for kind in (PiperSystem,) if tied else (PiperSystem, PiperCieraSystem):
                system = built(kind, given, all_ranks(), pp=2, ep=2)
                weights = system.full_parameters()
                system.close()
                if context.group.rank == 0:
                    assert weights.keys() == plain.keys()
                    assert all(torch.equal(weights[name], plain[name]) for name in plain)

    run_world(4, body, tmp_path)
