"""The verdict line for every mix of outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.definitions import LATENCY
from bench.report.cases import gather
from bench.report.verdict import Verdict
from tests.bench.report.sample_rows import row, sample_rows

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
