"""What is told of a comparison while it goes on: lines where nobody watches, a bar on a terminal."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from bench.comparison.console import ConsoleWatcher

if TYPE_CHECKING:
    import pytest


def tell(watcher: ConsoleWatcher) -> None:
    with watcher:
        watcher.started("run-1", ["a", "b"], 3)
        watcher.stage("a", "runs")
        watcher.note("something")
        watcher.ended("b", "failed", "rank 0 was killed")


def test_without_a_terminal_there_are_lines_and_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    tell(ConsoleWatcher())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["run run-1: a, b by turns", "something", "failed: b: rank 0 was killed"]


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
