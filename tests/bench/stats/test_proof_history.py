"""The proof of the history: its metrics count what they say, for us and for peers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.errors import BenchError, UsageError
from bench.stats import proof_history
from bench.stats.made_up_histories import Histories
from bench.stats.proof_history import Found, history_results, missing_method
from bench.stats.proof_scenarios import HISTORY_METHODS, HISTORY_SCENARIOS, metrics_of


def known(method: str) -> str:
    if reason := missing_method(method):
        pytest.skip(reason)
    return method


@pytest.mark.parametrize("method", HISTORY_METHODS)
@pytest.mark.parametrize("scenario", HISTORY_SCENARIOS)
def test_every_scenario_yields_its_metrics(scenario: str, method: str) -> None:
    found = history_results(scenario, known(method), 0.1, 0.02, 0, 3)
    assert tuple(found) == metrics_of(scenario)
    assert all(math.isfinite(value) and value >= 0 for value in found.values())


@pytest.mark.parametrize("method", HISTORY_METHODS)
def test_a_large_step_is_found_soon_by_all(method: str) -> None:
    found = history_results("step", known(method), 0.2, 0.02, 0, 20)
    assert found["detection_rate"] == 1
    assert found["detection_delay_points"] <= 5
    assert found["location_rate"] >= 0.75


def test_ours_reaches_what_it_must() -> None:
    five = history_results("step", "ours", 0.05, 0.02, 1, 150)
    assert five["detection_delay_points"] <= 5
    assert five["location_rate"] >= 0.85
    assert history_results("step", "ours", 0.03, 0.02, 1, 150)["detection_delay_points"] <= 14
    assert history_results("steady", "ours", 0.0, 0.02, 1, 150)["false_alarm_rate"] <= 0.02


def test_ours_locates_more_than_otava() -> None:
    known("otava")
    ours, otava, tuned = (
        history_results("several_messy", method, 0.05, 0.02, 3, 200)["location_f1"]
        for method in ("ours", "otava", "otava_tuned")
    )
    assert ours > max(otava, tuned)


def test_metrics_count_alarms_delays_and_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(data: Histories, look: int) -> list[Found]:
        drifts = look >= 50
        return [Found([41] if look >= 47 else [3]), Found([44] if look == 50 else []), Found([], drifts)]

    monkeypatch.setitem(proof_history.DETECTORS, "ours", detect)
    found = history_results("step", "ours", 0.05, 0.02, 0, 3)
    assert found == {"detection_rate": pytest.approx(2 / 3), "detection_delay_points": 10, "location_rate": 0.5}
    # What drifts is an alarm where nothing changes, and none where it is the truth.
    assert history_results("steady", "ours", 0.0, 0.02, 0, 3) == {"false_alarm_rate": 1}
    drift = history_results("drift", "ours", 0.0, 0.02, 0, 3)
    assert drift == {"false_alarm_rate": pytest.approx(2 / 3), "drift_rate": pytest.approx(1 / 3)}


def test_a_true_change_is_hit_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Histories(np.ones((1, 50)), [[20, 40]])
    monkeypatch.setattr(proof_history, "make_histories", lambda *_: made)
    monkeypatch.setitem(proof_history.DETECTORS, "ours", lambda data, look: [Found([19, 21, 30])])
    assert history_results("several", "ours", 0.05, 0.02, 0, 1) == {"location_f1": pytest.approx(2 / 5)}


def test_unknown_names_and_missing_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="scenario"):
        history_results("nothing", "ours", 0.0, 0.02, 0, 1)
    with pytest.raises(UsageError, match="method"):
        history_results("steady", "theirs", 0.0, 0.02, 0, 1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BenchError, match="pip install --no-deps apache-otava"):
        history_results("steady", "otava", 0.0, 0.02, 0, 1)
