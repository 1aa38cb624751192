"""What the user sees while a run goes on: a bar on a terminal, else a line now and then; rows for programs."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import IO, TYPE_CHECKING

from bench.progress_lines import ProgressLines
from bench.report.formatting import counted
from bench.session import Listener
from bench.status_bar import StatusBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.store.row import Row
    from bench.sweep import Job

FIRST_GUESS_S = 1.5
"""Time of a case before any of its suite has been seen."""


class ConsoleListener(Listener):
    """Shows a run on standard error, and hands its rows on.

    Args:
        rows_to: gets each row as a JSON line as soon as it is safe on disk; None for nobody.

    Attributes:
        rows_error: why ``rows_to`` got no more rows; None while it gets all.
    """

    def __init__(self, rows_to: IO[str] | None = None) -> None:
        self._rows_to = rows_to
        self.rows_error: OSError | None = None
        self._bar = StatusBar()
        self._estimate = TimeLeft()
        self._lines = ProgressLines(self._bar.say)
        self._done = self._total = 0

    def started(self, run_id: str, jobs: Sequence[Job], resumed: int) -> None:
        self._estimate = TimeLeft()
        for job in jobs:
            self._estimate.expect(job.suite_name)
        self._done, self._total = 0, len(jobs)
        self._lines = ProgressLines(self._bar.say)
        again = f", {resumed} measured before" if resumed else ""
        self._bar.say(f"run {run_id}: {len(jobs)} case(s){again}")
        if sys.stderr.isatty():
            self._start_bar(len(jobs))

    def case_started(self, job: Job) -> None:
        if self._bar.shown:
            left = format_duration(self._estimate.seconds)
            self._bar.update(description=f"{job.suite_name}", case=describe(job), left=left)

    def case_ended(self, job: Job, rows: Sequence[Row], seconds: float) -> None:
        self._estimate.took(job.suite_name, seconds)
        if self._rows_to:
            try:
                self._rows_to.write("".join(f"{row.to_json()}\n" for row in rows))
                self._rows_to.flush()
            except OSError as error:
                self._rows_to, self.rows_error = None, error
                self._bar.say(f"rows cannot be written any more ({error.strerror}); they go on into the store")
        bad = next((row for row in rows if row.status in ("failed", "timeout", "invalid")), None)
        if bad:
            self._bar.say(f"{bad.status}: {job.suite_name} {describe(job)}: {bad.reason}")
        self._bar.advance()
        self._done += 1
        if not self._bar.shown and self._done < self._total:
            left = format_duration(self._estimate.seconds)
            self._lines.tell(f"{self._done} of {counted(self._total, 'case')} done, about {left} left")

    def note(self, text: str) -> None:
        self._bar.say(text)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.stop()

    def _start_bar(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.table import Column

        # The case gets what the others leave, and is cut at the end: the bar must stay whole.
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        fixed = [Column(no_wrap=True, min_width=width) for width in (12, 16, 9, 11)]
        self._bar.start(
            TextColumn("{task.description}", table_column=fixed[0]),
            BarColumn(bar_width=16, table_column=fixed[1]),
            MofNCompleteColumn(table_column=fixed[2]),
            TextColumn("{task.fields[left]} left", table_column=fixed[3]),
            TextColumn("{task.fields[case]}", style="dim", table_column=rest),
            description="starting",
            total=total,
            case="",
            left="?",
        )


class TimeLeft:
    """Estimates the rest of a run from how long the cases of each suite took so far."""

    def __init__(self) -> None:
        self._left: dict[str, int] = defaultdict(int)
        self._taken: dict[str, list[float]] = defaultdict(list)

    def expect(self, suite: str) -> None:
        """One more case of the suite is to come."""
        self._left[suite] += 1

    def took(self, suite: str, seconds: float) -> None:
        """A case of the suite is done."""
        self._left[suite] -= 1
        self._taken[suite].append(seconds)

    @property
    def seconds(self) -> float:
        """Seconds until the end, at the mean pace of each suite."""
        return sum(count * self._pace(suite) for suite, count in self._left.items())

    def _pace(self, suite: str) -> float:
        taken = self._taken.get(suite)
        return sum(taken) / len(taken) if taken else FIRST_GUESS_S


def describe(job: Job) -> str:
    """The case's parameters as people read them."""
    names = {axis.name: axis for axis in job.suite.axes}
    return " ".join(
        f"{name}={names[name].format(value) if name in names else value}" for name, value in job.case.params.items()
    )


def format_duration(seconds: float) -> str:
    """``75`` as ``1m15s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
