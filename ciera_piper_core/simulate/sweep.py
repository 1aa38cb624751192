"""A sweep: every algorithm at every number of ranks and every size, on one machine, over kinds of traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ciera_piper_core.alltoall import REPLAY, ROTATING, TRAFFIC_KINDS, known_traffic
from ciera_piper_core.alltoall.router_trace import MOST_STEPS
from ciera_piper_core.alltoall.traffic import MAX_ROWS
from ciera_piper_core.alltoall.traffic_steps import MOST_ROTATION_STEPS, traffic_steps
from ciera_piper_core.models.wording import shorten
from ciera_piper_core.simulate import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ciera_piper_core.simulate import Algorithm
    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.prediction import Prediction

ROW_BYTES = 64
"""Skewed traffic is dealt out in rows of this size, as in the suite ``alltoall``, so that both mean the same matrix."""

TRAFFIC_TEXTS = (*TRAFFIC_KINDS, ROTATING, f"{REPLAY}FILE")
"""Kinds of traffic, as people may name them."""

MOST_ENTRIES = 1 << 26
"""Entries of the traffic matrices of one exchange, over its steps; more take more than 512 MiB."""


@dataclass(frozen=True)
class Sweep:
    """What is asked.

    Attributes:
        machine: that is predicted.
        ranks: numbers of ranks, one a GPU, on as few nodes as possible.
        sizes: bytes that each rank sends before skew takes effect, its share for itself included.
        algorithms: that are predicted; the flat one is beside them in any case, as what they are compared with.
        traffic: kinds of ``alltoall.traffic_steps``. One of several steps (a hot spot that moves, a trace) counts
            with its median step, as a measured median does.
        seed: which ranks are hot or idle.

    Raises:
        ValueError: nothing is asked, a number is out of range, or a name is unknown or twice.
    """

    machine: Machine
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    traffic: tuple[str, ...] = ("uniform",)
    seed: int = 0

    def __post_init__(self) -> None:
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                raise ValueError(f"unknown algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}")
        for kind in self.traffic:
            if not known_traffic(kind):
                raise ValueError(f"unknown traffic {shorten(kind)!r}; known: {', '.join(TRAFFIC_TEXTS)}")
        for name in ("ranks", "sizes", "algorithms", "traffic"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"a sweep needs one or more {name}, each once, not {', '.join(map(str, values))}")
        if min(self.ranks) < 1 or min(self.sizes) < 1:
            raise ValueError("a sweep needs at least 1 rank and 1 byte")

    @property
    def cells(self) -> int:
        """Number of exchanges: ranks times sizes times kinds of traffic."""
        return len(self.ranks) * len(self.sizes) * len(self.traffic)


@dataclass(frozen=True)
class Point:
    """One algorithm on one exchange.

    Attributes:
        algorithm, ranks, nodes, size, traffic: which one it is.
        prediction: of it; None if there is none. reason: why not; empty if there is one.
        flat_s: seconds of the flat algorithm on the same exchange; None likewise.
        largest_bytes: the most that any rank sends or receives, S of the bandwidths.
    """

    algorithm: Algorithm
    ranks: int
    nodes: int
    size: int
    traffic: str
    prediction: Prediction | None = None
    reason: str = ""
    flat_s: float | None = None
    largest_bytes: int = 0

    @property
    def speedup(self) -> float | None:
        """Of the algorithm over the flat one; above 1 is faster."""
        if self.prediction is None or self.flat_s is None:
            return None
        return self.flat_s / self.prediction.seconds

    @property
    def bottleneck_share(self) -> float:
        """Of the predicted time, what goes to its bottleneck, from 0 to 1."""
        assert self.prediction is not None, "a point without prediction has no bottleneck"
        return self.prediction.parts.get(self.prediction.bottleneck, 0.0) / self.prediction.seconds


def predict_sweep(sweep: Sweep, progress: Callable[[str], None] = lambda text: None) -> list[Point]:
    """All points: by traffic, then ranks, then size, then algorithm.

    Exchanges that cannot be (a single rank, more than the machine has, less than a row for each) are
    points with a reason.

    Args:
        progress: told what comes next.

    Raises:
        ValueError: not one exchange of the sweep can be; the message has the first reason.
    """
    points: list[Point] = []
    for traffic in sweep.traffic:
        for ranks in sweep.ranks:
            progress(f"{traffic} traffic, {ranks} GPUs")
            predict = _uniform if traffic == "uniform" else _skewed
            points += predict(sweep, traffic, ranks, progress)
    if not any(point.prediction for point in points):
        raise ValueError(f"nothing can be predicted: {points[0].reason}")
    return points


def machine_reason(sweep: Sweep, ranks: int) -> str:
    """Why the machine cannot have an exchange of so many ranks; empty if it can."""
    if ranks < 2:
        return "an all-to-all needs at least 2 ranks"
    try:
        sweep.machine.job(ranks)
    except ValueError as error:
        return str(error)
    return ""


def size_reason(traffic: str, ranks: int, size: int) -> str:
    """Why there is no exchange of that size; empty if there is one."""
    if traffic == "uniform":
        return "" if size >= ranks else f"{size} bytes give {ranks} ranks less than a byte each"
    if traffic == "idle_rank" and ranks <= 2:
        return "without one of two ranks, nobody is left to talk to"
    steps = MOST_ROTATION_STEPS if traffic == ROTATING else MOST_STEPS if traffic.startswith(REPLAY) else 1
    if ranks > (most := math.isqrt(MOST_ENTRIES // steps)):
        return f"matrices of {traffic} traffic have at most {most} ranks; uniform traffic has no such limit"
    if size % ROW_BYTES:
        return f"{size} bytes are no whole rows of {ROW_BYTES} bytes, in which {traffic} traffic is dealt out"
    if size < ranks * ROW_BYTES:
        return f"{size} bytes give {ranks} ranks less than a row of {ROW_BYTES} bytes each"
    if size > MAX_ROWS * ROW_BYTES:
        return f"{size} bytes a rank are more than can be dealt out exactly, {MAX_ROWS * ROW_BYTES}"
    return ""


def _with_flat(sweep: Sweep) -> tuple[Algorithm, ...]:
    return tuple(dict.fromkeys(("flat", *sweep.algorithms)))


def _points(
    sweep: Sweep,
    traffic: str,
    ranks: int,
    size: int,
    nodes: int,
    found: dict[Algorithm, Prediction],
    largest: int,
) -> Iterator[Point]:
    for algorithm in sweep.algorithms:
        yield Point(algorithm, ranks, nodes, size, traffic, found[algorithm], "", found["flat"].seconds, largest)


def _refused(sweep: Sweep, traffic: str, ranks: int, size: int, reason: str) -> Iterator[Point]:
    nodes = -(-ranks // sweep.machine.node.gpus)
    for algorithm in sweep.algorithms:
        yield Point(algorithm, ranks, nodes, size, traffic, reason=reason)


def _uniform(sweep: Sweep, traffic: str, ranks: int, progress: Callable[[str], None]) -> Iterator[Point]:
    from ciera_piper_core.simulate.closed_form import UniformModel

    unplaced = machine_reason(sweep, ranks)
    models = {} if unplaced else {name: UniformModel.build(sweep.machine, name, ranks) for name in _with_flat(sweep)}
    for size in sweep.sizes:
        if reason := unplaced or size_reason(traffic, ranks, size):
            yield from _refused(sweep, traffic, ranks, size, reason)
            continue
        found = {name: model.prediction(size) for name, model in models.items()}
        yield from _points(sweep, traffic, ranks, size, found["flat"].nodes, found, size)


def _skewed(sweep: Sweep, traffic: str, ranks: int, progress: Callable[[str], None]) -> Iterator[Point]:
    from ciera_piper_core.simulate.flows import schedule
    from ciera_piper_core.simulate.fluid import predict

    unplaced = machine_reason(sweep, ranks)
    for size in sweep.sizes:
        if reason := unplaced or size_reason(traffic, ranks, size):
            yield from _refused(sweep, traffic, ranks, size, reason)
            continue
        job = sweep.machine.job(ranks)
        try:
            matrices = traffic_steps(traffic, ranks, size // ROW_BYTES, sweep.seed) * ROW_BYTES
        except ValueError as error:
            # A trace that is not there, or one of fewer experts than ranks.
            yield from _refused(sweep, traffic, ranks, size, str(error))
            continue
        largest = int(max(matrices.sum(axis=1).max(), matrices.sum(axis=2).max()))
        found = {}
        for name in _with_flat(sweep):
            progress(f"{traffic} traffic, {ranks} GPUs, {size} bytes, {name}")
            steps = [predict(sweep.machine, schedule(name, job, matrix)) for matrix in matrices]
            found[name] = sorted(steps, key=lambda step: step.seconds)[(len(steps) - 1) // 2]
        yield from _points(sweep, traffic, ranks, size, job.nodes, found, largest)
