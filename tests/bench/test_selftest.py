"""The suite ``self``: its cases, and checks that find what they look for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.measure.group import RankGroup
from bench.measure.runner import run_case
from bench.measure.sampling import Sampling
from bench.registry import load_suite
from bench.selftest import SelfSuite, synthetic_rows
from bench.suite import PRESETS, Case, Context, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.suite import Workload

ROWS = 1000
CASES = {
    "loop_overhead": Case({"what": "loop", "rows": 0}),
    "step_overhead": Case({"what": "step", "rows": 0}),
    "seal_seconds": Case({"what": "seal", "rows": ROWS}),
    "query_seconds": Case({"what": "query", "rows": ROWS}),
}


@pytest.fixture
def workload(request: pytest.FixtureRequest) -> Iterator[Workload]:
    """The workload of a metric, after one run."""
    prepared = SelfSuite().setup(CASES[request.param], Context(Site(), RankGroup()))
    prepared.prepare()
    prepared.run()
    yield prepared
    prepared.close()


def test_the_suite_is_found_by_reference() -> None:
    assert isinstance(load_suite("bench.selftest:SelfSuite"), SelfSuite)


def test_the_quick_cases_are_those_of_the_targets() -> None:
    cases = [case.id for case in SelfSuite().cases("quick", {})]
    assert cases == ["rows=0,what=loop", "rows=0,what=step", "rows=100000,what=seal", "rows=1000000,what=query"]


@pytest.mark.parametrize("preset", PRESETS)
def test_cases_differ_and_only_queries_take_a_million_rows(preset: Any) -> None:
    cases = list(SelfSuite().cases(preset, {}))
    assert len({case.id for case in cases}) == len(cases)
    assert {case["what"] for case in cases} == {"loop", "step", "seal", "query"}
    assert all((case["rows"] == 1_000_000) == (case["what"] == "query") for case in cases)


def test_rows_can_be_set() -> None:
    cases = [case.id for case in SelfSuite().cases("quick", {"rows": [50]})]
    assert cases == ["rows=50,what=seal", "rows=50,what=query"]


@pytest.mark.parametrize("metric", CASES)
def test_each_case_gives_its_metric(metric: str) -> None:
    sampling = Sampling(min_time_ns=1, max_time_ns=1, min_samples=1, warmup_time_ns=0, warmup_samples=1)
    (row,) = run_case(SelfSuite(), CASES[metric], Context(Site(), RankGroup()), sampling)
    assert (row.metric, row.status, row.wrong) == (metric, "ok", 0)
    assert row.n >= 1


@pytest.mark.parametrize("workload", ["seal_seconds"], indirect=True)
def test_a_row_that_is_not_as_written_is_wrong(workload: Any) -> None:
    assert workload.check() == 0
    workload._rows[7].samples[3] += 1.0
    workload._rows.pop()
    assert workload.check() == 2


@pytest.mark.parametrize("workload", ["query_seconds"], indirect=True)
def test_a_group_that_is_wrong_missing_or_too_many_is_wrong(workload: Any) -> None:
    assert workload.check() == 0
    assert len(workload._answer) == 16
    workload._answer[0]["value"] *= 1 + 1e-9
    workload._answer[1]["op"] = "all_to_none"
    assert workload.check() == 3


@pytest.mark.parametrize("workload", ["loop_overhead"], indirect=True)
def test_a_loop_that_skips_an_iteration_is_wrong(workload: Any) -> None:
    assert workload.check() == 0
    timed = workload._timed

    def skips_one(calls: Any, prepare: Any, barrier: Any) -> Any:
        return timed([*calls[:5], lambda: None, *calls[6:]], prepare, barrier)

    workload._timed = skips_one
    assert workload.check() > 0


def test_synthetic_rows_are_the_same_for_the_same_seed() -> None:
    first, again, other = (list(synthetic_rows(200, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [row.row_id for row in first if row.status == "failed"] == [99, 199]
    assert all(len(row.samples) == 20 for row in first if row.status == "ok")
    assert [row.metric for row in first[:5]] == ["latency", "algbw", "busbw", "share_of_bound", "latency"]
