"""What the user sees while a comparison goes on: a bar on a terminal, and a line for what goes wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from bench.comparison.turns import Watcher
from bench.gate_output.text import visible
from bench.status_bar import StatusBar

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConsoleWatcher(Watcher):
    """Tells on standard error; a context manager that takes the bar away again."""

    def __init__(self) -> None:
        self._bar = StatusBar()

    def started(self, run_id: str, sides: Sequence[str], stages: int) -> None:
        self._bar.say(f"run {run_id}: {', '.join(sides)} by turns")
        if sys.stderr.isatty():
            self._start_bar(stages)

    def stage(self, label: str, what: str) -> None:
        self._bar.update(description=f"{label} {what}")
        self._bar.advance()

    def ended(self, label: str, status: str, reason: str) -> None:
        self._bar.say(visible(f"{status}: {label}: {reason}"))

    def note(self, text: str) -> None:
        self._bar.say(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _start_bar(self, stages: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        self._bar.start(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            description="starting",
            total=stages,
            expand=False,
        )
