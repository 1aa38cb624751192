"""A short measurement at set-up: the plain gather and the kernels on these ranks, for selection without a profile.

All ranks measure at the same time, as they do in a gather, so that what they share (cores, memory
bandwidth) counts. Every number is the slowest rank's, and the median over repetitions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from ciera_piper_core.allgather.agreement import PayloadShape
from ciera_piper_core.allgather.comm import Comm
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.kernel_times import KernelTimes, StageTimes
from ciera_piper_core.allgather.lane import GatherLane
from ciera_piper_core.allgather.plan import GatherPlan
from ciera_piper_core.allgather.shard_coding import EncodedShard, ShardDecoder, ShardEncoder
from ciera_piper_core.exponents.payload import PayloadHeader, aligned
from ciera_piper_core.exponents.segment import CodingSettings
from ciera_piper_core.exponents.segments import Received
from ciera_piper_core.exponents.workspace import Workspace
from ciera_piper_core.platforms.tables import SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.layout import FloatLayout

LEAST_REPEATS, MOST_REPEATS = 3, 25
STEP = 2.0
"""Between measured payloads; a curve between them is straight on logarithmic axes."""

SMALLEST_SHARE = 0.45
"""Of the smallest shard: no payload is smaller than its sign and mantissa planes."""

KERNEL_SIZES = 4
STEADY_AFTER = 4
LEAST_BEYOND_S = 1e-7
"""Curves are above 0; parts that were measured one by one may add up to more than the whole."""

LARGEST_KERNEL_BYTES = 64 << 20
"""Beyond it kernels stream from memory, so that time grows with size, and more would only take long."""

TOGETHER_BYTES, MOST_TOGETHER = 256 << 10, 16
"""Segments are measured together until they have so many bytes, or are so many."""

SPARSE_RATE = 0.01
"""Share of exponents that differ, for differences that code to little."""

WEIGHT_SCALE = 0.02
"""Standard deviation of made-up weights."""


@dataclass(frozen=True)
class Calibration:
    """What was measured: the same on all ranks.

    Attributes:
        comm: of the plain gather. kernels: of a rank's kernels.
        seconds: that it took.
    """

    comm: Comm
    kernels: KernelTimes
    seconds: float


def calibrate(
    sizes: Iterable[int],
    layout: FloatLayout,
    backend: Backend,
    group: dist.ProcessGroup | None = None,
    settings: CodingSettings | None = None,
    *,
    nodes: int = 1,
    lane: GatherLane | None = None,
    device: torch.device | str = "cpu",
    budget_s: float = 3.0,
) -> Calibration:
    """Measure on all ranks of a group (collective).

    Args:
        sizes: plain bytes of the segments and of whole shards that will be gathered; the same on all ranks.
        layout: of their values.
        backend: that will code.
        group: that will gather; the default group if None.
        settings: how exponents will be coded.
        nodes: that the ranks are on, for reports.
        lane: on which compressed gathers will run; None for one of its own. Nothing may be in flight on it.
        device: where shards are.
        budget_s: about how long to take; each point is measured three times at least.

    Raises:
        ValueError: no size above 0, or a world of one, in which nothing travels.
    """
    begun = time.perf_counter()
    positive = sorted({int(size) for size in sizes if size > 0})
    if not positive:
        raise ValueError("calibrate needs at least one size above 0")
    ranks = _Ranks(group, torch.device(device))
    if ranks.world < 2:
        raise ValueError("in a world of one nothing is gathered, so there is nothing to calibrate")
    payloads = payload_sizes(positive)
    points = [(float(size), _gather_seconds(ranks, size, budget_s / 2 / len(payloads))) for size in payloads]
    comm = Comm.from_points(points, ranks.world, nodes, f"calibrated on {ranks.world} rank(s) at set-up")
    coding = settings or CodingSettings()
    kernels = _kernels(ranks, kernel_sizes(positive), layout, backend, coding, budget_s / 3)
    road = lane or GatherLane(group, device=device)
    try:
        beyond = _beyond(ranks, road, positive, layout, backend, coding, comm, kernels, budget_s / 6)
    finally:
        if lane is None:
            road.close()
    kernels = replace(kernels, beyond=beyond)
    return Calibration(comm, kernels, time.perf_counter() - begun)


def payload_sizes(sizes: Sequence[int]) -> list[int]:
    """Payloads to measure for shards of these sizes: steps of 2 from half the smallest to the largest."""
    low, high = aligned(max(int(SMALLEST_SHARE * min(sizes)), 16)), aligned(max(sizes))
    steps = max(int(np.ceil(np.log(high / low) / np.log(STEP))), 1)
    return sorted({aligned(int(size)) for size in np.geomspace(low, high, steps + 1)} | {low, high})


def kernel_sizes(sizes: Sequence[int]) -> list[int]:
    """Segments to measure kernels on, from the smallest to the largest, in a few steps."""
    low, high = (min(size, LARGEST_KERNEL_BYTES) for size in (min(sizes), max(sizes)))
    return sorted({int(size) for size in np.geomspace(low, high, KERNEL_SIZES)} | {low, high})


class _Ranks:
    """The group, and measuring on all of it at once."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group, self.device = group, device
        self.world = dist.get_world_size(group) if dist.is_initialized() else 1

    def median_s(self, measure: Callable[[], Sequence[float]], budget_s: float) -> list[float]:
        """Medians over repetitions of the slowest rank's seconds; the first repetition warms up.

        Args:
            measure: one repetition; as many seconds on each rank.
        """
        self._repeat(measure)
        first = self._repeat(measure)
        # From numbers that all ranks have alike, so all repeat as often.
        repeats = int(np.clip(budget_s / max(sum(first), 1e-9), LEAST_REPEATS, MOST_REPEATS))
        return [
            float(each) for each in np.median([first, *(self._repeat(measure) for _ in range(repeats - 1))], axis=0)
        ]

    def _repeat(self, measure: Callable[[], Sequence[float]]) -> list[float]:
        dist.barrier(group=self.group)
        slowest = torch.tensor(list(measure()), dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self.group)
        return [float(each) for each in slowest.tolist()]

    def settle(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, call: Callable[[], object]) -> float:
        """Seconds of one call."""
        self.settle()
        begun = time.perf_counter()
        call()
        self.settle()
        return time.perf_counter() - begun

    def timed_alone(self, call: Callable[[], object]) -> list[float]:
        """``timed``, as one repetition of a measurement of one number."""
        return [self.timed(call)]


def _gather_seconds(ranks: _Ranks, size: int, budget_s: float) -> float:
    sent = torch.zeros(size, dtype=torch.uint8, device=ranks.device)
    received = torch.empty(size * ranks.world, dtype=torch.uint8, device=ranks.device)
    call = partial(dist.all_gather_single, received, sent, group=ranks.group)
    return ranks.median_s(partial(ranks.timed_alone, call), budget_s)[0]


def _kernels(
    ranks: _Ranks,
    sizes: Sequence[int],
    layout: FloatLayout,
    backend: Backend,
    settings: CodingSettings,
    budget_s: float,
) -> KernelTimes:
    """Kernel times against segment bytes, three mixes each."""
    encode: dict[str, list[tuple[float, float]]] = {mix: [] for mix in _MIXES}
    decode: dict[str, list[tuple[float, float]]] = {mix: [] for mix in _MIXES}
    copy: list[tuple[float, float]] = []
    ratios: dict[str, list[float]] = {mix: [] for mix in _MIXES}
    for size in sizes:
        values = max(size // layout.value_bytes, 1)
        segments = _Segments(values, layout, backend, settings, ranks)
        for mix in _MIXES:
            seconds = ranks.median_s(partial(segments.measure, mix), budget_s / len(sizes) / len(_MIXES))
            encode[mix].append((float(size), seconds[0]))
            decode[mix].append((float(size), seconds[1]))
            ratios[mix].append(segments.coded_ratio(mix))
        copy.append((float(size), ranks.median_s(segments.measure_copy, budget_s / len(sizes) / 8)[0]))
    sparse = min(float(np.median(ratios["sparse"])), float(np.median(ratios["dense"])))
    dense = float(np.median(ratios["dense"]))
    encode_times, decode_times = (
        StageTimes(
            SecondsCurve.from_points(side["unchanged"]),
            SecondsCurve.from_points(side["sparse"]),
            SecondsCurve.from_points(side["dense"]),
            sparse_ratio=sparse,
            dense_ratio=dense,
        )
        for side in (encode, decode)
    )
    source = f"{backend.name} {backend.isa}".strip() + f", {backend.threads} thread(s), calibrated at set-up"
    return KernelTimes(encode_times, decode_times, SecondsCurve.from_points(copy), None, source)


def _beyond(
    ranks: _Ranks,
    lane: GatherLane,
    sizes: Sequence[int],
    layout: FloatLayout,
    backend: Backend,
    settings: CodingSettings,
    comm: Comm,
    kernels: KernelTimes,
    budget_s: float,
) -> SecondsCurve:
    """Whole compressed gathers of the smallest and the largest size, less what the parts explain."""
    points = []
    ends = sorted({min(sizes), min(max(sizes), LARGEST_KERNEL_BYTES)})
    for size in ends:
        values = max(size // layout.value_bytes, 1)
        plan = GatherPlan.single(values, layout.dtype, settings, name="calibration")
        gather = CompressedGather(plan, backend=backend, lane=lane)
        random = torch.Generator().manual_seed(dist.get_rank(ranks.group))
        shard = torch.randn(values, generator=random).mul_(WEIGHT_SCALE).to(layout.dtype).to(ranks.device)
        out = torch.empty(values * ranks.world, dtype=layout.dtype, device=ranks.device)
        # The first one is plain, and only later ones know how little room they need.
        for _ in range(STEADY_AFTER):
            gather.gather(shard, out)
        call = partial(gather.gather, shard, out)
        seconds = ranks.median_s(partial(ranks.timed_alone, call), budget_s / len(ends))[0]
        last = gather.statistics.last
        assert last is not None
        parts = float(comm.seconds_at(last.sent_bytes)) + float(kernels.copy.seconds_at(size))
        parts += float(kernels.encode.seconds(size, 0.0, 0.0))
        parts += float(kernels.decode.seconds(size, 0.0, 0.0)) * (ranks.world - 1)
        points.append((float(size), max(seconds - parts, LEAST_BEYOND_S)))
    return SecondsCurve.from_points(points)


_MIXES = ("unchanged", "sparse", "dense")


class _Segments:
    """Some segments of made-up weights, coded to and fro between two states, and decoded as often as a rank must.

    Small ones are measured together, as they are coded: what a call costs is shared by all segments of a gather.
    """

    def __init__(
        self, values: int, layout: FloatLayout, backend: Backend, settings: CodingSettings, ranks: _Ranks
    ) -> None:
        self._ranks = ranks
        self._count = count = int(np.clip(TOGETHER_BYTES // (values * layout.value_bytes), 1, MOST_TOGETHER))
        total = values * count
        random = torch.Generator().manual_seed(0)
        base, other = (torch.randn(total, generator=random).mul_(WEIGHT_SCALE) for _ in range(2))
        # Twice a value has the next exponent, and the same sign and mantissa.
        sparse = torch.where(torch.rand(total, generator=random) < SPARSE_RATE, base * 2, base)
        ends = {"unchanged": base, "sparse": sparse, "dense": other}
        self._base = layout.bits(base.to(layout.dtype).to(ranks.device))
        self._ends = {mix: layout.bits(end.to(layout.dtype).to(ranks.device)) for mix, end in ends.items()}
        sizes = [(str(number), values) for number in range(count)]
        plan = GatherPlan.from_sizes(sizes, layout.dtype, settings, "calibration")
        shape = PayloadShape.of(plan, lambda symbols: backend.coder.bound(symbols, layout.exponent_bits))
        workspace = Workspace(ranks.device)
        self._encoder = ShardEncoder(plan, shape, backend, ranks.device, workspace)
        self._decoders = [
            ShardDecoder(rank, plan, shape, backend, ranks.device, workspace) for rank in range(1, ranks.world)
        ]
        self._payload = torch.empty(shape.places.payload_bytes, dtype=torch.uint8, device=ranks.device)
        # A gather writes every rank's part, so none stays in a cache.
        self._out = torch.empty(ranks.world, total, dtype=layout.bits_dtype, device=ranks.device)
        self._encoder.refresh(self._base)
        for decoder in self._decoders:
            decoder.refresh(self._base)
        self._exponent_bytes = layout.exponent_bytes(values) * count
        self._coded: dict[str, float] = {}

    def measure(self, mix: str) -> tuple[float, float]:
        """Seconds to encode and commit one, and to decode one remote segment: means of both ways."""
        encode = decode = 0.0
        for values in (self._ends[mix], self._base):
            made: list[EncodedShard] = []
            encode += self._ranks.timed(partial(self._encode, values, made))
            decode += self._ranks.timed(partial(self._decode, made[0]))
            self._coded[mix] = max(self._coded.get(mix, 0.0), float(made[0].found[:, 3].sum()))
        return encode / 2 / self._count, decode / 2 / self._count / len(self._decoders)

    def measure_copy(self) -> list[float]:
        """Seconds to copy one once."""
        return [self._ranks.timed(lambda: self._out[0].copy_(self._base)) / self._count]

    def coded_ratio(self, mix: str) -> float:
        """Coded bytes over exponent bytes."""
        return self._coded[mix] / self._exponent_bytes

    def _encode(self, values: torch.Tensor, made: list[EncodedShard]) -> None:
        made.append(self._encoder.encode(values, self._payload))
        self._encoder.commit()

    def _decode(self, made: EncodedShard) -> None:
        header = PayloadHeader(0, 0, 0, 0, variable_bytes=made.variable_bytes)
        for place, decoder in enumerate(self._decoders):
            decoder.decode(header, Received(self._payload), self._out[place])
