"""A case becomes rows: values, checks, and everything that makes a value no measurement."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.definitions import ALGBW, LATENCY, SHARE_OF_BOUND, Ceiling, Definition, Work
from bench.measure import runner
from bench.measure.group import RankGroup
from bench.measure.progress import Progress
from bench.measure.runner import placed_case, run_case, unmeasured_rows
from bench.measure.sampling import Sampling, StopReason, Timing
from bench.suite import Axis, Case, Context, Metric, Site, Suite, Workload
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.store.row import Row

SAMPLING = Sampling(min_time_ns=2_000_000, max_time_ns=20_000_000, warmup_time_ns=1)
OBSERVED = Definition("observed/test-v1", "count", "lower", "what the workload says")
SPEEDUP = Definition(
    "speedup/test-v1",
    "ratio",
    "higher",
    "the baseline's time over run's",
    against_baseline=lambda seconds, baseline_seconds, work: baseline_seconds / seconds,
)


@dataclass
class Plan:
    """How the workload of a test behaves."""

    work: Work = field(default_factory=lambda: Work(bytes=10**6, bound_seconds=1e-4))
    run: Callable[[], None] = lambda: time.sleep(0.001)
    wrong: int | None = 0
    observed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    skip: str | None = None
    memory_bytes: int = 0
    metrics: tuple[Metric, ...] = ()
    baseline: Callable[[], None] | None = None
    setup: Callable[[Context], None] = lambda context: None
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
    axes = (Axis("bytes", "bytes", "size", minimum=1),)
    presets = {preset: {"bytes": [64]} for preset in ("quick", "standard", "full")}

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def setup(self, case: Case, context: Context) -> Workload:
        self.plan.setup(context)
        return PlannedWorkload(self.plan)

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        return self.plan.metrics or self.metrics

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return self.plan.skip

    def memory_bytes(self, case: Case, site: Site) -> int:
        return self.plan.memory_bytes


class PlannedWorkload(Workload):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.work = plan.work
        self.baseline = plan.baseline

    def run(self) -> None:
        self.plan.run()

    def check(self) -> int | None:
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
    return {row.metric if row.case == rows[0].case else f"{row.metric} {row.case}": row for row in rows}


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


def test_what_no_oracle_could_check_says_so() -> None:
    rows = measure(Plan(wrong=None, observed={"steps": [1]}))
    assert {(row.status, row.wrong) for row in rows.values()} == {("ok", None)}


def test_one_rank_without_an_oracle_hides_nothing_that_another_found(tmp_path: Path) -> None:
    def body(context: Context) -> list[tuple[str, int | None]]:
        found = []
        for by_rank in ((None, 3), (None, 0)):
            plan = Plan(wrong=by_rank[context.group.rank], observed={"steps": [1]})
            rows = run_case(PlannedSuite(plan), Case({"bytes": 64}), context, SAMPLING)
            found.append((rows[0].reason, rows[0].wrong))
        return found

    assert run_world(2, body, tmp_path)[0] == [("3 wrong element(s), on rank(s) 1", 3), ("", None)]


def test_what_the_hardware_cannot_do_is_invalid() -> None:
    work = Work(bytes=10**15, ceilings={"algbw": Ceiling(600, "the fabric's own rate")})
    rows = measure(Plan(work=work, observed={"steps": [1]}))
    # All metrics of a case follow from the same time, so a time that cannot be right is right for none.
    for row in rows.values():
        assert (row.status, row.value, row.samples) == ("invalid", None, [])
        assert "algbw of" in row.reason
        assert "600 possible here (the fabric's own rate)" in row.reason


def test_an_unknown_bound_is_skipped_with_its_reason() -> None:
    rows = measure(Plan(work=Work(bytes=1), observed={"steps": [1]}))
    assert [rows[name].status for name in ("latency", "share_of_bound", "steps")] == ["ok", "skipped", "ok"]
    assert rows["share_of_bound"].reason == "share_of_bound is not known for this case here"
    assert (rows["share_of_bound"].samples, rows["share_of_bound"].rank_max) == ([], None)


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        ({}, "the workload gave no sample of steps"),
        ({"stepz": [1]}, "the workload gave no sample of steps"),
        ({"steps": []}, "the workload gave no sample of steps"),
        ({"steps": [1, math.inf]}, "the workload gave inf as a sample of steps"),
        ({"steps": [math.nan, 1]}, "the workload gave nan as a sample of steps"),
    ],
)
def test_an_observed_metric_without_numbers_fails(observed: Mapping[str, Sequence[float]], reason: str) -> None:
    rows = measure(Plan(observed=observed))
    assert (rows["steps"].status, rows["steps"].reason, rows["steps"].value) == ("failed", reason, None)
    # What the clock measured is no worse for it.
    assert rows["latency"].status == "ok"


def test_a_definition_that_gives_no_number_fails() -> None:
    for wrong in (math.nan, -math.inf):
        broken = Definition("broken/test-v1", "count", "lower", "no number", lambda seconds, work, wrong=wrong: wrong)  # type: ignore[misc]
        row = measure(Plan(metrics=(Metric("broken", broken),)))["broken"]
        assert (row.status, row.reason) == ("failed", f"broken/test-v1 gives {wrong} for this workload")


def timing_of(seconds: Sequence[Sequence[float]]) -> Timing:
    durations = np.array(seconds)
    return Timing(durations, np.zeros_like(durations), 3, StopReason.CONVERGED)


@pytest.mark.parametrize("seconds", [[[1, 0, 1]], [[1, 1, 1], [0, 0, 1]]], ids=["an iteration", "a rank's median"])
def test_what_the_clock_cannot_tell_is_invalid(
    seconds: Sequence[Sequence[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "sample", lambda *_: timing_of(seconds))
    rows = measure(Plan(observed={"steps": [1]}))
    assert {(row.status, row.reason) for row in rows.values()} == {
        ("invalid", "an iteration was shorter than the clock can tell")
    }


def test_a_metric_against_a_baseline_has_a_sample_an_iteration() -> None:
    plan = Plan(
        run=lambda: time.sleep(0.001),
        baseline=lambda: time.sleep(0.004),
        metrics=(Metric("latency", LATENCY), Metric("speedup", SPEEDUP)),
    )
    rows = measure(plan)
    latency, speedup = rows["latency"], rows["speedup"]
    assert (latency.status, speedup.status) == ("ok", "ok")
    assert latency.value is not None
    assert speedup.value is not None
    assert latency.value < 4000
    assert speedup.value > 1
    assert speedup.n == len(speedup.samples) == latency.n
    assert speedup.rank_min == speedup.rank_median == speedup.rank_max == speedup.value


def test_values_against_a_baseline_follow_from_the_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    run = np.array([[1.0, 2.0, 3.0], [4.0, 1.0, 4.0]])
    baseline = np.array([[8.0, 8.0, 8.0], [6.0, 20.0, 6.0]])
    timing = Timing(run, np.zeros_like(run), 3, StopReason.CONVERGED, baseline)
    monkeypatch.setattr(runner, "sample", lambda *_: timing)
    row = measure(Plan(metrics=(Metric("speedup", SPEEDUP),)))["speedup"]
    # Slowest ranks: 4, 2, 4 and 8, 20, 8. Ranks' own medians: 2, 4 and 8, 6.
    assert (row.value, row.samples) == (2, [2, 10, 2])
    assert (row.rank_min, row.rank_max, row.slowest_rank) == (4, 1.5, 1)
    assert row.rank_median == pytest.approx(7 / 3, rel=1e-6)


def test_a_metric_against_a_baseline_needs_one() -> None:
    row = measure(Plan(metrics=(Metric("speedup", SPEEDUP),)))["speedup"]
    assert (row.status, row.value) == ("failed", None)
    assert "no baseline" in row.reason


def test_a_metrics_own_parameters_join_its_rows() -> None:
    ranges = [Metric("range_time", OBSERVED, {"range": name}) for name in ("dispatch", "combine")]
    plan = Plan(
        metrics=(Metric("latency", LATENCY), *ranges),
        observed={"range_time[range=dispatch]": [3], "range_time[range=combine]": [4]},
    )
    rows = measure(plan)
    assert list(rows) == [
        "latency",
        "range_time bytes=64,device=cpu,range=dispatch",
        "range_time bytes=64,device=cpu,range=combine",
    ]
    latency, dispatch, combine = rows.values()
    assert latency.params == {"bytes": 64, "device": "cpu"}
    assert (dispatch.params, dispatch.value) == ({"bytes": 64, "device": "cpu", "range": "dispatch"}, 3)
    assert (combine.params, combine.value) == ({"bytes": 64, "device": "cpu", "range": "combine"}, 4)


def test_ceilings_go_by_the_metrics_key() -> None:
    plan = Plan(
        work=Work(ceilings={"steps[of=one]": Ceiling(2, "a limit")}),
        metrics=(Metric("steps", OBSERVED, {"of": "one"}), Metric("steps", OBSERVED, {"of": "other"})),
        observed={"steps[of=one]": [1], "steps[of=other]": [3]},
    )
    assert {row.status for row in measure(plan).values()} == {"ok"}


def test_a_multi_rank_suite_in_a_world_of_one_measured_nothing() -> None:
    rows = measure(Plan(observed={"steps": [1]}), distributed=True)
    assert {row.status for row in rows.values()} == {"invalid"}


def test_cases_that_cannot_run_here_are_skipped_before_setup() -> None:
    for plan, words in ((Plan(skip="needs a GPU"), "needs a GPU"), (Plan(memory_bytes=1 << 60), "1048576TiB")):
        rows = measure(plan)
        assert {row.status for row in rows.values()} == {"skipped"}
        assert words in rows["latency"].reason
        assert plan.calls == []


def test_one_ranks_reason_skips_the_case_for_all(tmp_path: Path) -> None:
    def body(context: Context) -> list[list[Any]]:
        small, gpu = Plan(), Plan(skip="needs a GPU")
        if context.site.rank == 1:
            small.memory_bytes = 1 << 60
        rows = [run_case(PlannedSuite(plan), Case({"bytes": 64}), context, SAMPLING) for plan in (small, gpu)]
        assert small.calls == gpu.calls == []
        return [[(row.status, row.reason) for row in of_case] for of_case in rows]

    for small, gpu in run_world(2, body, tmp_path):
        assert {status for status, _ in small + gpu} == {"skipped"}
        assert all("of memory" in reason and reason.endswith("(rank 1)") for _, reason in small)
        assert {reason for _, reason in gpu} == {"needs a GPU"}


def test_ranks_take_the_same_turns_with_a_baseline(tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, Any]:
        pause = 0.002 if context.site.rank == 1 else 0.001
        plan = Plan(
            run=lambda: time.sleep(pause),
            baseline=lambda: time.sleep(5 * pause),
            metrics=(Metric("latency", LATENCY), Metric("speedup", SPEEDUP)),
        )
        rows = run_case(PlannedSuite(plan), Case({"bytes": 64}), context, SAMPLING)
        return {row.metric: (row.status, row.value, row.n, row.slowest_rank) for row in rows}

    one, other = run_world(2, body, tmp_path)
    assert one == other
    assert (one["latency"][0], one["speedup"][0]) == ("ok", "ok")
    assert one["speedup"][1] > 1
    assert one["latency"][2:] == one["speedup"][2:]


def test_device_memory_of_a_case_is_given_back(cuda_calls: list[str]) -> None:
    class Held:
        def __del__(self) -> None:
            cuda_calls.append("freed")

    class HoldingSuite(PlannedSuite):
        def setup(self, case: Case, context: Context) -> Workload:
            workload: Any = super().setup(case, context)
            workload.held, workload.itself = Held(), workload
            return workload  # type: ignore[no-any-return]

    plan = Plan(observed={"steps": [1]})
    run_case(HoldingSuite(plan), Case({"bytes": 64}), Context(Site(device="cuda"), RankGroup()), SAMPLING)
    assert plan.calls == ["check", "close"]
    assert cuda_calls[-2:] == ["freed", "empty_cache"]


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


def test_signs_of_life_are_counted_in_each_case() -> None:
    progress = Progress()
    seen = []

    def long_setup(context: Context) -> None:
        context.scratch["kept"] = True
        for _ in range(3):
            context.alive()
        seen.append((progress.phase, progress.ticks))

    context = Context(Site(), RankGroup())
    plan = Plan(setup=long_setup, observed={"steps": [1]})
    for _ in range(2):
        run_case(PlannedSuite(plan), Case({"bytes": 64}), context, SAMPLING, progress)
    assert seen == [("setup", 3)] * 2
    assert context.scratch == {"kept": True}
    # Where nobody watches, a sign of life does nothing.
    context.alive()
    assert progress.ticks == 3


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
