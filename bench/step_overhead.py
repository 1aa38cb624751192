"""What the harness adds to a real iteration: its timed loop around a training step against a bare loop around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.definitions import Definition, define
from bench.suite import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Suite

STEP_OVERHEAD = define(
    Definition(
        "overhead/share-of-a-step-v1",
        "ratio",
        "lower",
        "Time of the harness's timed loop around training steps (suite end_to_end, one process, the plain system), "
        "less that of a bare for loop that fetches the same batches and takes steps of the same system, over the "
        "latter. Both run by turns, eight steps a sample each. Below 0 where the difference is less than the noise.",
    )
)
SUITE = "end_to_end"
STEPS = 4
"""In a row: bare, then twice as many timed, then bare."""


class StepOverhead(Workload):
    """A run is one sample of the overhead. It works with any workload; what is reported is that of a training step.

    Args:
        suite, case: whose iterations are run.
    """

    def __init__(self, suite: Suite, case: Case, context: Context) -> None:
        from bench.measure.clock import loop_for
        from bench.measure.progress import Progress
        from bench.measure.runner import counted

        self._context = context
        self._inner = suite.setup(case, context)
        self._timed = loop_for(context.site.device)
        self._prepare = counted(self._inner.prepare, Progress())
        self._shares: list[float] = []

    def run(self) -> None:
        # By turns: what the machine does slowly is in both.
        before, timed, after = self._bare_ns(), self._timed_ns(2 * STEPS), self._bare_ns()
        bare = before + after
        self._shares.append((timed - bare) / bare)
        self._context.alive()

    def observations(self) -> Mapping[str, Sequence[float]]:
        return {"step_overhead": self._shares}

    def check(self) -> int | None:
        """What the iterations themselves got wrong."""
        return self._inner.check()

    def close(self) -> None:
        self._inner.close()

    def _timed_ns(self, steps: int) -> int:
        start = time.perf_counter_ns()
        self._timed([self._inner.run] * steps, self._prepare, self._context.group.barrier)
        return time.perf_counter_ns() - start

    def _bare_ns(self) -> int:
        prepare, run = self._inner.prepare, self._inner.run
        start = time.perf_counter_ns()
        for _ in range(STEPS):
            prepare()
            run()
        return time.perf_counter_ns() - start
