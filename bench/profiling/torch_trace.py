"""A rank under torch's profiler: a trace of some iterations, and where the rank's clock stands in it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.measure.group import RankGroup
    from bench.suite import Workload

ANCHOR = "bench.clock#"
ANCHORS = 16
"""At either end of the trace. The first ones are slow; the tightest counts."""


@dataclass(frozen=True)
class Anchor:
    """An event of the trace whose beginning lies between two readings of the rank's monotonic clock.

    Attributes:
        name: of the event.
        before_ns, after_ns: ``time.perf_counter_ns`` right before and right after the event began.
    """

    name: str
    before_ns: int
    after_ns: int


def trace_iterations(
    workload: Workload, prepare: Callable[[], None], group: RankGroup, device: str, iterations: int, path: Path
) -> list[Anchor]:
    """Trace so many iterations, each marked as a step, and write them (collective).

    What comes before each (``prepare``, a barrier of the ranks) is in the trace, and outside of the steps.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    with profile(activities=activities) as profiler:
        anchors = _drop_anchors(0)
        # What is new to the profiler is slow the first time, so one iteration goes before the steps.
        for number in range(-1, iterations):
            prepare()
            settle()
            group.barrier()
            with record_function(f"ProfilerStep#{number}") if number >= 0 else nullcontext():
                workload.run()
                settle()
        anchors += _drop_anchors(ANCHORS)
    profiler.export_chrome_trace(str(path))
    return anchors


def _drop_anchors(first: int) -> list[Anchor]:
    from torch.profiler import record_function

    anchors = []
    for number in range(first, first + ANCHORS):
        mark = record_function(f"{ANCHOR}{number}")
        before = time.perf_counter_ns()
        mark.__enter__()  # type: ignore[no-untyped-call]
        after = time.perf_counter_ns()
        mark.__exit__(None, None, None)
        anchors.append(Anchor(f"{ANCHOR}{number}", before, after))
    return anchors
