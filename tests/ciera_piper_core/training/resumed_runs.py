"""Trainings that are saved and resumed, for the tests of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.systems.system import Ranks
from ciera_piper_core.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from tests.ciera_piper_core.systems.expert_family import batch, build
from tests.ciera_piper_core.systems.expert_family import ranks_of as all_ranks
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

BEFORE, AFTER = 2, 2
"""Steps before and after a save."""


def alone() -> Ranks:
    """One process without groups."""
    group: Any = None
    return Ranks(group, even_placement(1, 1), torch.device("cpu"))


def ranks_of(context: Context) -> Ranks:
    """All; also where there is one, whose group is made here."""
    if context.group.world > 1:
        return all_ranks(context)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    return Ranks(dist.group.WORLD, even_placement(1, 1), torch.device("cpu"))


def steps(system: TrainingSystem, numbers: Sequence[int]) -> list[float]:
    """Losses and norms of these steps."""
    found = []
    for number in numbers:
        found.append(system.accumulate(batch(number)))
        found.append(system.update())
    return found


def saved_on(
    world: int, system: type[TrainingSystem], given: Recipe, options: str, folder: Path, tmp_path: Path
) -> list[float]:
    """Train, save, and go on: what came after the save."""

    def body(context: Context) -> list[float]:
        built = build(system, given, ranks_of(context), options)
        steps(built, range(BEFORE))
        save_checkpoint(built, folder, BEFORE)
        after = steps(built, range(BEFORE, BEFORE + AFTER))
        built.close()
        return after

    after: list[float] = run_world(world, body, tmp_path)[0]
    return after


def resumed_on(
    world: int, system: type[TrainingSystem], given: Recipe, options: str, folder: Path, tmp_path: Path
) -> list[float]:
    """A new run, brought to the latest checkpoint: what comes after."""

    def body(context: Context) -> list[float]:
        built = build(system, given, ranks_of(context), options)
        latest = latest_checkpoint(folder)
        assert latest is not None
        resumed = load_checkpoint(built, latest)
        assert (resumed.step, resumed.changed) == (BEFORE, ())
        after = steps(built, range(resumed.step, resumed.step + AFTER))
        built.close()
        return after

    after: list[float] = run_world(world, body, tmp_path)[0]
    return after
