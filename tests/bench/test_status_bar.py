"""The bar on a terminal and the lines beside it, without one and with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import TextColumn

from bench.status_bar import StatusBar

if TYPE_CHECKING:
    import pytest


def test_without_a_bar_there_are_lines_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    bar = StatusBar()
    assert not bar.shown
    bar.update(description="nobody sees it")
    bar.advance()
    bar.say("[red]a line")
    bar.stop()
    assert capsys.readouterr() == ("", "[red]a line\n")


def test_lines_stay_and_the_bar_goes(capsys: pytest.CaptureFixture[str]) -> None:
    bar = StatusBar()
    bar.start(TextColumn("{task.description} {task.fields[what]}"), description="begun", total=2, what="first")
    assert bar.shown
    bar.update(what="second")
    bar.advance()
    bar.say("[red]a line")
    bar.stop()
    bar.stop()
    assert not bar.shown
    assert "[red]a line" in capsys.readouterr().err


def test_nobody_left_to_read_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    StatusBar().say("a line")
