"""The suite ``gate``: its cases, its rows, its checks, and peers that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import UsageError
from bench.gate_suite import GateSuite
from bench.measure.group import RankGroup
from bench.measure.runner import run_case
from bench.measure.sampling import Sampling
from bench.registry import load_suite
from bench.stats import proof_pairs
from bench.suite import PRESETS, Case, Context, Site

if TYPE_CHECKING:
    from bench.store.row import Row

SAMPLING = Sampling(min_time_ns=1, max_time_ns=1, min_samples=1, warmup_time_ns=0, warmup_samples=1)
POINT = {"scenario": "aa_runs", "method": "ours", "effect": 0.0, "cv": 0.02, "samples": 15, "cases": 20, "trials": 3}


def rows(**params: Any) -> list[Row]:
    return run_case(GateSuite(), Case({**POINT, **params}), Context(Site(), RankGroup()), SAMPLING)


def test_the_suite_is_found_by_reference() -> None:
    assert isinstance(load_suite("bench.gate_suite:GateSuite"), GateSuite)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_case_is_of_a_known_kind(preset: Any) -> None:
    suite = GateSuite()
    cases = list(suite.cases(preset, {}))
    assert len({case.id for case in cases}) == len(cases)
    assert {"aa_interleaved", "slowdown_runs", "many_cases", "steady", "step", "several"} <= {
        c["scenario"] for c in cases
    }
    assert {"ours", "asv", "google_benchmark", "otava", "two_sample_scan"} <= {c["method"] for c in cases}
    assert all(suite.metrics_for(case) for case in cases)


def test_the_standard_cases_are_those_of_the_targets() -> None:
    points = {(c["scenario"], c["method"], c["effect"], c["samples"], c["cases"], c["trials"])
              for c in GateSuite().cases("standard", {})}  # fmt: skip
    assert ("aa_interleaved", "ours", 0.0, 30, 500, 1000) in points
    assert ("slowdown_runs", "ours", 0.05, 15, 1, 1000) in points
    assert ("slowdown_interleaved", "ours", 0.03, 30, 1, 1000) in points
    assert ("many_cases", "ours", 0.0, 30, 10_000, 1) in points


def test_overrides_choose_scenarios_and_replace_the_rest() -> None:
    overrides: Any = {"scenario": ["aa_runs", "many_cases"], "method": ["ours", "asv"], "trials": [7]}
    cases = list(GateSuite().cases("quick", overrides))
    assert {(c["scenario"], c["method"]) for c in cases} == {
        ("aa_runs", "ours"),
        ("aa_runs", "asv"),
        ("many_cases", "ours"),
    }
    assert {c["trials"] for c in cases} == {7}
    with pytest.raises(UsageError, match="unknown scenario 'aa_run'"):
        list(GateSuite().cases("quick", {"scenario": ["aa_run"]}))


@pytest.mark.parametrize(
    ("params", "metrics"),
    [
        ({}, ["false_alarm_rate"]),
        ({"scenario": "slowdown_interleaved", "effect": 0.1, "cases": 1}, ["detection_rate"]),
        ({"scenario": "many_cases", "samples": 30, "trials": 1}, ["gate_seconds"]),
        ({"scenario": "steady", "cases": 1, "trials": 2, "samples": 1}, ["false_alarm_rate"]),
    ],
)
def test_each_kind_of_case_gives_its_metrics(params: dict[str, Any], metrics: list[str]) -> None:
    found = rows(**params)
    assert [row.metric for row in found] == metrics
    assert {(row.status, row.wrong) for row in found} == {("ok", 0)}


def test_a_peer_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_pairs.importlib.util, "find_spec", lambda name: None)
    (row,) = rows(method="asv")
    assert row.status == "skipped"
    assert "asv is not installed" in row.reason


def test_what_is_not_the_same_again_is_wrong() -> None:
    workload: Any = GateSuite().setup(Case(POINT), Context(Site(), RankGroup()))
    assert workload.check() == 0
    workload._first = {"false_alarm_rate": 0.5}
    assert workload.check() == 1


def test_a_judgement_that_is_missing_or_off_is_wrong() -> None:
    case = Case({**POINT, "scenario": "many_cases", "samples": 30})
    workload: Any = GateSuite().setup(case, Context(Site(), RankGroup()))
    workload.run()
    assert workload.check() == 0
    workload._judgements = [workload._judgements[0], *workload._judgements[2:]]
    assert workload.check() > 1
