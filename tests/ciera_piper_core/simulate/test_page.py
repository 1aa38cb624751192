"""The page of a simulated sweep, opened in a real browser as its readers do."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.simulate.page import SECTIONS, payload, render, write_page
from ciera_piper_core.simulate.paper import compare
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.sweep import Sweep, predict_sweep
from tests.ciera_piper_core.page.scripts import LABELS, OVERFLOW, POINTS

if TYPE_CHECKING:
    from pathlib import Path

    from ciera_piper_core.simulate.sweep import Point
    from tests.bench.report.conftest import Browser

FRONTIER = load_machine("frontier")
SWEEP = Sweep(
    FRONTIER,
    (1, 2, 8, 16, 64, 256),
    tuple(2**power for power in range(16, 29)),
    traffic=("uniform", "hot_rank"),
)
IDS = [name for name, _ in SECTIONS]


@cache
def points() -> list[Point]:
    return predict_sweep(SWEEP)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("simulate") / "alltoall.html", SWEEP, points())


def test_opens_without_errors_or_network_and_every_plot_holds_points(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.errors() == []
    assert browser.foreign_requests() == []
    numbers = browser.run(POINTS)
    assert set(numbers) == {"speedup", "best", "bottlenecks", "figure5", "figure8"}
    assert all(count >= 30 for count in numbers.values()), numbers
    assert browser.run("return [...document.querySelectorAll('section')].map((section) => section.id)") == IDS


@pytest.mark.parametrize("width", [420, 1300])
def test_nothing_overlaps_at_any_width(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.errors() == []
    assert browser.run(OVERFLOW) <= 0
    assert browser.run(LABELS) == []


def choose(browser: Browser, section: str, place: int, value: int) -> None:
    browser.run(
        f"const menu = document.querySelectorAll('#{section} select')[{place}]; menu.value = '{value}';"
        "menu.dispatchEvent(new Event('change'))"
    )


def test_menus_change_what_is_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    first = "return document.querySelector('#speedup .plot').data.map((trace) => [...trace.y])"
    for place, gpus in enumerate(SWEEP.ranks):
        if gpus == 1:
            continue
        choose(browser, "speedup", 1, place)
        shown = browser.run(first)
        for name, values in zip(SWEEP.algorithms, shown, strict=True):
            wanted = [
                point.speedup
                for point in points()
                if (point.algorithm, point.ranks, point.traffic) == (name, gpus, "uniform") and point.prediction
            ]
            assert values == pytest.approx(wanted)
    before = browser.run("return document.querySelector('#bottlenecks .plot').data[0].z")
    choose(browser, "bottlenecks", 1, SWEEP.algorithms.index("halo_v0"))
    assert browser.run("return document.querySelector('#bottlenecks .plot').data[0].z") != before
    assert browser.errors() == []


def test_the_paper_s_peaks_are_drawn_in_their_panels(browser: Browser, page: Path) -> None:
    browser.open(page)
    panels = browser.run(
        "return document.querySelector('#figure8 .plot').data.filter((trace) => trace.name.startsWith('Piper'))"
        ".map((trace) => [trace.yaxis, trace.y[0]])"
    )
    wanted = [
        [f"y{place + 1 if place else ''}", peak]
        for place, each in enumerate(compare(FRONTIER).figure8)
        for peak in each.paper
    ]
    assert panels == wanted
    rows = browser.run(
        "return [...document.querySelectorAll('#figure8 tbody tr')].map((row) => row.cells[2].textContent)"
    )
    assert rows[1] == "8.06x, 8.03x, 7.92x"
    assert [text.endswith("a guess") for text in rows] == [False] * 3 + [True] * 3


def test_all_points_sort_and_refused_ones_are_named(browser: Browser, page: Path) -> None:
    browser.open(page)
    predicted = [point for point in points() if point.prediction]
    cells = "return [...document.querySelectorAll('#points tbody tr')].map((row) => row.cells[6].textContent)"
    assert len(browser.run(cells)) == len(predicted)
    browser.run("document.querySelectorAll('#points th button')[6].click()")
    shown = [float(text.removesuffix("x")) for text in browser.run(cells)]
    assert shown == sorted(shown)
    said = browser.run("return document.querySelector('#points p').textContent")
    assert said == "Headers sort. Not predicted: an all-to-all needs at least 2 ranks."


def test_dark_and_light(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    colour = "document.querySelector('#figure8 .plot').layout.font.color"
    dark = browser.run(f"return {colour}")
    browser.prefer("light")
    assert browser.wait_for(f"{colour} !== '{dark}'")
    assert browser.errors() == []


def test_another_machine_has_no_figures_of_the_paper(browser: Browser, tmp_path: Path) -> None:
    machine = load_machine("dgx-h200")
    sweep = Sweep(machine, (8,), (1 << 20,), ("flat",))
    browser.open(write_page(tmp_path / "page.html", sweep, predict_sweep(sweep)))
    assert browser.errors() == []
    sections = browser.run("return [...document.querySelectorAll('section')].map((section) => section.id)")
    assert sections == [name for name in IDS if name not in ("figure5", "figure8", "claims")]
    assert browser.run("return document.querySelectorAll('nav a').length") == len(sections)
    assert browser.run("return document.querySelectorAll('select').length") == 0


def test_the_payload_is_plain_and_finite() -> None:
    data: dict[str, Any] = payload(SWEEP, points(), compare(FRONTIER))
    assert json.loads(json.dumps(data, allow_nan=False))["gpus"] == list(SWEEP.ranks)
    for shown, point in zip(data["points"], points(), strict=True):
        assert shown["speedup"] == point.speedup
        if point.prediction:
            assert sum(share for _, share in shown["parts"]) == pytest.approx(1)
            assert shown["parts"][0][1] == pytest.approx(point.bottleneck_share)
            assert shown["rate"] == point.largest_bytes / point.prediction.seconds


def test_the_verdict_has_the_largest_speedup_and_the_count_of_statements() -> None:
    text = render(SWEEP, points())
    verdict = re.search(r'<div id="verdict"><p>(.*?)</p><p>(.*?)</p></div>', text)
    assert verdict is not None
    best = max(point.speedup or 0 for point in points())
    assert verdict[1].startswith(f"Up to {best:.2f} times faster than flat: ")
    claims = compare(FRONTIER).claims
    assert verdict[2].startswith(f"{sum(claim.agrees for claim in claims)} of {len(claims)} statements")
