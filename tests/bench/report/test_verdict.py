"""The verdict line for every mix of outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.definitions import LATENCY
from bench.report.cases import gather
from bench.report.verdict import Verdict
from tests.bench.report.sample_rows import LAB_RUN_ID, row, sample_rows, sample_runs

if TYPE_CHECKING:
    from bench.store.row import Row


def ok(ranks: int, stop_reason: str = "converged") -> Row:
    return row({"ranks": ranks}, "latency", LATENCY, value=1.0, stop_reason=stop_reason)


def skipped(ranks: int) -> Row:
    return row({"ranks": ranks}, "latency", LATENCY, status="skipped", reason="too few cores")


@pytest.mark.parametrize(
    ("rows", "text", "tone"),
    [
        ([], "No rows: nothing was measured.", "bad"),
        ([ok(1)], "1 case measured.", "good"),
        ([ok(1), ok(2)], "All 2 cases measured.", "good"),
        ([ok(1), skipped(2)], "1 of 2 cases measured; 1 skipped.", "good"),
        ([skipped(1), skipped(2)], "0 of 2 cases measured; 2 skipped.", "bad"),
        ([ok(1), ok(2, "max_time")], "All 2 cases measured; 1 did not settle.", "warn"),
        (
            sample_rows(),
            "390 of 399 cases measured; 1 failed, 1 timed out, 1 invalid, 6 skipped, 19 did not settle.",
            "bad",
        ),
    ],
)
def test_verdict(rows: list[Row], text: str, tone: str) -> None:
    verdict = Verdict.of(gather(rows))
    assert verdict.text == text
    assert verdict.tone == tone


@pytest.mark.parametrize(
    ("rows", "asked", "text", "tone"),
    [
        ([ok(1)], 44, "1 of 44 cases measured; interrupted or still running.", "warn"),
        ([ok(1), skipped(2)], 3, "1 of 3 cases measured; interrupted or still running, 1 skipped.", "warn"),
        ([], 2, "0 of 2 cases measured; interrupted or still running.", "bad"),
        ([ok(1)], 1, "1 case measured.", "good"),
        ([ok(1)], 0, "1 case measured.", "good"),
        ([ok(1), ok(1)], 2, "2 of 3 cases measured; interrupted or still running.", "warn"),
    ],
)
def test_cases_without_a_row_are_missing(rows: list[Row], asked: int, text: str, tone: str) -> None:
    run = sample_runs()[0]
    run.cases = asked
    verdict = Verdict.of(gather(rows), [run])
    assert verdict.text == text
    assert verdict.tone == tone


def test_parts_of_a_case_are_one_case() -> None:
    run = sample_runs()[0]
    run.cases = 2
    parts = [
        row({"ranks": 2, "experts": when}, "load", LATENCY, suite="migration", value=1.0)
        for when in ("before", "after")
    ]
    verdict = Verdict.of(gather(parts), [run])
    assert verdict.text == "1 of 2 cases measured; interrupted or still running."


def test_rows_of_one_run_do_not_stand_in_for_those_of_another() -> None:
    runs = sample_runs()
    runs[0].cases, runs[1].cases = 2, 1
    rows = [ok(1), ok(2), row({"ranks": 4}, "latency", LATENCY, value=1.0, run_id=LAB_RUN_ID)]
    assert Verdict.of(gather(rows), runs).missing == 0
    assert Verdict.of(gather(rows[1:]), runs).missing == 1
