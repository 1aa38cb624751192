"""Stages of large gathers: the same cuts on all ranks, every value in one stage, every bit, and coding that hides."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core import ranges
from ciera_piper_core.allgather import staging
from ciera_piper_core.allgather.agreement import Agreement
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
from ciera_piper_core.allgather.staging import GRANULE, LARGE_BYTES, SLOW_WIRE_BYTES, part_of, pays, stages_of
from ciera_piper_core.exponents.backend import backend
from tests.ciera_piper_core.allgather.walks import Walk, assert_same_bits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

REFERENCE = backend("reference")


@pytest.fixture
def four_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards are cut as large ones are."""
    monkeypatch.setattr(staging, "LARGE_BYTES", 0)


def agreement_on(*plans: GatherPlan) -> Agreement:
    starts = tuple(sum(plan.values for plan in plans[:rank]) for rank in range(len(plans)))
    return Agreement.of(plans, starts, REFERENCE)


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=6), st.integers(1, 3))
def test_every_value_is_in_one_stage_at_its_place(sizes: list[int], world: int) -> None:
    plan = GatherPlan.from_sizes([(f"p{index}", size) for index, size in enumerate(sizes)], torch.bfloat16)
    whole = agreement_on(*[plan] * world)
    stages = stages_of(whole, REFERENCE, True)
    assert len(stages) <= 4
    assert len({stage.digest for stage in stages}) == len(stages)
    for rank in range(world):
        begin = whole.starts[rank]
        for stage in stages:
            assert stage.starts[rank] == begin
            assert (begin - whole.starts[rank]) % GRANULE == 0
            begin += stage.plans[rank].values
        assert begin == whole.starts[rank] + plan.values
    pieces = [one for stage in stages for one in stage.plans[0].segments]
    for segment in plan.segments:
        assert sum(one.values for one in pieces if one.name == segment.name) == segment.values


def test_pieces_keep_what_their_segment_is() -> None:
    plan = GatherPlan.from_sizes([("a", 100), ("b", 0), ("c", 50)], torch.float16, name="layer").with_selection(["c"])
    part = part_of(plan, 60, 120)
    assert [(one.name, one.offset, one.values, one.compressed) for one in part.segments] == [
        ("a", 0, 40, False),
        ("c", 40, 20, True),
    ]
    assert (part.name, part.dtype, part.settings) == (plan.name, plan.dtype, plan.settings)


def test_uneven_shards_and_tiny_ones_are_not_cut() -> None:
    large, small = (GatherPlan.single(values, torch.bfloat16) for values in (60_000, 50_000))
    assert len(stages_of(agreement_on(large, large), REFERENCE, True)) == 2
    assert len(stages_of(agreement_on(large, large), REFERENCE, False)) == 1
    assert len(stages_of(agreement_on(large, small), REFERENCE, True)) == 1
    tiny = GatherPlan.single(GRANULE, torch.bfloat16)
    assert len(stages_of(agreement_on(tiny, tiny), REFERENCE, True)) == 1


@pytest.mark.parametrize(
    ("size", "rate", "device", "expected"),
    [
        (SLOW_WIRE_BYTES, 0.1e9, "cpu", True),
        (SLOW_WIRE_BYTES - 2, 0.1e9, "cpu", False),
        (LARGE_BYTES - 2, 2e9, "cpu", False),
        (LARGE_BYTES, 2e9, "cpu", True),
        (LARGE_BYTES, 0.1e9, "meta", False),
    ],
)
def test_stages_pay_for_large_shards_and_on_slow_wires(size: int, rate: float, device: str, expected: bool) -> None:
    lane = GatherLane(device=device)
    lane._wire_bytes_per_s = rate
    assert pays(agreement_on(*[GatherPlan.single(size // 2, torch.bfloat16)] * 2), lane) == expected


def test_shards_are_cut_in_two_and_large_ones_in_four() -> None:
    for size, count in ((SLOW_WIRE_BYTES, 2), (LARGE_BYTES - 2, 2), (LARGE_BYTES, 4)):
        plan = GatherPlan.single(size // 2, torch.bfloat16)
        assert len(stages_of(agreement_on(plan, plan), REFERENCE, True)) == count


def test_all_ranks_know_the_same_rate_of_the_wire(tmp_path: Path) -> None:
    rates = run_world(3, lambda context: GatherLane().wire_bytes_per_s(), tmp_path)
    assert len(set(rates)) == 1
    assert 1e6 < rates[0] < 1e12


@pytest.mark.usefixtures("four_stages")
@pytest.mark.parametrize("world", [2, 3])
def test_every_bit_arrives_in_stages(world: int, tmp_path: Path) -> None:
    sizes = [("a", 30_011), ("plain", 9_000), ("b", 777), ("c", 41_000)]

    def body(context: Context) -> None:
        rank = context.group.rank
        lane = GatherLane()
        for mode, dtype in (("block", torch.float16), ("delta", torch.bfloat16), ("auto", torch.float32)):
            plan = GatherPlan.from_sizes(sizes, dtype, CodingSettings(mode, 256), "layer")  # type: ignore[arg-type]
            gather = CompressedGather(plan.with_selection(["a", "b", "c"]), lane=lane, staged=True)
            assert len(gather._stages) == 4
            walk = Walk(gather.shard_values, dtype)
            out = torch.empty(gather.output_values, dtype=dtype)
            for step in range(7):
                if step % 2 == 0:
                    walk.step()
                if step == 5 and rank == 1:
                    # One stage alone cannot be coded; it is refreshed alone.
                    encoder = gather._stages[2].encoder
                    encoder.encode = lambda *_: 1 // 0  # type: ignore[method-assign,assignment,return-value]
                    with pytest.warns(RuntimeWarning, match="could not code its shard"):
                        assert_same_bits(gather.gather(walk.shard(rank), out), walk.whole())
                    del encoder.encode
                else:
                    assert_same_bits(gather.gather(walk.shard(rank), out), walk.whole())
            assert gather.statistics.gathers == {"coded": 5, "refresh": 2, "plain": 0}
            last = gather.statistics.last
            assert last is not None
            assert [one.name for one in last.segments] == ["a", "b", "c"]
            assert last.segments[0].plain_bytes == 30_011 * dtype.itemsize
        lane.close()

    run_world(world, body, tmp_path)


@pytest.mark.usefixtures("four_stages")
def test_a_stage_that_cannot_be_decoded_fails_the_gather_and_the_next_mends_it(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(60_000, torch.bfloat16), staged=True)
        walk = Walk(gather.shard_values, torch.bfloat16)
        for step in range(6):
            walk.step()
            if step == 3 and rank == 0:
                decoder = gather._stages[1].decoders[1]
                decoder.decode = lambda *_: 1 // 0  # type: ignore[method-assign,assignment,return-value]
                with pytest.raises(ZeroDivisionError):
                    gather.gather(walk.shard(rank))
                del decoder.decode
            else:
                assert_same_bits(gather.gather(walk.shard(rank)), walk.whole())
        assert gather.statistics.gathers["refresh"] == 2
        assert gather.statistics.failed == (rank == 0)

    run_world(2, body, tmp_path)


@pytest.mark.usefixtures("four_stages")
def test_stages_are_coded_and_decoded_while_others_are_on_the_wire(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank = context.group.rank
        gather = CompressedGather(GatherPlan.single(60_000, torch.bfloat16), staged=True)
        walk = Walk(gather.shard_values, torch.bfloat16)
        gather.gather(walk.shard(rank))
        arrivals = []

        class Slow:
            def __init__(self, work: dist.Work | None) -> None:
                self.work = work

            def wait(self) -> None:
                time.sleep(0.1)
                assert self.work is not None
                self.work.wait()
                arrivals.append(time.perf_counter_ns())

        inner = gather.lane.start_all_gather
        gather.lane.start_all_gather = lambda out, part: Slow(inner(out, part))  # type: ignore[method-assign,assignment,return-value]
        walk.step()
        with ranges.recording() as spans:
            assert_same_bits(gather.gather(walk.shard(rank)), walk.whole())
        ends = {
            name: sorted(span.end_ns for span in spans if span.name == name)
            for name in ("allgather.encode", "allgather.decode")
        }
        assert [len(arrivals), *map(len, ends.values())] == [4, 4, 4]
        assert ends["allgather.encode"][-1] < arrivals[0]
        # All but the last, which has nothing to hide behind.
        assert [
            decoded < arrived for decoded, arrived in zip(ends["allgather.decode"], arrivals[1:], strict=False)
        ] == [True] * 3

    run_world(2, body, tmp_path)
