"""The collectives' buffers: as few as are in flight, the same ones again, and never of different sizes on two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
from tests.ciera_piper_core.allgather.walks import Walk, assert_same_bits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_layers_share_buffers_and_none_is_lost(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        plans = [GatherPlan.single(20_000, torch.bfloat16, CodingSettings("block"), f"{layer}") for layer in range(6)]
        gathers = [CompressedGather(plan, lane=lane) for plan in plans]
        walks = [Walk(gather.shard_values, torch.bfloat16, seed=index) for index, gather in enumerate(gathers)]
        owned = []
        for step in range(12):
            for gather, walk in zip(gathers, walks, strict=True):
                walk.step()
                if step % 2:
                    assert_same_bits(gather.gather(walk.shard(rank)), walk.whole())
                else:
                    assert_same_bits(gather.start(walk.shard(rank)).wait_for_output(), walk.whole())
            owned.append(lane.buffers.owned_bytes)
        assert owned[-1] == owned[-4]
        # A payload, what was received, what overflowed once; for one gather at a time, not for six.
        assert owned[-1] < 4 * 3 * plans[0].shard_bytes

    run_world(3, body, tmp_path)


def test_ranks_with_very_different_histories_ask_for_the_same_room(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(6_000 * (rank + 1), torch.bfloat16, CodingSettings("block", 64)))
        quiet = Walk(gather.shard_values, torch.bfloat16, rate=0.0)
        rng = torch.Generator().manual_seed(3)
        for _ in range(40):
            # Now and then one rank, not always the same, sends something that nobody foresaw.
            shard = quiet.shard(rank)
            lucky = int(torch.randint(3 * 3, (1,), generator=rng))
            if lucky == rank:
                shard = shard * 4
            whole = [quiet.shard(one) * (4 if lucky == one else 1) for one in range(3)]
            assert_same_bits(gather.gather(shard), torch.cat(whole))
            rooms: list[int | None] = [None] * 3
            dist.all_gather_object(rooms, gather._stages[0].exchange.first_bytes)
            assert len(set(rooms)) == 1
        assert 1 <= gather.statistics.overflows <= 12

    run_world(3, body, tmp_path)
