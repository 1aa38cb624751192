"""When phases cannot help, and what the algorithms keep between exchanges."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import communicators
from ciera_piper_core.alltoall.communicators import state_of
from ciera_piper_core.alltoall.halo import HaloAllToAll
from ciera_piper_core.alltoall.hierarchy import fallback_reason
from ciera_piper_core.alltoall.placement import Placement, even_placement
from ciera_piper_core.alltoall.two_phase import TwoPhaseAllToAll
from ciera_piper_core.ranges import recording
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (even_placement(4, 4), "all ranks share one node"),
        (even_placement(4, 1), "each node has one rank"),
        (Placement(((0, 1, 2), (3,))), "nodes have 1 to 3 ranks"),
        (even_placement(4, 2), None),
    ],
)
def test_why_an_exchange_goes_flat(placement: Placement, reason: str | None) -> None:
    found = fallback_reason(placement)
    assert found == reason if reason is None else found is not None and reason in found


def test_two_phases_gather_before_they_send(tmp_path: Path) -> None:
    def body(context: Context) -> list[str]:
        assert context.group.data is not None
        algorithm = TwoPhaseAllToAll(context.group.data, even_placement(4, 2))
        with recording() as spans:
            algorithm.exchange(torch.zeros(4, 1), [1] * 4, [1] * 4, torch.zeros(4, 1))
        return [span.name.removeprefix("alltoall.") for span in spans]

    assert run_world(4, body, tmp_path)[0] == ["counts", "phase1", "phase2"]


def test_groups_and_buffers_are_made_once(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group = context.group.data
        assert group is not None
        placement = even_placement(4, 2)
        first = HaloAllToAll(group, placement, variant="v1")
        groups = state_of(group).communicators(placement)
        TwoPhaseAllToAll(group, even_placement(4, 2))
        assert state_of(group).communicators(even_placement(4, 2)) is groups
        assert (groups.internal.size(), groups.rail.size()) == (2, 2)
        rank = context.group.rank
        assert (groups.node, groups.local) == divmod(rank, 2)
        send, out = torch.zeros(8, 16), torch.zeros(8, 16)
        first.exchange(send, None, None, out)
        held = first._buffers.bytes
        for _ in range(3):
            first.exchange(send, None, None, out)
            first.exchange(send[:4], None, None, out[:4])
            first.exchange(send, [2] * 4, [2] * 4, out)
        assert first._buffers.bytes == held

    run_world(4, body, tmp_path)


def test_ranks_may_have_seen_different_groups_before(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        # Only these two know of a group of their own.
        if rank < 2:
            dist.new_group([0, 1], use_local_synchronization=True)
        assert context.group.data is not None
        send, out = torch.full((4, 1), rank), torch.zeros(4, 1, dtype=torch.int64)
        for group in (context.group.data, dist.new_group(list(range(4)))):
            for placement in (even_placement(4, 2), Placement(((0, 2), (1, 3)))):
                HaloAllToAll(group, placement).exchange(send, None, None, out.zero_())
                assert out.flatten().tolist() == [0, 1, 2, 3]

    run_world(4, body, tmp_path)


def test_what_a_group_keeps_goes_with_it(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group = dist.new_group(list(range(4)))
        HaloAllToAll(group, even_placement(4, 2)).exchange(torch.zeros(4, 1), None, None, torch.zeros(4, 1))
        known = len(dist.distributed_c10d._world.pg_map)
        name = group.group_name
        assert name in communicators._states
        context.group.barrier()
        dist.destroy_process_group(group)
        del group
        gc.collect()
        assert name not in communicators._states
        assert len(dist.distributed_c10d._world.pg_map) == known - 3

    run_world(4, body, tmp_path)
