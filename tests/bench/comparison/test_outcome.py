"""Rows and speedups of a comparison: what they are computed from, and what they say where there is no number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.comparison.processes import Ending
from bench.suite import Forecast
from tests.bench.comparison.made_up import STEPS, TURNS, outcome

if TYPE_CHECKING:
    from bench.store.row import Row

UNFAIR = Ending("invalid", "no fair comparison: weights differs", fair=False)
GONE = Ending("failed", "rank 1 was killed")


def rows_of(rows: list[Row], who: str) -> dict[str, Row]:
    """By metric, and by what tells rows of one metric apart."""
    return {
        f"{row.metric}{row.params.get('bound', '')}{row.params.get('part', '')}": row
        for row in rows
        if row.params["who"] == who
    }


def test_equal_sides_are_not_called_faster() -> None:
    found = outcome({"a": 0.2, "b": 0.2})
    speedup = found.speedup(found.records[1])
    assert speedup is not None
    assert speedup.low < 1 < speedup.high


def test_rows_of_a_side_have_the_slowest_ranks_times_in_blocks_of_turns() -> None:
    found = outcome({"a": 0.3, "b": 0.2})
    row = rows_of(found.rows, "b")["iteration_time"]
    slowest = np.concatenate([np.max(turn, axis=0) for turn in found.records[1].turns])
    assert row.n == TURNS * STEPS
    assert row.rounds == [STEPS] * TURNS
    assert row.samples == pytest.approx(slowest, rel=1e-6)
    assert row.value == pytest.approx(np.median(slowest), rel=1e-6)
    assert row.warmup == 4
    assert rows_of(found.rows, "b")["tokens_per_second"].value == pytest.approx(100 / np.median(slowest), rel=1e-6)
    assert rows_of(found.rows, "b")["mfu"].value == pytest.approx(1e6 / np.median(slowest) / 1e9, rel=1e-6)
    assert rows_of(found.rows, "b")["hfu"].value == pytest.approx(2e6 / np.median(slowest) / 1e9, rel=1e-6)


def test_speedups_and_differences_name_their_reference_and_the_reference_has_none() -> None:
    found = outcome({"a": 0.3, "b": 0.2}, errors={"b": 1e-3})
    rows = rows_of(found.rows, "b")
    speedup = found.speedup(found.records[1])
    assert speedup is not None
    assert rows["speedup"].params["reference"] == "a"
    assert (rows["speedup_boundlow"].value, rows["speedup_boundhigh"].value) == (speedup.low, speedup.high)
    assert rows["loss_difference"].value == pytest.approx(1e-3)
    assert rows["loss_difference"].n == 30
    assert not {name for name in rows_of(found.rows, "a") if "speedup" in name or "difference" in name}


def test_all_rows_can_be_stored_and_are_told_apart() -> None:
    rows = outcome({"a": 0.3, "b": 0.2, "c": 0.1, "d": 0.1}, endings={"c": UNFAIR, "d": GONE}).rows
    assert all(row.to_json() for row in rows)
    keys = [(row.metric, row.case) for row in rows]
    assert len(set(keys)) == len(keys)


def test_an_unfair_side_has_no_speed_but_the_difference_that_shows_why() -> None:
    found = outcome({"a": 0.3, "b": 0.2, "c": 0.1}, endings={"c": UNFAIR}, errors={"c": 0.5})
    rows = rows_of(found.rows, "c")
    assert rows["loss_difference"].value == pytest.approx(0.5)
    others = [row for name, row in rows.items() if "difference" not in name]
    assert {(row.status, row.value, row.reason) for row in others} == {("invalid", None, UNFAIR.reason)}
    assert rows_of(found.rows, "b")["speedup"].status == "ok"
    assert found.exit_code == 4


def test_without_the_reference_there_are_times_but_no_speedups() -> None:
    found = outcome({"a": 0.3, "b": 0.2, "c": 0.1}, endings={"a": GONE})
    rows = rows_of(found.rows, "b")
    assert rows["iteration_time"].status == "ok"
    assert rows["speedup"].status == "skipped"
    assert "the reference a has no speed: rank 1 was killed" in rows["speedup"].reason
    assert rows_of(found.rows, "c")["loss_difference"].params["reference"] == "b"


def test_one_turn_has_a_speedup_and_no_interval() -> None:
    rows = rows_of(outcome({"a": 0.3, "b": 0.2}, turns=1).rows, "b")
    assert rows["speedup"].value == pytest.approx(1.5, rel=0.1)
    assert {rows[f"speedup_bound{end}"].status for end in ("low", "high")} == {"skipped"}


def test_an_interrupted_comparison_counts_the_turns_that_all_sides_had() -> None:
    found = outcome({"a": 0.3, "b": 0.2}, interrupted=True)
    del found.records[1].turns[5:]
    found.records[1].observed = None
    assert [len(found.seconds(record)) for record in found.records] == [5, 5]
    rows = rows_of(found.rows, "b")
    assert rows["iteration_time"].n == 5 * STEPS
    assert rows["made_up"].reason == "ended before it was looked into"
    assert found.exit_code == 4


def test_before_the_first_turn_nothing_is_measured() -> None:
    found = outcome({"a": 0.3, "b": 0.2}, interrupted=True)
    found.records[1].turns.clear()
    assert found.speedup(found.records[1]) is None
    assert {row.reason for row in found.rows_of(found.records[0]) if row.status == "failed"} == {
        "interrupted before its first turn was complete"
    }


def test_a_forecast_has_rows_by_part_and_its_distance_to_what_was_measured() -> None:
    forecasts = {"a": Forecast({"work": 0.2, "wait": 0.04}, "my machine"), "b": Forecast(reason="no prediction of b")}
    found = outcome({"a": 0.2, "b": 0.1}, forecasts=forecasts, noise=0.0)
    assert found.prediction_error(found.records[0]) == pytest.approx(0.2)
    rows = rows_of(found.rows, "a")
    parts = {part: rows[f"predicted_time{part}"].value for part in ("total", "work", "wait")}
    assert parts == {"total": pytest.approx(0.24), "work": 0.2, "wait": 0.04}
    assert rows["prediction_error"].value == pytest.approx(0.2)
    assert rows["prediction_error"].params["profile"] == "my machine"
    lacking = rows_of(found.rows, "b")
    assert {lacking[name].reason for name in ("predicted_timetotal", "prediction_error")} == {"no prediction of b"}
    assert "predicted_timework" not in lacking


def test_a_prediction_of_what_failed_stays_and_has_no_error() -> None:
    forecasts = {"a": Forecast({"work": 0.2}, "m"), "b": Forecast({"work": 0.2}, "m")}
    found = outcome({"a": 0.2, "b": 0.1}, forecasts=forecasts, endings={"b": GONE})
    rows = rows_of(found.rows, "b")
    assert rows["predicted_timetotal"].value == 0.2
    assert (rows["prediction_error"].status, rows["prediction_error"].reason) == ("failed", "rank 1 was killed")


def test_without_a_profile_nothing_is_said_of_predictions() -> None:
    assert not [row for row in outcome({"a": 0.2}).rows if "predict" in row.metric]
