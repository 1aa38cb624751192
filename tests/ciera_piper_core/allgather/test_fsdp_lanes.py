"""Tests of sharing lanes: one for all gathers of the same ranks, and a new one after a failed collective."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.allgather.fsdp_lanes import lane_of
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

CPU = torch.device("cpu")


def test_lanes_are_shared_until_they_break(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = dist.group.WORLD
        assert ranks is not None
        lane = lane_of(ranks, CPU, None)
        assert lane_of(ranks, CPU, None) is lane
        patient = lane_of(ranks, CPU, timedelta(minutes=1))
        assert patient is not lane, "another timeout is another group"
        everyone = list(range(context.group.world))
        assert lane_of(dist.new_group(everyone), CPU, None) not in (lane, patient)
        lane.fail("on purpose")
        anew = lane_of(ranks, CPU, None)
        assert anew is not lane
        assert lane_of(ranks, CPU, None) is anew
        out = torch.empty(2 * context.group.world, dtype=torch.uint8)
        anew.all_gather(out, torch.full((2,), context.group.rank, dtype=torch.uint8))
        assert out.tolist() == [rank for rank in everyone for _ in range(2)]

    run_world(3, body, tmp_path)
