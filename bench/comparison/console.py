"""What the user sees while a comparison goes on: a bar on a terminal, else a line now and then; what goes wrong."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from bench.comparison.turns import RUNS, Watcher
from bench.console import TimeLeft, format_duration
from bench.gate_output.text import visible
from bench.progress_lines import ProgressLines
from bench.status_bar import StatusBar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ConsoleWatcher(Watcher):
    """Tells on standard error; a context manager that takes the bar away again."""

    def __init__(self) -> None:
        self._bar = StatusBar()
        self._lines = ProgressLines(self._bar.say)
        self._estimate = TimeLeft()
        self._begun = self._total = 0
        self._now: tuple[str, float] | None = None
        self._timed = False

    def started(self, run_id: str, sides: Sequence[str], stages: Mapping[str, int]) -> None:
        self._bar.say(f"run {run_id}: {', '.join(sides)} by turns")
        self._total = sum(stages.values())
        for what, count in stages.items():
            for _ in range(count):
                self._estimate.expect(what)
        if sys.stderr.isatty():
            self._start_bar(self._total)

    def stage(self, label: str, what: str) -> None:
        now = time.monotonic()
        if self._now:
            before, began = self._now
            self._estimate.took(before, now - began)
            self._timed = self._timed or before == RUNS
        self._now = (what, now)
        left = f"about {format_duration(self._estimate.seconds)} left" if self._timed else ""
        self._bar.update(description=f"{label} {what}", left=left)
        self._bar.advance()
        self._begun += 1
        if not self._bar.shown:
            so_far = f"part {self._begun} of {self._total}: {visible(label)} {what}"
            self._lines.tell(f"{so_far}, {left}" if left else so_far)

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
            TextColumn("{task.fields[left]}", style="dim"),
            description="starting",
            left="",
            total=stages,
            expand=False,
        )
