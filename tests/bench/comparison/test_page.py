"""The page of a comparison, as text and in a browser: it stands alone, shows every side, and escapes its texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.comparison.contract import Course
from bench.comparison.page import render, shared_params, write_page
from bench.comparison.processes import Ending
from bench.suite import Forecast
from tests.bench.comparison.made_up import VIEW, outcome

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report.conftest import Browser

UNFAIR = Ending("invalid", "no fair comparison: weights differs: <b>x</b> here", fair=False)


def test_every_side_is_on_the_page_with_its_numbers() -> None:
    found = outcome({"a": 0.3, "b": 0.2, "c": 0.1}, endings={"c": UNFAIR}, errors={"b": 1e-7})
    page = render(found, VIEW)
    for text in ("300 ms", "200 ms", "1.50 x", "1.0e-07", "Fairness", "weights", "Nothing of this is true."):
        assert text in page, text
    assert 'class="chip invalid"' in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>x</b>" not in page
    assert "<script" not in page


def test_predictions_have_a_section_and_columns() -> None:
    found = outcome({"a": 0.3, "b": 0.2}, forecasts={"b": Forecast({"work": 0.24}, "<m>", ("work: guessed",))}, noise=0)
    page = render(found, VIEW)
    for text in (
        "Predicted",
        "240 ms",
        "+20.0 %",
        "What a predicted iteration is made of",
        "&lt;m&gt;",
        "work: guessed",
    ):
        assert text in page, text
    assert "Predicted" not in render(outcome({"a": 0.3}), VIEW)


def test_a_label_with_markup_is_escaped_everywhere() -> None:
    label = '"><img src=x onerror=alert(1)>'
    page = render(outcome({label: 0.3, "b": 0.2}), VIEW)
    assert "<img" not in page
    assert "&lt;img" in page


def test_the_same_numbers_are_called_the_same() -> None:
    assert "all sides have the same numbers, to the last bit" in render(outcome({"a": 0.3, "b": 0.2}), VIEW)


def test_a_page_of_failures_alone_can_be_made() -> None:
    gone = Ending("failed", "rank 0 was killed")
    found = outcome({"a": 0.3, "b": 0.2}, endings={"a": gone, "b": gone})
    for record in found.records:
        record.turns, record.course, record.conditions, record.observed = [], Course({}), {}, None
    page = render(found, VIEW)
    assert page.count("rank 0 was killed") >= 2


def test_what_all_sides_share_is_said_once() -> None:
    shared = shared_params(outcome({"a": 0.3, "b": 0.2}))
    assert "who" not in shared
    assert shared["ranks"] == 1


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_every_window_and_asks_nobody(tmp_path: Path, browser: Browser, width: int, dark: bool) -> None:
    found = outcome({"a": 0.3, "b": 0.2, "piper:pp=2:ep=2:schedule=1F1B": 0.25, "c": 0.1}, endings={"c": UNFAIR})
    path = write_page(tmp_path / "page.html", found, VIEW)
    browser.open(path, width=width, dark=dark)
    assert browser.errors() == []
    assert browser.foreign_requests() == []
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    # Every bar has a colour of its own, in either scheme.
    colours = browser.run("return [...document.querySelectorAll('#time rect')].map(bar => getComputedStyle(bar).fill)")
    assert len(set(colours)) == len(colours) == 3
