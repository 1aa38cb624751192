"""A history on a terminal: sparklines, changes with their commits, and names that cannot act."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.history import read_history
from bench.history_output.terminal import ASCII_BLOCKS, BLOCKS, GAP, SPARK_WIDTH, print_history, sparkline
from bench.store.reader import Store
from tests.bench.history_rows import FAILED, commit_of, store_run

if TYPE_CHECKING:
    from pathlib import Path


def shown(store: Path) -> str:
    out = io.StringIO()
    print_history(read_history(Store(store), "latency"), out)
    return " ".join(out.getvalue().split())


def test_sparklines_rise_with_values_and_gaps_are_no_height() -> None:
    assert sparkline([1.0, None, 2.0, 1.5]) == f"{BLOCKS[0]}{GAP}{BLOCKS[-1]}{BLOCKS[4]}"
    assert sparkline([3.0, 3.0]) == BLOCKS[3] * 2
    assert sparkline([None, None]) == GAP * 2
    assert sparkline([1.0, 2.0], plain=True) == ASCII_BLOCKS[0] + ASCII_BLOCKS[-1]


@given(st.lists(st.one_of(st.none(), st.floats(-1e300, 1e300)), min_size=1, max_size=200))
def test_sparklines_have_a_character_a_point_up_to_their_width(values: list[float | None]) -> None:
    assert len(sparkline(values)) == min(len(values), SPARK_WIDTH)


def test_a_change_is_told_with_its_commits_and_size(tmp_path: Path) -> None:
    for night in range(40):
        value = 100.0 + night % 3 + (10 if night >= 25 else 0)
        store_run(tmp_path, night, {"ring": FAILED if night == 3 else value, "tree": 50.0 + night % 2})
    text = shown(tmp_path)
    assert "confirmed regression +9.9%" in text
    assert f"{commit_of(24)[:12]}..{commit_of(25)[:12]}" in text
    assert "24 points before and 15 after" in text
    assert "2 series judged together; 1 confirmed regression that stands." in text


def test_a_drift_is_told_without_a_commit(tmp_path: Path) -> None:
    for night in range(40):
        store_run(tmp_path, night, {"ring": (100.0 + night % 3) * (1 + 0.002 * night), "tree": 50.0 + night % 2})
    text = shown(tmp_path)
    assert "confirmed drift (regression) +7." in text
    assert "all along from 2026-01-01, run 20260101T030000000-00000000, to 2026-02-09" in text
    assert "40 points; a slope explains them as well as a step, so no commit is named" in text
    assert "2 series judged together; 1 drifting for the worse." in text
    assert commit_of(20)[:12] not in text


def test_too_few_points_and_a_failed_newest_run_are_told(tmp_path: Path) -> None:
    store_run(tmp_path, 0, {"ring": 1.0})
    store_run(tmp_path, 1, {"ring": FAILED})
    text = shown(tmp_path)
    assert "too few points to judge, newest run: failed" in text
    assert "1 not measured by the newest run" in text


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;owned\x07", "a\nb", "[bold]x[/bold]", "\u202eabc", "../../etc"])
def test_hostile_names_are_text(tmp_path: Path, name: str) -> None:
    for night in range(14):
        store_run(tmp_path, night, {name: 1.0, "b": 2.0})
    text = shown(tmp_path)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert ("[bold]x[/bold]" in text) == (name == "[bold]x[/bold]")
