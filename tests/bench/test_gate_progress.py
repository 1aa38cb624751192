"""Progress of an interleaved gate where nobody looks at a terminal: a line a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.gate_progress import ConsoleWatcher
from tests.bench.gate_rows import HOSTILE

if TYPE_CHECKING:
    import pytest


def test_a_line_a_turn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = ConsoleWatcher(600.0)
    watcher.turn("search", "main", "memory", 0, 590.0)
    watcher.turn("confirmation", "HEAD", HOSTILE, 3, -1.0)
    watcher.close()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0] == "bench: search, turn 1: memory of main, all cases, at most 9m50s left"
    assert lines[1].startswith("bench: confirmation, turn 2: [red]")
    assert lines[1].endswith("of HEAD, 3 case(s) open, at most 0s left")
    assert (out, len(lines)) == ("", 2)
