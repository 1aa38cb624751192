"""Times of the regions that the measured code marks, as rows of their own, so that a slowdown names its phase.

They are recorded in iterations of their own, after the timed ones: what recording costs is in no
other metric, and nothing is imported or called while it is off. Who marks regions is found through
the entry points ``bench.range_recorders``, so this package knows none of them. Each loads to a
function ``record(settle)`` that gives a context manager, and that a list, which fills with spans
while it is open; a span has ``name``, ``start_ns`` and ``end_ns`` (of ``time.perf_counter_ns``), and
``settle`` is to be called at both edges of a region before the clock is read, or None.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bench.definitions import RANGE_TIME
from bench.errors import UsageError
from bench.store.row import Row, utc_now
from bench.suite import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from bench.measure.group import RankGroup
    from bench.measure.sampling import Sampling, Timing
    from bench.suite import Case, Site, Suite, Workload

RECORDER_GROUP = "bench.range_recorders"
METRIC = "range_time"
LEAST_ITERATIONS, MOST_ITERATIONS = 3, 100
MOST_RANGES = 200
"""More names than this are no phases: a name then holds what belongs into a parameter."""
SIGNIFICANT_DIGITS = 7


class Span(Protocol):
    """A region as a recorder saw it; nanoseconds of ``time.perf_counter_ns``."""

    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


def recorders() -> list[Callable[[Callable[[], None] | None], AbstractContextManager[Sequence[Span]]]]:
    """The recorders of all installed packages.

    Raises:
        UsageError: one cannot be loaded; the message says which and why.
    """
    found = []
    for entry in sorted(entry_points(group=RECORDER_GROUP), key=lambda entry: entry.name):
        try:
            found.append(entry.load())
        except Exception as error:
            raise UsageError(f"range recorder {entry.name!r} ({entry.value}) cannot be loaded: {error!r}") from error
    return found


def iterations_for(timing: Timing, sampling: Sampling) -> int:
    """How many iterations to record: as many as fill the least time, the same on every rank.

    At least as many as the least number of samples, unless those would outlast the most time.
    """
    iteration_ns = max(1.0, float(np.median(timing.seconds.max(axis=0))) * 1e9)
    most = max(LEAST_ITERATIONS, min(MOST_ITERATIONS, math.floor(sampling.max_time_ns / iteration_ns)))
    wanted = max(sampling.min_samples, math.ceil(sampling.min_time_ns / iteration_ns))
    return min(wanted, most)


def record_ranges(
    workload: Workload, prepare: Callable[[], None], group: RankGroup, device: str, iterations: int
) -> dict[str, NDArray[np.float64]]:
    """Run so many iterations with the recorders open (collective).

    Returns:
        by name of each range that any rank has, what each rank spent in it in each iteration:
        microseconds, shape ``(world, iterations)``. A rank or an iteration without it has zeros.
    """
    found = recorders()
    settle = _settle_of(device)
    mine: list[dict[str, float]] = []
    for _ in range(iterations):
        prepare()
        if settle:
            settle()
        group.barrier()
        with ExitStack() as stack:
            seen = [stack.enter_context(recorder(settle)) for recorder in found]
            workload.run()
            if settle:
                settle()
        mine.append(_spent_us(span for spans in seen for span in spans))
    everyone = group.gather_objects(mine)
    names = sorted({name for rank in everyone for iteration in rank for name in iteration})
    return {
        name: np.array([[iteration.get(name, 0.0) for iteration in rank] for rank in everyone], dtype=np.float64)
        for name in names
    }


def range_rows(
    suite: Suite, case: Case, site: Site, spent: dict[str, NDArray[np.float64]], stop_reason: str = ""
) -> list[Row]:
    """A row for each range, in the order of their time: the slowest rank's, iteration by iteration.

    Args:
        case: as placed (``bench.measure.runner.placed_case``).
        spent: as ``record_ranges`` gives it.
        stop_reason: of the case's sampling.

    Raises:
        ValueError: the case has a parameter ``range`` already, or there are too many ranges.
    """
    if len(spent) > MOST_RANGES:
        raise ValueError(
            f"{len(spent)} names of ranges in {suite.name}; names must be constant, and at most {MOST_RANGES}"
        )
    rows = []
    for name, by_rank in spent.items():
        metric = Metric(METRIC, RANGE_TIME, {"range": name})
        placed = metric.case_of(case)
        slowest, medians = by_rank.max(axis=0), np.median(by_rank, axis=1)
        rows.append(
            Row(
                run_id="",
                row_id=-1,
                suite=suite.name,
                method_version=suite.method_version,
                case=placed.id,
                params=dict(placed.params),
                metric=METRIC,
                unit=metric.unit,
                better=metric.better,
                definition=metric.definition.id,
                value=_rounded(float(np.median(slowest))),
                n=len(slowest),
                samples=[_rounded(float(us)) for us in slowest],
                rank_min=_rounded(float(medians.min())),
                rank_median=_rounded(float(np.median(medians))),
                rank_max=_rounded(float(medians.max())),
                slowest_rank=int(medians.argmax()),
                stop_reason=stop_reason,
                seed=site.seed,
                started_at=utc_now(),
            )
        )
    return sorted(rows, key=lambda row: -(row.value or 0.0))


def _spent_us(spans: Iterable[Span]) -> dict[str, float]:
    """Microseconds in which each range was open: what overlaps (threads, recursion) counts once."""
    by_name: dict[str, list[tuple[int, int]]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append((span.start_ns, span.end_ns))
    spent = {}
    for name, pairs in by_name.items():
        total, reached = 0, 0
        for start, end in sorted(pairs):
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        spent[name] = total / 1000
    return spent


def _settle_of(device: str) -> Callable[[], None] | None:
    """What a range waits for at its edges: on a GPU the device, so that it is charged with its own kernels."""
    if device != "cuda":
        return None
    import torch

    return torch.cuda.synchronize


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
