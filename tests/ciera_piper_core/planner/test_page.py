"""The page of a plan: one file, opened in a real browser as its readers do."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.planner.fitting import Smallest
from ciera_piper_core.planner.page import payload, render, write_page
from ciera_piper_core.planner.search import Plan, search
from ciera_piper_core.planner.strategy import Question
from ciera_piper_core.platforms import load_platform
from tests.ciera_piper_core.page.scripts import LABELS, OVERFLOW, POINTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.report.conftest import Browser


@cache
def plan_of(model: str, gpus: int) -> Plan:
    return search(Question(catalogue.load(model), load_platform("frontier"), gpus))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("plan") / "plan.html", plan_of("mixtral-8x7b", 32))


def test_opens_without_errors_or_network_and_every_plot_holds_points(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.errors() == []
    assert browser.foreign_requests() == []
    points = browser.run(POINTS)
    assert set(points) == {"over-ep", "front", "ranks", "times", "pipeline"}
    assert all(count >= 3 for count in points.values()), points


def column(browser: Browser, section: str, place: int) -> list[str]:
    script = (
        f"return [...document.querySelectorAll('#{section} tbody tr')].map((row) => row.cells[{place}].textContent)"
    )
    return list(browser.run(script))


def test_headers_sort(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = column(browser, "ranking", 4)
    assert len(before) == 200
    click = (
        "const header = document.querySelectorAll('#ranking th')[4];"
        "header.querySelector('button').click(); return header.ariaSort"
    )
    sizes = [float(text.removesuffix(" GiB")) for text in before]
    assert browser.run(click) == "ascending"
    assert [float(text.removesuffix(" GiB")) for text in column(browser, "ranking", 4)] == sorted(sizes)
    assert browser.run(click) == "descending"
    assert [float(text.removesuffix(" GiB")) for text in column(browser, "ranking", 4)] == sorted(sizes, reverse=True)
    assert browser.run(click) == "none"
    assert column(browser, "ranking", 4) == before


@pytest.mark.parametrize("width", [390, 1280])
def test_no_width_makes_the_page_scroll_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.run(OVERFLOW) <= 0


@pytest.mark.parametrize("width", [420, 1300])
def test_titles_legends_and_labels_keep_apart(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.errors() == []
    assert browser.run(LABELS) == []


def test_points_that_the_search_refuses_are_marked_and_named(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_page(tmp_path / "plan.html", plan_of("deepseek-v3", 256)))
    names = browser.run("return document.querySelector('#over-ep .plot').data.map((trace) => trace.name)")
    assert names[-1] == "the search refuses this EP"
    caption = browser.run("return document.querySelector('#over-ep p').textContent")
    assert re.search(r"Here: EP [\d, ]*256 on 128 GPUs|EP [\d, ]*256 on 256 GPUs", caption)


def test_dark_and_light(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    colour = "document.querySelector('.plot').layout.font.color"
    dark = browser.run(f"return {colour}")
    browser.prefer("light")
    assert browser.wait_for(f"{colour} !== '{dark}'")
    assert browser.errors() == []


def test_a_plan_in_which_nothing_fits_still_opens(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_page(tmp_path / "plan.html", plan_of("deepseek-v3", 8), Smallest(224, exact=True)))
    assert browser.errors() == []
    verdict = browser.run("return document.querySelector('#verdict').textContent")
    assert "No strategy fits deepseek-v3 on 8 GPUs" in verdict
    assert "that would do: 224" in verdict
    assert browser.run(POINTS)["over-ep"] >= 3
    # Sections without anything in them are not there, nor links to them.
    sections = browser.run("return [...document.querySelectorAll('section')].map((section) => section.id)")
    assert sections == ["over-ep", "rejected", "known"]
    assert browser.run("return document.querySelectorAll('nav a').length") == 3
    assert column(browser, "rejected", 0)[-1] == "memory"


def test_the_payload_is_what_the_plan_says() -> None:
    plan = plan_of("mixtral-8x7b", 32)
    from ciera_piper_core.planner.explain import explain

    best = explain(plan, 1)
    data: dict[str, Any] = payload(plan, best)
    assert data["memoryBytes"] == 64_000_000_000
    assert [row[1] for row in data["ranking"]] == [plan[place].mfu for place in range(200)]
    assert sum(data["scatter"]["pareto"]) == len(plan.pareto_places)
    totals = [sum(amounts[rank] for _, amounts in data["ranks"]["components"]) for rank in range(len(best.rank_bytes))]
    assert totals == pytest.approx(best.rank_bytes)
    for each in data["times"]:
        place = int(each["label"].partition(":")[0]) - 1
        assert sum(seconds for _, seconds in each["parts"]) == pytest.approx(plan[place].step_seconds)
    assert data["pipeline"]["shown"] <= data["pipeline"]["of"]


def test_scripts_are_inlined_and_allowed_by_hash() -> None:
    text = render(plan_of("mixtral-8x7b", 32))
    assert len(re.findall(r"<script>", text)) == 2
    assert len(re.findall(r"'sha256-[\w+/=]+'", text)) == 2
    assert len(text) < 7e6


def test_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write the page .*there is no folder .*name another file"):
        write_page(tmp_path / "file" / "plan.html", plan_of("mixtral-8x7b", 32))
    with pytest.raises(ValueError, match="there is no folder"):
        write_page(tmp_path / "missing" / "plan.html", plan_of("mixtral-8x7b", 32))
    assert not (tmp_path / "missing").exists()
    with pytest.raises(ValueError, match="it is no file; name another"):
        write_page(tmp_path, plan_of("mixtral-8x7b", 32))
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with pytest.raises(ValueError, match="it is no file; name another"):
        write_page(fifo, plan_of("mixtral-8x7b", 32))
    assert fifo.is_fifo()
