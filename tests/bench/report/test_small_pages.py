"""Reports of few rows in a real browser: what they say of themselves, and the plots that few rows make."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from bench.definitions import BUSBW, LATENCY, MEMORY_BANDWIDTH
from tests.bench.report.page_scripts import DRAW_ALL, OPEN_ALL, OVERFLOW, POINTS, write
from tests.bench.report.sample_rows import row, sample_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.store.row import Row
    from tests.bench.report.conftest import Browser


def only_invalid() -> list[Row]:
    reason = "41.2 GB/s is above the 12.8 possible here (memory)"
    return [row({"ranks": ranks}, "busbw", BUSBW, status="invalid", reason=reason) for ranks in (2, 4, 8)]


def single_samples() -> list[Row]:
    rows = [row({"bytes": size}, "latency", LATENCY, value=size / 100) for size in (1, 7, 1000, 4096)]
    for made in rows:
        made.samples, made.n = [made.value or 0.0], 1
        made.rank_min = made.rank_median = made.rank_max = made.slowest_rank = made.entry_skew = None
    return rows


def without_parameters() -> list[Row]:
    return [row({}, "latency", LATENCY, value=3.5), row({}, "rate", MEMORY_BANDWIDTH, value=1e12)]


THIN: dict[str, tuple[Callable[[], list[Row]], str]] = {
    "no rows": (list, "No rows: nothing was measured"),
    "one row": (lambda: [row({"ranks": 1}, "latency", LATENCY, value=3.5)], "1 case measured"),
    "rows without parameters": (without_parameters, "1 case measured"),
    "only invalid rows": (only_invalid, "0 of 3 cases measured"),
    "no ok row": (lambda: [made for made in sample_rows() if made.status != "ok"], "0 of 182 cases measured"),
    "one sample a row": (single_samples, "All 4 cases measured"),
}


@pytest.mark.parametrize("name", THIN)
def test_thin_reports_open_and_say_what_they_are(browser: Browser, tmp_path: Path, name: str) -> None:
    make_rows, verdict = THIN[name]
    browser.open(write(tmp_path, make_rows()))
    browser.run(f"if (window.Plotly) {{ {DRAW_ALL} }} {OPEN_ALL}")
    assert browser.errors() == []
    assert browser.run("return document.querySelector('#verdict').textContent").startswith(verdict)
    assert all(browser.run(POINTS))
    assert browser.run(f"return {OVERFLOW}") <= 0


def test_a_suite_of_categories_becomes_bars(browser: Browser, tmp_path: Path) -> None:
    rows = [
        row({"library": library, "pinned": pinned}, "rate", MEMORY_BANDWIDTH, value=value)
        for (library, pinned), value in zip(
            itertools.product(("a", "b"), (True, False)), (3.0, 2.0, 5.0, 4.0), strict=True
        )
    ]
    browser.open(write(tmp_path, rows))
    browser.run(DRAW_ALL)
    bars = browser.run("return document.querySelector('.plot').data.map((trace) => [trace.type, trace.name, trace.y])")
    assert bars == [["bar", "pinned false", [2, 4]], ["bar", "pinned true", [3, 5]]]
    assert browser.errors() == []


def test_a_band_has_a_gap_where_a_point_has_too_few_samples(browser: Browser, tmp_path: Path) -> None:
    rows = [row({"bytes": 1024 << step}, "latency", LATENCY, value=10.0 + step) for step in range(5)]
    rows[2].samples, rows[2].n = rows[2].samples[:3], 3
    browser.open(write(tmp_path, rows))
    browser.run(DRAW_ALL)
    (band,) = browser.run(
        "return document.querySelector('.plot').data.filter((trace) => trace.fill === 'toself').map((trace) => trace.x)"
    )
    assert band == [1024, 2048, 2048, 1024, None, 8192, 16384, 16384, 8192]
    rows[1].samples, rows[1].n = [], 0
    browser.open(write(tmp_path, rows))
    browser.run(DRAW_ALL)
    (band,) = browser.run(
        "return document.querySelector('.plot').data.filter((trace) => trace.fill === 'toself').map((trace) => trace.x)"
    )
    assert band == [8192, 16384, 16384, 8192]


def test_a_point_measured_in_two_runs_is_told_apart(browser: Browser, tmp_path: Path) -> None:
    rows = [
        row({"bytes": size}, "latency", LATENCY, value=size / 10, run_id=run_id)
        for size, run_id in itertools.product((1024, 2048, 4096), ("first", "second"))
    ]
    browser.open(write(tmp_path, rows))
    assert browser.run("return [...document.querySelectorAll('.key')].map((each) => each.textContent)") == [
        "first",
        "second",
    ]
