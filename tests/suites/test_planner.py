"""Tests of the planner suite: it runs, its rate is the strategies', and its check can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.definitions import Work
from bench.errors import UsageError
from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Site
from suites.planner import SAMPLED, SEARCH_SECONDS, STRATEGIES_PER_SECOND, PlannerSuite

SUITE = PlannerSuite()
CASE = Case({"model": "olmoe-1b-7b", "platform": "frontier", "gpus": 16})


def prepared() -> Any:
    return SUITE.setup(CASE, Context(Site(), RankGroup()))


def test_a_right_plan_passes() -> None:
    workload = prepared()
    workload.run()
    assert workload.check() == 0
    assert workload.work.bytes == workload.plan.evaluated > 1000


def test_a_plan_that_was_never_made_is_all_wrong() -> None:
    assert prepared().check() == SAMPLED


@pytest.mark.parametrize("name", ["peak_memory_bytes", "step_seconds", "mfu", "hfu"])
def test_every_wrong_estimate_is_counted(name: str) -> None:
    workload = prepared()
    workload.run()
    estimates = replace(workload.plan.estimates, **{name: getattr(workload.plan.estimates, name) * 1.2})
    workload.plan = replace(workload.plan, estimates=estimates)
    assert workload.check() == SAMPLED


def test_a_search_that_skipped_strategies_is_wrong() -> None:
    workload = prepared()
    workload.run()
    workload.plan = replace(workload.plan, evaluated=workload.plan.evaluated - 1)
    assert workload.check() == 1


def test_metrics_follow_from_the_duration() -> None:
    assert [metric.name for metric in SUITE.metrics] == ["search_seconds", "strategies_per_second"]
    assert SEARCH_SECONDS.value is not None
    assert STRATEGIES_PER_SECOND.value is not None
    assert SEARCH_SECONDS.value(0.5, Work()) == 0.5
    assert STRATEGIES_PER_SECOND.value(0.5, Work(bytes=100_000)) == 200_000
    assert (SEARCH_SECONDS.unit, SEARCH_SECONDS.better) == ("s", "lower")
    assert (STRATEGIES_PER_SECOND.unit, STRATEGIES_PER_SECOND.better) == ("1/s", "higher")


def test_presets_are_cases_that_can_run() -> None:
    for preset in PRESETS:
        cases = list(SUITE.cases(preset, {}))
        assert cases
        assert all(SUITE.skip_reason(case, Site()) is None for case in cases if case["gpus"] <= 4096)
    quick = [dict(case.params) for case in SUITE.cases("quick", {})]
    assert quick == [{"model": model, "platform": "frontier", "gpus": 4096} for model in ("deepseek-v3", "kimi-k2")]


def test_an_unknown_platform_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="'moon' is neither a built-in platform"):
        list(SUITE.cases("quick", {"platform": ["moon"]}))


def test_more_gpus_than_the_platform_has_are_skipped() -> None:
    reason = SUITE.skip_reason(Case({**CASE.params, "gpus": 10**6}), Site())
    assert reason == "frontier has 78848 GPUs"
