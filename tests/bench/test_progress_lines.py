"""Plain lines about long work: now and then, never at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.progress_lines import ProgressLines

if TYPE_CHECKING:
    import pytest


def test_a_line_at_most_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = ProgressLines(said.append)
    for second in (101, 109, 111, 112, 120, 122, 150):
        now[0] = second
        lines.tell(str(second))
    assert said == ["111", "122", "150"]
