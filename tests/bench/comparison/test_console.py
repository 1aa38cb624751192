"""What is told of a comparison while it goes on: lines where nobody watches, a bar on a terminal."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from bench.comparison.console import ConsoleWatcher
from bench.comparison.turns import RUNS, STARTS

if TYPE_CHECKING:
    import pytest


def tell(watcher: ConsoleWatcher) -> None:
    with watcher:
        watcher.started("run-1", ["a", "b"], {STARTS: 2, RUNS: 3})
        watcher.stage("a", "runs")
        watcher.note("something")
        watcher.ended("b", "failed", "rank 0 was killed")


def test_without_a_terminal_there_are_lines_and_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    tell(ConsoleWatcher())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["run run-1: a, b by turns", "something", "failed: b: rank 0 was killed"]


def test_long_work_says_in_a_log_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watcher = ConsoleWatcher()
    watcher.started("run-1", ["a"], {STARTS: 1, RUNS: 3})
    said = []
    for second, what in ((1.0, STARTS), (12.0, RUNS), (24.0, RUNS), (36.0, RUNS)):
        now[0] = second
        watcher.stage("a", what)
        said += capsys.readouterr().err.splitlines()
    # Nothing is known of turns before the first is over; then those left take as long as it.
    assert said[1:] == [
        "part 2 of 4: a runs",
        "part 3 of 4: a runs, about 24s left",
        "part 4 of 4: a runs, about 12s left",
    ]


def test_on_a_terminal_the_bar_is_taken_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    tell(ConsoleWatcher())
    assert "failed: b: rank 0 was killed" in terminal.getvalue()


def test_a_comparison_goes_on_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    tell(ConsoleWatcher())


def test_a_reason_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleWatcher() as watcher:
        watcher.ended("b", "failed", "no \x1b[2J file\nat all")
    assert capsys.readouterr().err == "failed: b: no \\x1b[2J file\\nat all\n"
