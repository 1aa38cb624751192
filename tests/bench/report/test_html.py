"""The report as a file: written whole or not at all, sections in order, scripts inlined once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from bench.errors import BenchError
from bench.profile_builder import build_profile
from bench.report.html import render, write_html
from tests.bench.report.sample_rows import sample_rows, sample_runs

if TYPE_CHECKING:
    from pathlib import Path


def test_writes_one_file_into_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    assert write_html(path, sample_rows(), sample_runs()) == path
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.stat().st_size < 7e6


def test_replaces_an_older_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_html(path, [], [])
    assert path.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("blocked", ["file in the way", "folder in the way", "no file can be made there"])
def test_says_in_one_line_where_it_cannot_write(tmp_path: Path, blocked: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    paths = {
        "file in the way": tmp_path / "file" / "report.html",
        "folder in the way": tmp_path / "folder",
    }
    path = paths.get(blocked, type(tmp_path)("/proc/report.html"))
    with pytest.raises(BenchError, match=re.escape(f"cannot write the page {path}: ")) as error:
        write_html(path, [], [])
    assert "\n" not in str(error.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_sections_come_in_order() -> None:
    rows, runs = sample_rows(), sample_runs()
    text = render(rows, runs, build_profile(rows, runs), title="Mine")
    places = [
        text.index(mark)
        for mark in (
            "<h1>Mine</h1>",
            'id="verdict"',
            'id="summary"',
            'id="problems"',
            'id="fits"',
            'id="suite-collectives"',
            'id="suite-example_codec"',
            'id="environment"',
            'id="runs"',
            'id="definitions"',
            'id="legend"',
            'id="data"',
        )
    ]
    assert places == sorted(places)


def test_navigation_leads_to_what_exists() -> None:
    rows, runs = sample_rows(), sample_runs()
    for profile in (None, build_profile(rows, runs)):
        text = render(rows, runs, profile)
        targets = set(re.findall(r'href="#([^"]+)"', text))
        assert targets <= set(re.findall(r'id="([^"]+)"', text))
        assert "fits" in targets


def test_fits_are_explained_where_several_runs_leave_none() -> None:
    rows, runs = sample_rows(), sample_runs()
    reason = "No fits: a fit describes one run, and this report holds 2."
    assert reason in render(rows, runs)
    assert reason not in render(rows, runs, build_profile(rows, runs))
    memory = [made for made in rows if made.suite == "memory"]
    for text in (render(memory, runs), render(rows, runs[:1])):
        assert 'id="fits"' not in text


def test_an_interrupted_run_does_not_look_complete() -> None:
    run = sample_runs()[0]
    run.cases = 44
    text = render([made for made in sample_rows() if made.suite == "allgather_latency"], [run])
    assert "<strong>34 of 44 cases measured</strong>" in text
    assert '<a class="chip missing" href="#runs">interrupted or still running</a>' in text


def test_scripts_are_inlined_once_and_only_where_there_is_something_to_draw() -> None:
    assert render(sample_rows(), sample_runs()).count("plotly.js v") == 1
    empty = render([], [])
    assert "plotly.js v" not in empty
    assert len(empty) < 100e3


def test_policy_allows_only_the_scripts_of_the_page() -> None:
    text = render(sample_rows(), sample_runs())
    policy = text.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("'sha256-") == text.count("<script>")
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
