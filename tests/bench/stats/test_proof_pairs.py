"""The proof of pairs, on fewer gates than the suite runs: what must hold holds, and the peers' rules are theirs."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from bench.errors import UsageError
from bench.stats import proof_pairs
from bench.stats.proof_pairs import flagged_cases, many_pairs, pair_results, slow_case, unavailable
from bench.stats.proof_scenarios import PAIR_SCENARIOS

needs_asv = pytest.mark.skipif(importlib.util.find_spec("asv") is None, reason="asv is not installed")


@pytest.mark.parametrize("scenario", ["aa_interleaved", "aa_rounds", "aa_runs"])
def test_gates_of_many_cases_raise_no_false_alarm(scenario: str) -> None:
    assert pair_results(scenario, "ours", 0.0, 0.02, 30, 500, 10, seed=1) == {"false_alarm_rate": 0.0}


@pytest.mark.parametrize(
    ("scenario", "effect", "samples", "least"),
    [
        ("slowdown_runs", 0.05, 15, 0.98),
        ("slowdown_interleaved", 0.05, 15, 0.99),
        ("slowdown_interleaved", 0.03, 30, 0.97),
    ],
)
def test_slowdowns_are_found(scenario: str, effect: float, samples: int, least: float) -> None:
    found = pair_results(scenario, "ours", effect, 0.02, samples, 1, 400, seed=1)
    assert found["detection_rate"] >= least


def test_one_among_many_is_found() -> None:
    assert pair_results("slowdown_mixed", "ours", 0.05, 0.02, 30, 200, 20, seed=1)["detection_rate"] >= 0.9


def test_without_confirmation_more_is_reported() -> None:
    alarms = [pair_results("aa_runs_no_floor", method, 0.0, 0.02, 15, 500, 5, seed=1)["false_alarm_rate"]
              for method in ("ours", "ours_unconfirmed")]  # fmt: skip
    assert alarms[1] > alarms[0]


def test_google_benchmarks_rule_alarms_at_every_twentieth_case() -> None:
    flags = [flagged_cases("aa_interleaved", "google_benchmark", 0.0, 0.02, 30, 500, trial, 1) for trial in range(4)]
    assert 0.01 < np.mean(flags) < 0.04


@needs_asv
def test_asvs_own_threshold_never_sees_five_percent() -> None:
    assert pair_results("slowdown_runs", "asv", 0.05, 0.02, 15, 1, 20, seed=1) == {"detection_rate": 0.0}
    assert pair_results("slowdown_runs", "asv", 0.2, 0.02, 15, 1, 20, seed=1) == {"detection_rate": 1.0}
    assert pair_results("slowdown_runs", "asv_same_threshold", 0.05, 0.02, 15, 1, 20, seed=1)["detection_rate"] > 0.9


def test_the_same_seed_gives_the_same_and_another_one_does_not() -> None:
    def flags(seed: int) -> list[bool]:
        gates = [flagged_cases("aa_runs", "google_benchmark", 0.0, 0.02, 15, 100, trial, seed) for trial in range(3)]
        return np.concatenate(gates).tolist()

    assert flags(1) == flags(1)
    assert flags(1) != flags(2)


def test_the_slower_case_is_another_one_each_time() -> None:
    assert len({slow_case(trial, 500) for trial in range(100)}) == 100


def test_a_missing_peer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_pairs.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in str(unavailable("asv"))
    assert unavailable("ours") is None
    with pytest.raises(UsageError, match="asv is not installed"):
        pair_results("aa_runs", "asv", 0.0, 0.02, 15, 10, 1, seed=1)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown scenario"):
        pair_results("nothing", "ours", 0.0, 0.02, 15, 10, 1, seed=1)
    with pytest.raises(UsageError, match="unknown method"):
        pair_results("aa_runs", "nobody", 0.0, 0.02, 15, 10, 1, seed=1)
    with pytest.raises(UsageError, match="at least 10 cases"):
        pair_results("aa_runs", "ours", 0.0, 0.02, 15, 3, 1, seed=1)


def test_many_pairs_are_as_many() -> None:
    pairs = many_pairs(30, 12, 0.02, 0)
    assert len(pairs) == 30
    assert {pair.candidate.values.size for pair in pairs} == {12}
    assert all(scenario.text for scenario in PAIR_SCENARIOS.values())
