"""A bar on the user's terminal with lines above it; lines alone where nobody watches."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


class StatusBar:
    """On standard error. Nothing is shown before ``start``; lines can be said at any time."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @property
    def shown(self) -> bool:
        """Whether there is a bar now."""
        return self._progress is not None

    def start(
        self, *columns: ProgressColumn, description: str, total: float, expand: bool = True, **fields: Any
    ) -> None:
        """Put the bar up.

        Args:
            columns: of it. description, total: of its one task. fields: first values for the columns.
        """
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(*columns, expand=expand, console=Console(stderr=True), transient=True)
        self._progress.start()
        self._task = self._progress.add_task(description, total=total, **fields)

    def update(self, **fields: Any) -> None:
        """Change what the columns show; nothing without a bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, **fields)

    def advance(self) -> None:
        """One step further; nothing without a bar."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def say(self, text: str) -> None:
        """A line, above the bar if there is one."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            # Work goes on when nobody is left to read about it.
            with suppress(OSError, ValueError):
                print(text, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Take the bar off the terminal; again is harmless."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
