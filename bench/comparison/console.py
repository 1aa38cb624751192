"""What the user sees while a comparison goes on: a bar on a terminal, and a line for what goes wrong."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from bench.comparison.turns import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress, TaskID


class ConsoleWatcher(Watcher):
    """Tells on standard error; a context manager that takes the bar away again."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def started(self, run_id: str, sides: Sequence[str], stages: int) -> None:
        self._say(f"run {run_id}: {', '.join(sides)} by turns")
        if sys.stderr.isatty():
            self._start_bar(stages)

    def stage(self, label: str, what: str) -> None:
        if self._progress and self._task is not None:
            self._progress.update(self._task, description=f"{label} {what}")
            self._progress.advance(self._task)

    def ended(self, label: str, status: str, reason: str) -> None:
        self._say(f"{status}: {label}: {reason}")

    def note(self, text: str) -> None:
        self._say(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _say(self, text: str) -> None:
        if self._progress:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            # A comparison goes on when nobody is left to read about it.
            with suppress(OSError, ValueError):
                print(text, file=sys.stderr, flush=True)

    def _start_bar(self, stages: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("starting", total=stages)
