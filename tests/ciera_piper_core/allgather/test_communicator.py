"""Compressed gathers in real gloo worlds: every bit over random walks, overlap, one collective in the steady state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.errors import GatherMismatchError
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan, Segment
from ciera_piper_core.exponents.backend import backend
from tests.ciera_piper_core.allgather.walks import Walk, assert_same_bits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.exponents.segment import Mode

MODES = ("block", "delta", "auto")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def uneven(rank: int, dtype: torch.dtype, mode: Mode = "auto", block: int = 128) -> GatherPlan:
    """Segments larger and smaller than a block, an empty one, a plain one; the third rank has nothing at all."""
    sizes = [("large", 3000 + 77 * rank), ("small", 37), ("empty", 0), ("plain", 205 + rank), ("last", 1024)]
    if rank == 2:
        sizes = [(name, 0) for name, _ in sizes]
    plan = GatherPlan.from_sizes(sizes, dtype, CodingSettings(mode, block), "uneven")
    return plan.with_selection(["large", "small", "empty", "last"])


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_every_bit_arrives_over_a_random_walk(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        for mode in MODES:
            for dtype in DTYPES:
                gather = CompressedGather(uneven(rank, dtype, mode), lane=lane)
                assert gather.shard_values == tuple(uneven(r, dtype).values for r in range(world))
                walk = Walk(gather.shard_values, dtype, seed=world)
                out = torch.empty(gather.output_values, dtype=dtype)
                for step in range(8):
                    if step % 2 == 0:
                        walk.step()
                    shard = walk.shard(rank)
                    before = shard.clone()
                    if step % 3 == 0:
                        assert_same_bits(gather.gather(shard, out), walk.whole())
                    else:
                        assert gather.start(shard, out).wait()
                        assert_same_bits(out, walk.whole())
                    assert_same_bits(shard, before)
                assert gather.statistics.gathers == {"coded": 7, "refresh": 1, "plain": 0}
        lane.close()

    run_world(world, body, tmp_path)


def test_the_reference_backend_and_the_fastest_one_understand_each_other(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        chosen = backend("reference") if rank == 0 else None
        gather = CompressedGather(uneven(rank, torch.bfloat16), backend=chosen)
        walk = Walk(gather.shard_values, torch.bfloat16)
        for _ in range(4):
            walk.step()
            assert_same_bits(gather.gather(walk.shard(rank)), walk.whole())
        assert gather.statistics.gathers["coded"] == 3

    run_world(2, body, tmp_path)


def test_the_steady_state_is_one_collective_and_an_overflow_a_second(tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(40_000, torch.bfloat16, CodingSettings("block", 512)))
        calls: list[int] = []
        inner = gather.lane.start_all_gather

        def counted(out: torch.Tensor, part: torch.Tensor):  # type: ignore[no-untyped-def]
            calls[-1] += 1
            return inner(out, part)

        gather.lane.start_all_gather = counted  # type: ignore[method-assign]
        walk = Walk(gather.shard_values, torch.bfloat16, rate=0.0)
        busy = Walk(gather.shard_values, torch.bfloat16, seed=9, rate=0.5)
        for step in range(16):
            # Steps of forward and backward; then everything changes at once.
            if step % 2 == 0:
                walk.step()
            source = busy if step == 12 else walk
            calls.append(0)
            assert_same_bits(gather.gather(source.shard(rank)), source.whole())
        assert gather.statistics.overflows == calls[1:].count(2)
        return calls

    for calls in run_world(3, body, tmp_path):
        # A header, then plain shards; then one collective each, but for those that nobody could foresee.
        assert calls[0] == 2
        assert calls[12] == 2
        assert calls[3:12] == [1] * 9
        assert max(calls) == 2


def test_started_gathers_of_several_plans_overlap_and_end_in_any_order(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        plans = [
            GatherPlan.from_sizes([("a", 2000 + 300 * rank), ("b", 600)], torch.bfloat16, name=f"layer {layer}")
            for layer in range(4)
        ]
        # The third layer is not worth it.
        plans[2] = plans[2].with_selection([])
        gathers = [CompressedGather(plan, lane=lane) for plan in plans]
        walks = [Walk(gather.shard_values, torch.bfloat16, seed=layer) for layer, gather in enumerate(gathers)]
        for step in range(6):
            works = []
            for gather, walk in zip(gathers, walks, strict=True):
                walk.step()
                works.append(gather.start(walk.shard(rank)))
            # Ranks wait in different orders, which must not matter.
            order = [(step + rank + place) % 4 for place in range(4)]
            for layer in order:
                assert_same_bits(works[layer].wait_for_output(), walks[layer].whole())
                assert works[layer].is_completed()
                assert works[layer].wait()

    run_world(3, body, tmp_path)


def test_a_second_start_of_the_same_plan_ends_the_first(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(3000, torch.float16))
        walk = Walk(gather.shard_values, torch.float16)
        for _ in range(4):
            pairs = []
            for _ in range(2):
                walk.step()
                pairs.append((gather.start(walk.shard(rank)), walk.whole()))
            for work, expected in reversed(pairs):
                assert_same_bits(work.wait_for_output(), expected)
        assert gather.statistics.gathers["coded"] == 7

    run_world(2, body, tmp_path)


def test_a_shard_may_lie_in_the_output(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(900, torch.bfloat16))
        walk = Walk(gather.shard_values, torch.bfloat16)
        out = torch.empty(2700, dtype=torch.bfloat16)
        for step in range(4):
            walk.step()
            own = out[rank * 900 : (rank + 1) * 900]
            own.copy_(walk.shard(rank))
            work = gather.start(own, out) if step % 2 else None
            assert_same_bits(work.wait_for_output() if work else gather.gather(own, out), walk.whole())

    run_world(3, body, tmp_path)


def test_values_that_require_gradients_are_gathered_without_them(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        gather = CompressedGather(GatherPlan.single(64, torch.float32))
        shard = torch.nn.Parameter(torch.full((8, 8), float(context.group.rank)))
        for _ in range(2):
            out = gather.gather(shard)
            assert not out.requires_grad
            assert_same_bits(out, torch.arange(2, dtype=torch.float32).repeat_interleave(64))

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool, torch.complex128])
def test_a_plain_plan_may_be_of_any_type(dtype: torch.dtype, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        for sizes in ((9, 9), (9, 4)):
            gather = CompressedGather(GatherPlan((Segment("x", 0, sizes[rank], compressed=False),), dtype))
            shards = [(torch.arange(size) + rank).to(dtype) for rank, size in enumerate(sizes)]
            assert_same_bits(gather.gather(shards[rank]), torch.cat(shards))
            assert_same_bits(gather.gather(shards[rank], torch.empty(sum(sizes), dtype=dtype)), torch.cat(shards))
            assert_same_bits(gather.start(shards[rank]).wait_for_output(), torch.cat(shards))
            assert gather.statistics.gathers["plain"] == 3
            assert gather.statistics.plain_bytes == 3 * sizes[rank] * dtype.itemsize

    run_world(2, body, tmp_path)


def test_shards_that_are_all_empty(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        for selection in (["shard"], []):
            gather = CompressedGather(GatherPlan.single(0, torch.bfloat16).with_selection(selection))
            for _ in range(3):
                assert gather.gather(torch.empty(0, dtype=torch.bfloat16)).shape == (0,)
                assert gather.start(torch.empty(0, dtype=torch.bfloat16)).wait_for_output().shape == (0,)

    run_world(2, body, tmp_path)


@pytest.mark.parametrize("selected", [True, False])
def test_a_world_of_one_copies(selected: bool) -> None:
    plan = GatherPlan.single(100, torch.bfloat16).with_selection(["shard"] if selected else [])
    gather = CompressedGather(plan)
    shard = torch.randn(100).bfloat16()
    assert_same_bits(gather.gather(shard), shard)
    assert_same_bits(gather.start(shard).wait_for_output(), shard)
    assert gather.statistics.gathers == {"coded": 0, "refresh": 0, "plain": 2}
    assert gather.state_bytes == 0


@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("even", [True, False])
def test_a_plan_that_selects_nothing_gathers_plain(even: bool, queued: bool, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        size = 1000 if even else 700 * rank
        # Of a type that has no exponents.
        plan = GatherPlan((Segment("ids", 0, size, compressed=False),), torch.int64)
        lane = GatherLane() if queued else None
        gather = CompressedGather(plan, lane=lane)
        expected = torch.cat([torch.arange(n) + 1000 * r for r, n in enumerate(gather.shard_values)])
        shard = torch.arange(size) + 1000 * rank
        seen = []
        assert_same_bits(gather.gather(shard), expected)
        gather.on_sample = seen.append
        assert_same_bits(gather.gather(shard), expected)
        if queued:
            # Behind something else of the lane, they wait for their turn.
            gather.lane.carry(lambda: time.sleep(0.1))
        works = [gather.start(shard) for _ in range(2)]
        for work in works:
            assert_same_bits(work.wait_for_output(), expected)
        assert gather.statistics.gathers == {"coded": 0, "refresh": 0, "plain": 4}
        assert [sample.kind for sample in seen] == ["plain"] * 3
        assert gather.state_bytes == 0
        assert (gather.lane.group is dist.group.WORLD) != queued
        assert gather.lane.buffers.owned_bytes == (0 if even else 3 * 8 * 1400 * 9 // 8)

    run_world(3, body, tmp_path)


def test_statistics_say_what_each_segment_did(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        sizes = [("still", 4096), ("busy", 4096), ("plain", 512)]
        plan = GatherPlan.from_sizes(sizes, torch.bfloat16, CodingSettings("block", 512)).with_selection(
            ["still", "busy"]
        )
        gather = CompressedGather(plan)
        samples = []
        gather.on_sample = samples.append
        shard = torch.ones(plan.values, dtype=torch.bfloat16)
        for step in range(5):
            # Two blocks of the busy segment change each time.
            shard[4096 + 100] = 2.0**step
            shard[4096 + 600] = 2.0**-step
            gather.gather(shard)
        still, busy = gather.statistics.segments["still"], gather.statistics.segments["busy"]
        assert (still.gathers, still.blocks, still.changed_blocks, still.coded_bytes) == (4, 32, 0, 0)
        assert (busy.gathers, busy.blocks, busy.changed_blocks, busy.symbols) == (4, 32, 8, 8 * 512)
        assert busy.block_change_rate == 0.25
        assert 0.5 < still.byte_ratio < 0.51
        assert still.byte_ratio < busy.byte_ratio < 1
        assert gather.statistics.segments["plain"].gathers == 0
        assert [sample.kind for sample in samples] == ["refresh"] + ["coded"] * 4
        assert [sample.attempt for sample in samples] == list(range(5))
        assert samples[-1] == gather.statistics.last
        assert all(sample.collective_ns > 0 and sample.decode_ns > 0 for sample in samples)
        assert samples[1].sent_bytes < 0.65 * samples[1].plain_bytes
        # Hashes of 16 blocks twice; exponents of the others' two segments.
        assert gather.state_bytes == 2 * 16 * 16 + 2 * 2 * 4096

    run_world(3, body, tmp_path)


def test_tensors_of_another_plan_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(8, torch.bfloat16, name="layer 3"))
        good = torch.full((8,), float(rank), dtype=torch.bfloat16)
        bad = [
            (good.half(), None, "layer 3.*shard is torch.float16; the plan is of torch.bfloat16"),
            (good[:7], None, "shard has 7 values; the plan says 8"),
            (good.repeat_interleave(2)[::2], None, "shard is not contiguous"),
            (good, torch.empty(15, dtype=torch.bfloat16), "out has 15 values; the plan says 16"),
            (good, torch.empty(16, dtype=torch.float16), "out is torch.float16"),
            (good.to("meta"), None, "shard is on meta"),
        ]
        for shard, out, message in bad:
            with pytest.raises(ValueError, match=message):
                gather.gather(shard, out)
            with pytest.raises(ValueError, match=message):
                gather.start(shard, out)
        for _ in range(2):
            assert_same_bits(gather.gather(good), torch.tensor([0.0, 1.0]).repeat_interleave(8).bfloat16())

    run_world(2, body, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda plan: GatherPlan(plan.segments, torch.float16, plan.settings, plan.name),
            "the dtype: rank 0, 2: .*bfloat16; rank 1: .*float16",
        ),
        (lambda plan: GatherPlan(plan.segments, plan.dtype, CodingSettings("block"), plan.name), "the coding settings"),
        (
            lambda plan: plan.with_selection(["b"]),
            r"which segments are coded: rank 0, 2: \('a', 'b'\); rank 1: \('b',\)",
        ),
        (lambda plan: GatherPlan(plan.segments[:1], plan.dtype, plan.settings, plan.name), "the number of segments"),
        (lambda plan: GatherPlan.from_sizes([("a", 5), ("c", 6)], plan.dtype, name=plan.name), "names and order"),
    ],
)
def test_plans_that_do_not_fit_together_are_refused_on_every_rank(change, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def body(context: Context) -> None:
        plan = GatherPlan.from_sizes([("a", 5), ("b", 6)], torch.bfloat16, name="layer")
        with pytest.raises(GatherMismatchError, match=message):
            CompressedGather(change(plan) if context.group.rank == 1 else plan)

    run_world(3, body, tmp_path)


def test_gathers_on_part_of_the_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        # As a mesh of 2 x 2 makes them; each half clones its own without the other.
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        gather = CompressedGather(GatherPlan.single(700, torch.bfloat16), groups[rank % 2])
        walk = Walk((700,) * 4, torch.bfloat16)
        for _ in range(3 + rank % 2):
            walk.step()
            expected = torch.cat([walk.shard(rank % 2), walk.shard(rank % 2 + 2)])
            assert_same_bits(gather.gather(walk.shard(rank)), expected)
        gather.close()

    run_world(4, body, tmp_path)
