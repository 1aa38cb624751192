"""The page of a history in a real browser: points, changes, gaps, and texts that try to break out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.errors import BenchError
from bench.history import read_history
from bench.history_output.page import render, write_page
from bench.store.reader import Store
from tests.bench.history_rows import FAILED, store_run
from tests.bench.report.conftest import browser  # noqa: F401  # the fixture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report.conftest import Browser

DRAW_ALL = "dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'));"
HOSTILE = '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=2"><b>\x1b[31m\u202e'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((40, 2))
    for night, (a, b) in enumerate(noise.tolist()):
        slower = 1.1 if night >= 25 else 1
        store_run(
            folder / "store",
            night,
            {"ring": FAILED if night == 7 else 100 * slower * a, HOSTILE: 50 * b},
            rounds=(0.99, 1.0, 1.01),
            reason=HOSTILE,
        )
    return write_page(folder / "history.html", read_history(Store(folder / "store"), "latency"))


def test_the_page_has_points_and_no_errors(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page)
    browser.run(DRAW_ALL)
    plots = "[...document.querySelectorAll('.plot')]"
    counts = browser.run(f"return {plots}.map((p) => p.data[0].y.filter(Number.isFinite).length)")
    assert sorted(counts) == [39, 40]
    levels = browser.run(f"return {plots}.map((p) => p.data.length - 1)")
    shapes = browser.run(f"return {plots}.map((p) => p.layout.shapes.length)")
    # The changed series has two levels, a line with its shade, and one gap.
    assert sorted(zip(levels, shapes, strict=True)) == [(1, 0), (2, 3)]
    assert browser.errors() == []
    assert browser.foreign_requests() == []


def test_a_drift_is_a_slanting_line_instead_of_a_level(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    for night in range(40):
        store_run(tmp_path, night, {"ring": (100.0 + night % 3) * (1 + 0.002 * night)})
    browser.open(write_page(tmp_path / "history.html", read_history(Store(tmp_path), "latency")))
    browser.run(DRAW_ALL)
    lines = browser.run("return document.querySelector('.plot').data.map((line) => [line.name, line.x.length])")
    assert lines == [["measured", 40], ["drift", 2]]
    assert "confirmed drift (regression)" in browser.run("return document.querySelector('#summary').textContent")
    assert browser.errors() == []


def test_plots_are_drawn_when_they_come_near_the_screen(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page)
    browser.run("[...document.querySelectorAll('.plot')].at(-1).scrollIntoView({ behavior: 'instant' })")
    assert browser.wait_for("[...document.querySelectorAll('.plot')].at(-1).data?.length")


def test_hostile_texts_stay_texts(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page)
    browser.run(DRAW_ALL)
    assert browser.run("return window.pwned ?? null") is None
    assert browser.run("return document.querySelectorAll('main b, main img').length") == 0
    text = browser.run("return document.querySelector('main').textContent")
    assert "<b>\\x1b[31m" in text
    assert "\x1b" not in text


def test_hover_tells_value_run_and_commit(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page)
    browser.run(DRAW_ALL)
    text = browser.run("return document.querySelector('.plot').data[0].text[3]")
    assert "commit" in text
    assert "20260104T030000000" in text


def test_narrow_and_dark_pages_fit(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page, width=390, dark=True)
    browser.run(DRAW_ALL)
    assert browser.run("return document.scrollingElement.scrollWidth - innerWidth") <= 0
    assert browser.errors() == []


def test_gaps_are_listed_with_their_reasons(page: Path) -> None:
    text = page.read_text()
    assert "1 gap" in text
    assert "failed: &lt;/script&gt;" in text


def test_since_counts_places_from_the_first_point_shown(tmp_path: Path) -> None:
    for night in range(40):
        store_run(tmp_path, night, {"a": 100.0 + night % 3 + (10 if night >= 25 else 0)})
    text = render(read_history(Store(tmp_path), "latency", since="2026-01-21"))
    assert '"index":5' in text


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    store_run(tmp_path / "store", 0, {"a": 1.0})
    (tmp_path / "file").touch()
    with pytest.raises(BenchError, match="name another file"):
        write_page(tmp_path / "file" / "page.html", read_history(Store(tmp_path / "store"), "latency"))
