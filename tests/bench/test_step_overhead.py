"""The harness around a real iteration: what its loop adds shows, and what both loops do does not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bench.measure.group import RankGroup
from bench.step_overhead import STEPS, StepOverhead
from bench.suite import Case, Context, Site, Workload

PREPARED_S, RUN_S = 0.004, 0.006


class _Sleeps(Workload):
    """An iteration that takes a known time, as does what comes before it."""

    prepared = runs = 0
    closed = False

    def prepare(self) -> None:
        self.prepared += 1
        time.sleep(PREPARED_S)

    def run(self) -> None:
        self.runs += 1
        time.sleep(RUN_S)

    def check(self) -> int:
        return 3

    def close(self) -> None:
        self.closed = True


class _Suite:
    def setup(self, case: Case, context: Context) -> Workload:
        return _Sleeps()


@pytest.fixture
def overhead() -> StepOverhead:
    """Around iterations of 10 ms."""
    suite: Any = _Suite()
    return StepOverhead(suite, Case({}), Context(Site(), RankGroup()))


def test_both_loops_take_as_many_prepared_steps(overhead: Any) -> None:
    overhead.run()
    inner = overhead._inner
    assert (inner.prepared, inner.runs) == (4 * STEPS, 4 * STEPS)
    assert overhead.check() == 3
    overhead.close()
    assert inner.closed


def test_what_the_loop_adds_is_its_share_of_the_bare_one(overhead: Any) -> None:
    timed = overhead._timed

    def as_long_again(calls: Any, prepare: Any, barrier: Any) -> Any:
        time.sleep(len(calls) * (PREPARED_S + RUN_S))
        return timed(calls, prepare, barrier)

    overhead.run()
    overhead._timed = as_long_again
    overhead.run()
    usual, doubled = overhead.observations()["step_overhead"]
    assert usual < 0.5
    assert doubled == pytest.approx(1.0, abs=0.5)
