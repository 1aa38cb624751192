"""What the user sees while an interleaved gate measures: a bar on a terminal, a line a turn elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from bench.console import format_duration
from bench.gate_output.text import visible
from bench.interleave import Watcher

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ConsoleWatcher(Watcher):
    """Shows an interleaved gate on standard error.

    Args:
        budget_s: seconds that all turns may take.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._turns = 0

    def note(self, text: str) -> None:
        if self._progress:
            self._progress.console.print(visible(text), markup=False, highlight=False)
            return
        with suppress(OSError, ValueError):
            print(f"bench: {visible(text)}", file=sys.stderr, flush=True)

    def turn(self, stage: str, side: str, suite: str, unsettled: int, seconds_left: float) -> None:
        self._turns += 1
        left = max(0.0, seconds_left)
        cases = f"{unsettled} case(s) open" if unsettled else "all cases"
        if not sys.stderr.isatty():
            self.note(f"{stage}, turn {self._turns}: {suite} of {side}, {cases}, at most {format_duration(left)} left")
            return
        if self._progress is None:
            self._start_bar()
        assert self._progress is not None
        assert self._task is not None
        self._progress.update(
            self._task,
            completed=self._budget_s - left,
            description=f"{stage}, turn {self._turns}",
            what=f"{visible(suite)} of {visible(side)}, {cases}",
            left=f"at most {format_duration(left)} left",
        )

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=20)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[what]}", style="dim", table_column=rest, markup=False),
            expand=True,
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("search", total=self._budget_s, what="", left="")
