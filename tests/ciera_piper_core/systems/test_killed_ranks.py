"""A rank is killed, in any phase of a step or of a save, or has no memory left: all end, and the run can be resumed.

Every rank ends with an error, also if it still closes its system; none waits for ever. No checkpoint is harmed, and a
resumed run goes on as if nothing had been, to the last bit.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from ciera_piper_core.ranges import watching
from ciera_piper_core.systems import system_names
from ciera_piper_core.training.checkpoint import checkpoints, latest_checkpoint, load_checkpoint, save_checkpoint
from tests.ciera_piper_core.systems.every_system import WORLDS, built, named
from tests.ciera_piper_core.systems.expert_family import batch, worst
from tests.gloo_world import Ending, endings_of_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

REGIONS = {"dispatch": "moe.dispatch", "reduce": "gradient_reduce", "optimizer": "optimizer"}
"""Phases that a region of the program's own marks: the rank dies as it enters one."""
PHASES = ("dispatch", "backward", "reduce", "optimizer", "save", "memory")
SAVED, STEPS = 2, 4
NEAR = {"tutel:ep=4": 1e-6}
"""Relative differences of systems that try out, in the first steps of a process, how they cut their sums."""
RUN_S, AFTER_DEATH_S = 150, 20
"""Bounds of a run, and of the time in which all others end after a rank died (they learn of it in milliseconds)."""


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_memory() -> None:
    raise MemoryError("nothing left")


class EndsIn:
    """Watches the regions of a rank."""

    def __init__(self, region: str, end: Callable[[], None] = die) -> None:
        self.region, self.end = region, end

    def entered(self, name: str) -> None:
        if name == self.region:
            self.end()

    def left(self, name: str) -> None:
        pass


def doomed(system: Any, phase: str) -> ExitStack:
    """While it is open, this rank comes to its end in that phase."""
    stack = ExitStack()
    if phase in REGIONS:
        stack.enter_context(watching(EndsIn(REGIONS[phase])))
    elif phase == "memory":
        stack.enter_context(watching(EndsIn("moe.dispatch", run_out_of_memory)))
    elif phase == "save":
        stack.enter_context(patch.object(FileSystemWriter, "write_data", die))
    else:
        layer = list(system.model.layers.values())[-1]

        def when_a_gradient_comes(module: object, inputs: object, output: Any) -> None:
            if output.requires_grad:
                output.register_hook(die)

        stack.callback(layer.register_forward_hook(when_a_gradient_comes).remove)
    return stack


def train(label: str, context: Context, folder: Path, phase: str = "", victim: int = -1) -> list[float]:
    """Losses and norms from the latest checkpoint on, if there is one; a step is saved.

    Args:
        phase: of the last step but one (or of the save after it) that rank ``victim`` does not survive.
    """
    system = built(label, context)
    latest = latest_checkpoint(folder)
    first = load_checkpoint(system, latest).step if latest else 0
    found = []
    try:
        for step in range(first, STEPS):
            with doomed(system, phase) if (step, context.site.rank) == (SAVED, victim) else ExitStack():
                found += _step(system, step)
                if phase == "save" and step == SAVED:
                    save_checkpoint(system, folder, step + 1)
            if step + 1 == SAVED:
                save_checkpoint(system, folder, SAVED)
    finally:
        # As whoever measures does, also after an error.
        system.close()
    return found


def _step(system: TrainingSystem, step: int) -> list[float]:
    return [system.accumulate(batch(step)), system.update()]


def survives(label: str, phases: tuple[str, ...], tmp_path: Path) -> None:
    """Train; then begin again for each phase that a rank dies in; at last resume, and compare."""
    world, folder = WORLDS[label], tmp_path / "run"

    def run(phase: str = "", victim: int = -1) -> list[Ending]:
        return endings_of_world(
            world,
            lambda context: train(label, context, folder, phase, victim),
            tmp_path,
            timeout_s=RUN_S,
            together_s=AFTER_DEATH_S,
        )

    wanted = run()
    assert not any(one.error for one in wanted), wanted[0].error
    for number, phase in enumerate(phases):
        victim = number % world
        for rank, one in enumerate(run(phase, victim)):
            where = f"{label}: rank {victim} ends in {phase}, rank {rank}: {one}"
            assert one.killed == (rank == victim and phase != "memory"), where
            # Of others, the connection that broke; from some systems the rank too.
            expected = "peer" if rank != victim else "MemoryError: nothing left" if phase == "memory" else ""
            assert expected in one.error, where
        assert [path.name for path in checkpoints(folder)] == [f"step-{SAVED:08d}"], (label, phase)
    resumed = run()
    for rank, one in enumerate(resumed):
        assert one.result, (label, one)
        difference = worst(one.result, wanted[rank].result[2 * SAVED :])
        assert difference <= NEAR.get(label, 0.0), (label, one, difference)
    assert multiprocessing.active_children() == []


@pytest.mark.timeout(300)
def test_a_rank_killed_on_the_way(tmp_path: Path) -> None:
    """One phase of the system with most connections; there is no time for more by default."""
    survives("piper:pp=2:ep=2", ("backward",), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("label", WORLDS)
def test_a_rank_killed_in_any_phase_of_every_system(label: str, tmp_path: Path) -> None:
    name = named(label)
    # One process alone reduces nothing.
    survives(label, tuple(phase for phase in PHASES if name != "plain" or phase != "reduce"), tmp_path)


def test_the_table_has_every_system() -> None:
    assert {label.partition(":")[0] for label in WORLDS} == set(system_names())
