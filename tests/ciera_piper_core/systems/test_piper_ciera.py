"""Piper with CIERA trains as the plain model does, and to the bit as with plain gathers; shards are where they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.tensor import DTensor

from ciera_piper_core.pipeline.schedules import SCHEDULES
from ciera_piper_core.systems.piper_ciera import PiperCieraSystem
from tests.ciera_piper_core.systems.pipelined_family import (
    all_ranks,
    architecture,
    batch,
    built,
    check_same,
    recipe,
    reference,
    trained,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

STEPS = 3


def test_every_schedule_on_two_stages_of_two_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks, one = all_ranks(), recipe()
        expected = reference(one, ranks, STEPS)
        for schedule in SCHEDULES:
            system = built(PiperCieraSystem, one, ranks, pp=2, ep=2, schedule=schedule, block=64)
            check_same(trained(system, STEPS), expected, what=schedule)
            system.close()

    run_world(4, body, tmp_path)
