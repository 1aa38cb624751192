"""Marked ranges become rows: in iterations of their own, over ranks, and never in another metric."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.definitions import LATENCY
from bench.errors import UsageError
from bench.measure import regions
from bench.measure.group import RankGroup
from bench.measure.rounds import pool
from bench.measure.runner import run_case
from bench.measure.sampling import Sampling, StopReason, Timing
from bench.suite import Case, Context, Metric, Site, Suite, Workload
from tests.gloo_world import run_world
from tests.program import ROOT, environment, json_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SAMPLING = Sampling(min_time_ns=5_000_000, max_time_ns=50_000_000, warmup_time_ns=1, ranges=True)


@dataclass
class Seen:
    name: str
    start_ns: int
    end_ns: int


class Marks:
    """A library that marks ranges, and its recorder."""

    def __init__(self) -> None:
        self.open: list[list[Seen]] = []
        self.settled = 0
        self.recordings = 0

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        for spans in self.open:
            spans.append(Seen(name, start, time.perf_counter_ns()))

    @contextmanager
    def record(self, settle: Callable[[], None] | None = None) -> Iterator[list[Seen]]:
        self.recordings += 1
        spans: list[Seen] = []
        self.open.append(spans)
        yield spans
        self.open.remove(spans)


class MarkedSuite(Suite):
    """Half a millisecond in one range, twice a tenth in another; rank 1 takes ten times as long in the latter."""

    name = "marked"
    summary = "for tests"
    method_version = 2
    metrics = (Metric("latency", LATENCY),)
    axes = ()
    presets = {"quick": {}, "standard": {}, "full": {}}

    def __init__(self, marks: Marks, wrong: int = 0) -> None:
        self.marks, self.wrong = marks, wrong

    def setup(self, case: Case, context: Context) -> Workload:
        marks, wrong, factor = self.marks, self.wrong, 10 if context.site.rank == 1 else 1

        class Marked(Workload):
            def run(self) -> None:
                with marks.range("long"):
                    time.sleep(0.0005)
                for _ in range(2):
                    with marks.range("short"):
                        time.sleep(0.0001 * factor)

            def check(self) -> int:
                return wrong

        return Marked()


def context() -> Context:
    return Context(Site(), RankGroup())


def measured(marks: Marks, monkeypatch: pytest.MonkeyPatch, sampling: Sampling = SAMPLING, **more: Any) -> list[Any]:
    monkeypatch.setattr(regions, "recorders", lambda: [marks.record])
    return run_case(MarkedSuite(marks, **more), Case({"size": 4}), context(), sampling)


def test_a_row_a_range_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    latency, long, short = measured(Marks(), monkeypatch)
    assert (latency.metric, long.metric, short.metric) == ("latency", "range_time", "range_time")
    assert long.case == "device=cpu,range=long,size=4"
    assert (long.unit, long.better, long.definition, long.method_version) == ("us", "lower", "duration/range-v1", 2)
    assert (long.status, long.wrong, long.n, len(long.samples)) == ("ok", 0, 10, 10)
    # Calls of one range in one iteration are added.
    assert 200 < short.value < long.value < latency.value
    assert long.stop_reason == latency.stop_reason


def test_off_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks()
    off = Sampling(min_time_ns=5_000_000, max_time_ns=50_000_000, warmup_time_ns=1)
    assert [row.metric for row in measured(marks, monkeypatch, off)] == ["latency"]
    assert marks.recordings == 0


def test_nothing_is_recorded_in_timed_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks()
    latency, long, _ = measured(marks, monkeypatch)
    assert marks.recordings == long.n
    assert latency.n >= 10


def test_ranges_of_a_wrong_result_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(Marks(), monkeypatch, wrong=3)
    assert {(row.status, row.reason, row.value) for row in rows} == {
        ("failed", "3 wrong element(s), on rank(s) 0", None)
    }
    assert len(rows) == 3


def _ranges_of_two_ranks(context: Context) -> list[Any]:
    marks = Marks()
    regions.recorders = lambda: [marks.record]  # type: ignore[assignment]
    return run_case(MarkedSuite(marks), Case({}), context, SAMPLING)


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    everyone = run_world(2, _ranges_of_two_ranks, tmp_path)
    for rows in everyone:
        by_name = {row.params.get("range"): row for row in rows}
        short = by_name["short"]
        assert short.slowest_rank == 1
        assert short.rank_min < short.rank_max / 3
        assert short.value == pytest.approx(short.rank_max, rel=0.3)
        assert len(short.samples) == by_name["long"].n
    assert [row.samples for row in everyone[0][1:]] == [row.samples for row in everyone[1][1:]]


def test_overlapping_spans_of_a_name_count_once() -> None:
    spans = [Seen("a", 0, 10_000), Seen("a", 2_000, 5_000), Seen("a", 8_000, 12_000), Seen("b", 0, 1_000)]
    assert regions._spent_us(spans) == {"a": 12.0, "b": 1.0}


@pytest.mark.parametrize(
    ("iteration_s", "expected"), [(1e-6, 100), (1e-3, 10), (2e-4, 25), (0.004, 10), (0.02, 3), (10.0, 3)]
)
def test_iterations_fit_the_time(iteration_s: float, expected: int) -> None:
    timing = Timing(np.full((2, 5), iteration_s), np.zeros((2, 5)), 3, StopReason.CONVERGED)
    assert regions.iterations_for(timing, SAMPLING) == expected


def test_bad_names_are_refused() -> None:
    site = Site()
    spent = {f"token {i}": np.ones((1, 3)) for i in range(regions.MOST_RANGES + 1)}
    with pytest.raises(ValueError, match="must be constant"):
        regions.range_rows(MarkedSuite(Marks()), Case({}), site, spent)
    with pytest.raises(ValueError, match="range, which its case has already"):
        regions.range_rows(MarkedSuite(Marks()), Case({"range": "x"}), site, {"a": np.ones((1, 3))})


def test_a_recorder_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    entry = EntryPoint("theirs", "no.such.module:record", regions.RECORDER_GROUP)
    monkeypatch.setattr(regions, "entry_points", lambda group: [entry])
    with pytest.raises(UsageError, match="range recorder 'theirs'"):
        regions.recorders()


def test_rounds_pool_ranges_that_one_of_them_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = measured(Marks(), monkeypatch), measured(Marks(), monkeypatch)
    pooled = pool([first, second[:2]])
    assert [(row.metric, row.params.get("range"), row.rounds) for row in pooled] == [
        ("latency", None, [first[0].n, second[0].n]),
        ("range_time", "long", [10, 10]),
        ("range_time", "short", [10]),
    ]


def test_the_projects_own_ranges_are_found_in_a_run(tmp_path: Path) -> None:
    """Through the entry point of the project, by the real program and its worker processes."""
    package = tmp_path / "site" / "recorder-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[bench.range_recorders]\nregions = ciera_piper_core.ranges:recording\n")
    code = (
        "from pathlib import Path\nfrom bench.session import Listener, execute\nfrom bench.sweep import Request\n"
        "if __name__ == '__main__':\n"
        "    asked = Request(('expert_gemm',), overrides=('tokens=8', 'distribution=uniform', 'model=olmoe-1b-7b',"
        " 'method=looped'), ranges=True, max_time_s=0.2)\n"
        "    for row in execute(asked, Path('store'), Listener(), ['run']).rows:\n        print(row.to_json())\n"
    )
    (tmp_path / "call.py").write_text(code)
    path = os.pathsep.join((str(ROOT), str(tmp_path / "site")))
    done = subprocess.run(
        [sys.executable, "call.py"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json_lines(done.stdout)
    assert {row["params"].get("range") for row in rows} == {None, "experts.up", "experts.down"}
    assert {row["status"] for row in rows} == {"ok"}
