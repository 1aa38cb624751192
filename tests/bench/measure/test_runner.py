"""A case becomes rows: values, checks, and everything that makes a value no measurement."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from bench.definitions import ALGBW, LATENCY, SHARE_OF_BOUND, Ceiling, Definition, Work
from bench.measure.group import RankGroup
from bench.measure.progress import Progress
from bench.measure.runner import placed_case, run_case, unmeasured_rows
from bench.measure.sampling import Sampling
from bench.suite import Axis, Case, Context, Metric, Site, Suite, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.store.row import Row

SAMPLING = Sampling(min_time_ns=2_000_000, max_time_ns=20_000_000, warmup_time_ns=1)
OBSERVED = Definition("observed/test-v1", "count", "lower", "what the workload says")


@dataclass
class Plan:
    """How the workload of a test behaves."""

    work: Work = field(default_factory=lambda: Work(bytes=10**6, bound_seconds=1e-4))
    run: Callable[[], None] = lambda: time.sleep(0.001)
    wrong: int = 0
    observed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    skip: str | None = None
    memory_bytes: int = 0
    calls: list[str] = field(default_factory=list)


class PlannedSuite(Suite):
    """One case, whose behaviour the test plans."""

    name = "planned"
    summary = "for tests"
    method_version = 3
    metrics = (
        Metric("latency", LATENCY),
        Metric("algbw", ALGBW),
        Metric("share_of_bound", SHARE_OF_BOUND),
        Metric("steps", OBSERVED),
    )
    axes = (Axis("bytes", "bytes", "size"),)
    presets = {preset: {"bytes": [64]} for preset in ("quick", "standard", "full")}

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def setup(self, case: Case, context: Context) -> Workload:
        return PlannedWorkload(self.plan)

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return self.plan.skip

    def memory_bytes(self, case: Case) -> int:
        return self.plan.memory_bytes


class PlannedWorkload(Workload):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.work = plan.work

    def run(self) -> None:
        self.plan.run()

    def check(self) -> int:
        self.plan.calls.append("check")
        return self.plan.wrong

    def observations(self) -> Mapping[str, Sequence[float]]:
        return self.plan.observed

    def close(self) -> None:
        self.plan.calls.append("close")


def measure(plan: Plan, site: Site | None = None, distributed: bool = False) -> dict[str, Row]:
    suite = PlannedSuite(plan)
    suite.distributed = distributed  # type: ignore[misc]
    rows = run_case(suite, Case({"bytes": 64}), Context(site or Site(seed=5), RankGroup()), SAMPLING)
    return {row.metric: row for row in rows}


def test_every_metric_is_a_row_of_the_same_samples() -> None:
    rows = measure(Plan(observed={"steps": [3, 4, 8]}))
    latency, algbw = rows["latency"], rows["algbw"]
    assert latency.value is not None
    assert algbw.value is not None
    assert 1000 <= latency.value < 100_000
    assert algbw.value == pytest.approx(1e6 / (latency.value * 1e-6) / 1e9, rel=1e-5)
    assert len(latency.samples) == latency.n == len(algbw.samples) >= 2
    assert (latency.unit, latency.better, latency.definition) == ("us", "lower", LATENCY.id)
    assert (latency.wrong, latency.method_version, latency.seed, latency.slowest_rank) == (0, 3, 5, 0)
    assert latency.rank_min == latency.rank_max == pytest.approx(latency.value, rel=1e-5)
    assert rows["share_of_bound"].value == pytest.approx(100 / latency.value, rel=1e-5)
    assert (rows["steps"].value, rows["steps"].samples) == (4, [3, 4, 8])
    assert latency.started_at < "3000"


def test_wrong_elements_are_a_failure_and_never_a_number() -> None:
    plan = Plan(wrong=7, observed={"steps": [1]})
    rows = measure(plan)
    assert {row.status for row in rows.values()} == {"failed"}
    assert {row.value for row in rows.values()} == {None}
    assert rows["latency"].reason == "7 wrong element(s), on rank(s) 0"
    assert rows["latency"].wrong == 7
    assert plan.calls == ["check", "close"]


def test_what_the_hardware_cannot_do_is_invalid() -> None:
    work = Work(bytes=10**15, ceilings={"algbw": Ceiling(600, "the fabric's own rate")})
    rows = measure(Plan(work=work, observed={"steps": [1]}))
    # All metrics of a case follow from the same time, so a time that cannot be right is right for none.
    for row in rows.values():
        assert (row.status, row.value, row.samples) == ("invalid", None, [])
        assert "algbw of" in row.reason
        assert "600 possible here (the fabric's own rate)" in row.reason


def test_an_unknown_bound_is_skipped_with_its_reason() -> None:
    rows = measure(Plan(work=Work(bytes=1)))
    assert (rows["share_of_bound"].status, rows["steps"].status) == ("skipped", "skipped")
    assert "not known" in rows["share_of_bound"].reason


def test_a_multi_rank_suite_in_a_world_of_one_measured_nothing() -> None:
    rows = measure(Plan(observed={"steps": [1]}), distributed=True)
    assert {row.status for row in rows.values()} == {"invalid"}


def test_cases_that_cannot_run_here_are_skipped_before_setup() -> None:
    for plan, words in ((Plan(skip="needs a GPU"), "needs a GPU"), (Plan(memory_bytes=1 << 60), "1048576TiB")):
        rows = measure(plan)
        assert {row.status for row in rows.values()} == {"skipped"}
        assert words in rows["latency"].reason
        assert plan.calls == []


def test_the_workload_is_closed_whatever_happens() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    plan = Plan(run=fail)
    with pytest.raises(RuntimeError):
        measure(plan)
    assert plan.calls == ["close"]


def test_progress_tells_the_phase_and_counts_iterations() -> None:
    progress = Progress()
    seen = set()
    plan = Plan(run=lambda: seen.add((progress.phase, progress.iteration > 0)), observed={"steps": [1]})
    run_case(PlannedSuite(plan), Case({"bytes": 64}), Context(Site(), RankGroup()), SAMPLING, progress)
    assert seen == {("measure", True)}
    assert progress.phase == "done"


def test_the_place_is_part_of_a_multi_rank_case() -> None:
    suite = PlannedSuite(Plan())
    assert placed_case(suite, Case({"bytes": 1}), Site()).id == "bytes=1,device=cpu"
    suite.distributed = True  # type: ignore[misc]
    lab = Site(nodes=2, scope="lab", lab="nodes=2,ranks-per-node=1,rate=1gbit")
    assert placed_case(suite, Case({"bytes": 1}), lab).params == {
        "bytes": 1,
        "device": "cpu",
        "nodes": 2,
        "scope": "lab",
        "backend": "gloo",
        "lab": lab.lab,
    }
    rows = unmeasured_rows(suite, Case({"bytes": 1}), lab, "timeout", "rank 1 hangs")
    assert {(row.status, row.reason, row.value) for row in rows} == {("timeout", "rank 1 hangs", None)}
    assert [row.metric for row in rows] == [metric.name for metric in suite.metrics]


def test_values_are_kept_to_seven_digits_and_finite() -> None:
    rows = measure(Plan(observed={"steps": [math.pi]}))
    assert rows["steps"].value == 3.141593
    assert all(len(f"{sample:.10g}".replace(".", "")) <= 10 for sample in rows["latency"].samples)
