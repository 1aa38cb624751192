"""What the user sees while an interleaved gate measures: a bar on a terminal, a line a turn elsewhere."""

from __future__ import annotations

import sys

from bench.console import format_duration
from bench.gate_output.text import visible
from bench.interleave import Watcher
from bench.status_bar import StatusBar


class ConsoleWatcher(Watcher):
    """Shows an interleaved gate on standard error.

    Args:
        budget_s: seconds that all turns may take.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._bar = StatusBar()
        self._turns = 0

    def note(self, text: str) -> None:
        self._bar.say(visible(text) if self._bar.shown else f"bench: {visible(text)}")

    def turn(self, stage: str, side: str, suite: str, unsettled: int, seconds_left: float) -> None:
        self._turns += 1
        left = max(0.0, seconds_left)
        cases = f"{unsettled} case(s) open" if unsettled else "all cases"
        if not sys.stderr.isatty():
            self.note(f"{stage}, turn {self._turns}: {suite} of {side}, {cases}, at most {format_duration(left)} left")
            return
        if not self._bar.shown:
            self._start_bar()
        self._bar.update(
            completed=self._budget_s - left,
            description=f"{stage}, turn {self._turns}",
            what=f"{visible(suite)} of {visible(side)}, {cases}",
            left=f"at most {format_duration(left)} left",
        )

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.stop()

    def _start_bar(self) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.table import Column

        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bar.start(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=20)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[what]}", style="dim", table_column=rest, markup=False),
            description="search",
            total=self._budget_s,
            what="",
            left="",
        )
