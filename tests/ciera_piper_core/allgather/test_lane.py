"""The lane: a group of its own with its own timeout, coding beside collectives, in the order of the program."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core import ranges
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.errors import GatherError
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import GatherPlan
from tests.ciera_piper_core.allgather.walks import Walk, assert_same_bits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_a_world_of_one_needs_no_group() -> None:
    lane = GatherLane()
    assert (lane.rank, lane.world, lane.group) == (0, 1, None)
    out = torch.zeros(2, 2)
    lane.all_gather(out, torch.ones(4))
    assert_same_bits(out, torch.ones(2, 2))
    lane.close()
    with pytest.raises(GatherError, match="this lane was closed"):
        lane.verify()


def test_the_first_failure_is_the_one_that_is_told() -> None:
    lane = GatherLane()
    lane.fail("rank 3 died")
    lane.fail("the group is gone")
    with pytest.raises(GatherError, match=r"^rank 3 died$"):
        lane.verify()


def test_the_clone_has_the_order_of_its_parent_and_never_meets_the_programs_collectives(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        assert lane.group is not None
        assert lane.group is not dist.group.WORLD
        assert (lane.rank, lane.world) == (rank, 3)
        theirs, ours = torch.zeros(3 * 1000), torch.zeros(3 * 1000)
        for _ in range(20):
            # On one group the two threads' collectives would be matched by chance.
            queued = lane.carry(lambda: lane.all_gather(ours, torch.full((1000,), rank + 10.0)))
            dist.all_gather_single(theirs, torch.full((1000,), float(rank)))
            queued.result(20)
            assert theirs.view(3, 1000)[:, 0].tolist() == [0, 1, 2]
            assert ours.view(3, 1000)[:, 0].tolist() == [10, 11, 12]
        lane.close()

    run_world(3, body, tmp_path)


def test_a_rank_that_hangs_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    def body(context: Context) -> float:
        lane = GatherLane(timeout=timedelta(seconds=1))
        gather = CompressedGather(GatherPlan.single(1000, torch.bfloat16), lane=lane)
        shard = torch.ones(1000, dtype=torch.bfloat16)
        gather.gather(shard)
        began = time.monotonic()
        if context.group.rank == 0:
            with pytest.raises(GatherError, match="a rank may have died, or hangs"):
                gather.gather(shard)
        else:
            time.sleep(3)
        return time.monotonic() - began

    assert 0.9 < run_world(2, body, tmp_path)[0] < 2.9


def test_the_next_layer_is_coded_while_a_collective_is_underway(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        gathers = [CompressedGather(GatherPlan.single(2000, torch.bfloat16, name=name), lane=lane) for name in "ab"]
        walks = [Walk(gather.shard_values, torch.bfloat16) for gather in gathers]
        for gather, walk in zip(gathers, walks, strict=True):
            gather.gather(walk.shard(rank))
        inner = lane.start_all_gather

        def slow(out: torch.Tensor, part: torch.Tensor) -> dist.Work | None:
            time.sleep(0.3)
            return inner(out, part)

        lane.start_all_gather = slow  # type: ignore[method-assign]
        with ranges.recording() as spans:
            works = [gather.start(walk.shard(rank)) for gather, walk in zip(gathers, walks, strict=True)]
            for work, walk in zip(works, walks, strict=True):
                assert_same_bits(work.wait_for_output(), walk.whole())
        by_name = {
            name: sorted((span for span in spans if span.name == name), key=lambda span: span.start_ns)
            for name in ("allgather.encode", "allgather.collective", "allgather.decode")
        }
        encodes, collectives, decodes = by_name.values()
        assert [len(found) for found in by_name.values()] == [2, 2, 2]
        assert encodes[1].end_ns < collectives[0].end_ns
        assert collectives[0].end_ns <= collectives[1].start_ns
        # The first is decoded while the second is underway.
        assert decodes[0].end_ns < collectives[1].end_ns
        threads = [{span.thread for span in found} for found in by_name.values()]
        assert threads[2] == {threading.get_ident()}
        assert len(set.union(*threads)) == 3
        lane.close()

    run_world(2, body, tmp_path)


def test_closing_a_lane_on_the_programs_own_group_leaves_that_group_alone(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        lane = GatherLane(context.group.data, clone=False)
        lane.close()
        with pytest.raises(GatherError, match="this lane was closed; make another"):
            lane.verify()
        lane.close()
        dist.barrier(group=context.group.data)

    run_world(2, body, tmp_path)
