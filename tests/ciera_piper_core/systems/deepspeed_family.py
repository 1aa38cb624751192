"""Short trainings by the real DeepSpeed, for the tests of systems in its engine; skips where it is not installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
import torch

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("needs the extra deepspeed", allow_module_level=True)

from ciera_piper_core.systems.deepspeed_engine import import_deepspeed
from tests.ciera_piper_core.systems.expert_family import (
    Run,
    build,
    packed,
    ranks_of,
    same_on_all_ranks,
    train,
    unpacked,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

# Once, before ranks are forked: it takes seconds.
import_deepspeed(torch.device("cpu"))


def runs(
    tmp_path: Path,
    cases: Sequence[tuple[type[TrainingSystem], Recipe, str]],
    steps: int,
    world: int,
    timeout_s: float = 80,
) -> list[Run]:
    """What rank 0 has of each case, one after the other in one world; all ranks have the same losses and norms."""

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

    return [unpacked(one) for one in run_world(world, body, tmp_path, timeout_s=timeout_s)[0]]
