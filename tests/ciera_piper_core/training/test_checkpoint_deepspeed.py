"""Tests of checkpoints of the systems in DeepSpeed's engine: its flat partitions, on other ranks and another EP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.deepspeed_family import runs
from tests.ciera_piper_core.systems.expert_family import build, recipe, worst
from tests.ciera_piper_core.training.resumed_runs import ranks_of, resumed_on, saved_on, steps
from tests.gloo_world import run_world

from ciera_piper_core.systems.deepspeed_moe import DeepSpeedMoESystem  # isort: skip
from ciera_piper_core.systems.zero3 import Zero3System  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

# The sum of a norm's parts is taken in the order of the ranks' partitions.
ALMOST = 1e-5


def test_zero3_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    """Parameters kept whole, partitions with padding, and biases besides."""
    given, folder = recipe(routing=Routing("loss_free", bias_rate=0.01)), tmp_path / "run"
    wanted = saved_on(2, Zero3System, given, "persist=1000", folder, tmp_path)
    assert resumed_on(2, Zero3System, given, "persist=1000", folder, tmp_path) == wanted
    assert worst(resumed_on(4, Zero3System, given, "persist=0", folder, tmp_path), wanted) < ALMOST


def test_zero3_keeps_masters_that_bf16_cannot_hold(tmp_path: Path) -> None:
    given, folder = recipe(precision="bf16"), tmp_path / "run"
    wanted = saved_on(2, Zero3System, given, "", folder, tmp_path)
    assert resumed_on(2, Zero3System, given, "", folder, tmp_path) == wanted


def test_deepspeed_moe_on_another_ep(tmp_path: Path) -> None:
    given, folder = recipe(), tmp_path / "run"
    wanted = saved_on(2, DeepSpeedMoESystem, given, "ep=2", folder, tmp_path)
    assert resumed_on(2, DeepSpeedMoESystem, given, "ep=2", folder, tmp_path) == wanted
    for options in ("ep=4:zero=2", "ep=1"):
        assert worst(resumed_on(4, DeepSpeedMoESystem, given, options, folder, tmp_path), wanted) < ALMOST, options


def test_before_the_first_step(tmp_path: Path) -> None:
    """Moments are zero then, and DeepSpeed has not made them yet."""
    given = recipe()
    for system in (Zero3System, DeepSpeedMoESystem):
        folder = tmp_path / system.name
        (wanted,) = runs(tmp_path, [(system, given, "")], steps=2, world=2)

        def body(
            context: Context, system: type[Zero3System | DeepSpeedMoESystem] = system, folder: Path = folder
        ) -> list[float]:
            built = build(system, given, ranks_of(context))
            save_checkpoint(built, folder, 0)
            steps(built, [5, 6])
            assert load_checkpoint(built, checkpoints(folder)[0]).step == 0
            after = steps(built, [0, 1])
            built.close()
            return after

        for got in run_world(2, body, tmp_path):
            assert got == [wanted.losses[0], wanted.norms[0], wanted.losses[1], wanted.norms[1]]
