"""Calibration at set-up: the same on all ranks, over the sizes asked for; and payloads as they really are."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ciera_piper_core.allgather.calibration import STEP, Calibration, calibrate, kernel_sizes, payload_sizes
from ciera_piper_core.allgather.change_trace import TraceRecorder, trace_of
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.gain import GainModel, predict
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
from ciera_piper_core.exponents.backend import default_backend
from ciera_piper_core.exponents.layout import BF16, FP16
from tests.ciera_piper_core.allgather.gain_cases import model
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.allgather.traffic import Mode

KIB = 1 << 10
STEPS, RECORDED = 700, 40


@pytest.mark.parametrize("sizes", [[2], [16], [1000, 1000], [4096, 1 << 24], [1 << 20]])
def test_payloads_cover_what_can_be_sent(sizes: list[int]) -> None:
    payloads = payload_sizes(sizes)
    assert payloads[0] <= max(min(sizes) / 2, 16)
    assert payloads[-1] >= max(sizes)
    assert all(size % 16 == 0 for size in payloads)
    assert all(small < large <= STEP * small + 32 for small, large in pairwise(payloads))


def test_kernels_are_measured_between_the_ends() -> None:
    assert kernel_sizes([100]) == [100]
    sizes = kernel_sizes([4096, 1 << 20])
    assert (sizes[0], sizes[-1]) == (4096, 1 << 20)
    assert len(sizes) == 4
    assert kernel_sizes([1 << 40])[-1] == 64 << 20


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_have_the_same_numbers(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> Calibration:
        return calibrate([4 * KIB, 64 * KIB], BF16, default_backend(), context.group.data, budget_s=0.2)

    first, *others = run_world(world, body, tmp_path)
    for other in others:
        assert other.comm.curve.seconds.tolist() == first.comm.curve.seconds.tolist()
        assert other.kernels.decode.dense.seconds.tolist() == first.kernels.decode.dense.seconds.tolist()
        assert other.kernels.beyond.seconds.tolist() == first.kernels.beyond.seconds.tolist()
    assert first.comm.ranks == world
    assert first.comm.note([2 * KIB, 64 * KIB]) == ""
    assert first.kernels.note([4 * KIB, 64 * KIB]) == ""
    for side in (first.kernels.encode, first.kernels.decode):
        assert side.sparse_ratio <= side.dense_ratio
        assert float(side.seconds(64 * KIB, 1.0, 1.0)) >= float(side.seconds(64 * KIB, 0.0, 0.0)) > 0
    assert first.seconds < 60


def test_other_types_and_modes_and_a_lane_of_the_caller(tmp_path: Path) -> None:
    def body(context: Context) -> float:
        lane = GatherLane(context.group.data)
        measured = calibrate(
            [4 * KIB], FP16, default_backend(), context.group.data, CodingSettings("block", 64), lane=lane, budget_s=0.1
        )
        # The lane still gathers.
        gather = CompressedGather(GatherPlan.single(64, torch.float16), lane=lane)
        gather.gather(torch.ones(64, dtype=torch.float16))
        return measured.seconds

    assert all(seconds > 0 for seconds in run_world(2, body, tmp_path))


def test_nothing_to_calibrate_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        with pytest.raises(ValueError, match="at least one size above 0"):
            calibrate([0], BF16, default_backend(), context.group.data)

    run_world(2, body, tmp_path)
    with pytest.raises(ValueError, match="world of one"):
        calibrate([10], BF16, default_backend())


def walk(values: torch.Tensor, rate: float, random: torch.Generator) -> torch.Tensor:
    """The values with a share of their exponents one higher or lower."""
    moves = torch.rand(values.numel(), generator=random) < rate
    factor = torch.where(torch.rand(values.numel(), generator=random) < 0.5, 2.0, 0.5)
    return torch.where(moves, values * factor, values.float()).to(values.dtype)


@pytest.mark.parametrize(("mode", "rate"), [("auto", 0.01), ("block", 0.005), ("delta", 0.0)])
def test_predicted_payloads_are_those_that_are_sent(mode: Mode, rate: float, tmp_path: Path) -> None:
    """Forward and backward by turns, one segment left plain: the recorded trace predicts the bytes sent."""
    sizes = [("w", 40_000), ("plain", 1111), ("v", 3000)]

    def body(context: Context) -> Any:
        plan = GatherPlan.from_sizes(sizes, torch.bfloat16, CodingSettings(mode), name="layer").with_selection("wv")
        gather = CompressedGather(plan, context.group.data)
        recorder = TraceRecorder(plan)
        random = torch.Generator().manual_seed(context.group.rank)
        shard = torch.randn(plan.values, generator=random).mul_(0.02).bfloat16()
        sent = []
        for step in range(STEPS):
            # What is gathered for the backward pass is what the forward pass had.
            if step % 2 == 0:
                shard = walk(shard, rate, random)
            gather.gather(shard)
            last = gather.statistics.last
            assert last is not None
            # A trace of the long run; it takes many gathers to find out which of them need little room.
            if step >= STEPS - RECORDED:
                recorder.add(last)
                sent.append(last.sent_bytes)
        return trace_of([recorder], context.group.data, "walk"), float(np.mean(sent))

    ranks = run_world(2, body, tmp_path, timeout_s=100)
    trace, sent = ranks[0]
    assert trace == ranks[1][0]
    (carried,) = trace.traffic()
    # The trace knows what was coded; the plan's plain segment travels beside.
    predicted = predict(carried, model(), {"w", "v"}).sent_bytes + (1111 * 2 + 15) // 16 * 16
    assert predicted == pytest.approx(sent, rel=0.01, abs=256)


def test_a_calibrated_prediction_is_of_the_right_size(tmp_path: Path) -> None:
    """Not a figure, only that seconds are seconds: within a factor of ten, once in three on a machine that is busy."""
    import time

    from ciera_piper_core.allgather.selection import ChangeRates, plan_traffic

    def body(context: Context) -> tuple[float, float]:
        plan = GatherPlan.single(32 * KIB, torch.bfloat16, name="layer")
        lane = GatherLane(context.group.data)
        measured = calibrate([plan.shard_bytes], BF16, default_backend(), context.group.data, lane=lane, budget_s=0.3)
        gather = CompressedGather(plan, lane=lane)
        shard = torch.randn(plan.values).bfloat16()
        seconds = []
        for _ in range(20):
            begun = time.perf_counter()
            gather.gather(shard)
            seconds.append(time.perf_counter() - begun)
        carried = plan_traffic(plan, ChangeRates(0.0))
        predicted = predict(carried, GainModel(measured.comm, measured.kernels), {"layer"})
        return predicted.predicted_s, float(np.median(seconds[4:]))

    factors = []
    for _ in range(3):
        factors += [predicted / seconds for predicted, seconds in run_world(2, body, tmp_path)]
        if any(0.1 < factor < 10 for factor in factors):
            return
    raise AssertionError(f"predicted over measured: {factors}")
