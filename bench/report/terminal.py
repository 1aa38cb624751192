"""Tables of results for the terminal: a table a suite, fitted to the width, then what failed, then the verdict."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.report.cases import gather, is_settled
from bench.report.formatting import counted, number, parameter, parameters, percent, spread
from bench.report.layout import metric_order, suite_order, telling
from bench.report.problems import problems
from bench.report.verdict import STATUS_WORDS, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from bench.report.cases import CaseResult, SuiteResults
    from bench.report.problems import Problem
    from bench.store.row import Row, RunRecord

COLUMN_GAP = 2
WIDTH_STEP = 10
"""A width that is named to the reader is a multiple of this."""
LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
"""Variables by which launchers number a rank. mpirun gives rank 0 a terminal of its own that no person looks at."""
REDUNDANT_METRICS = {"algbw": "busbw"}
"""Metrics that follow from another one of the same case: they make room first."""
STATUS_STYLES = {"failed": "bold red", "timeout": "bold red", "invalid": "bold red", "skipped": "dim"}


def print_table(
    rows: Iterable[Row],
    runs: Iterable[RunRecord] = (),
    file: IO[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Print all rows as tables, with the verdict over ``runs``, on standard output or another file.

    Colour is for a person's terminal, not for the one that a launcher gives its ranks. The width is
    that of ``COLUMNS``, else the terminal's.
    """
    from rich.console import Console

    launched = any(name in environment for name in LAUNCHER_RANKS)
    console = Console(file=file, force_terminal=False if launched else None)
    console.print(summary_table(rows, runs))


def summary_table(rows: Iterable[Row], runs: Iterable[RunRecord] = ()) -> RenderableType:
    """All rows as a rich renderable; ``print_table`` prints it.

    Each suite is a table with a line a case: the parameters that vary, each metric's value with its
    spread (half the interquartile range, in percent), n, and wrong elements. ``~`` marks a value
    that did not settle. Columns that do not fit the width are left out, and named below the table.
    The records of ``runs`` tell how many cases were asked for; the verdict then counts those missing.
    """
    suites = suite_order(gather(rows))
    return _Summary(suites, Verdict.of(suites, runs))


class _Summary:
    def __init__(self, suites: list[SuiteResults], verdict: Verdict) -> None:
        self._suites = suites
        self._verdict = verdict

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sign = "+-" if options.ascii_only else "\N{PLUS-MINUS SIGN}"
        for suite in self._suites:
            yield from _suite(suite, options.max_width, sign)
        causes = problems(self._suites)
        if causes:
            yield Text("Not measured", style="bold")
            for cause in causes:
                yield from _problem(cause)
            yield Text()
        if marks := _marks(self._suites, sign):
            yield Text(marks, style="dim")
        tone = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}[self._verdict.tone]
        yield Text(self._verdict.text, style=tone)


def _marks(suites: list[SuiteResults], sign: str) -> str:
    """What the marks beside values mean, of those that the tables have."""
    rows = [row for suite in suites for case in suite.cases for row in case.measured]
    meanings = []
    if any(spread(row) is not None for row in rows):
        meanings.append(f"{sign} half the interquartile range of the samples")
    if not all(map(is_settled, rows)):
        meanings.append("~ did not settle")
    return "; ".join(meanings)


@dataclass
class _Column:
    """A column before it is known whether it fits.

    Attributes:
        title: may have lines.
        keep: columns are left out from the lowest up; infinite stays.
        cells: a text for each measured case.
        metric: it holds values of a metric.
    """

    title: str
    keep: float
    cells: list[Text]
    right: bool = True
    metric: bool = False

    @property
    def width(self) -> int:
        return max(*map(len, self.title.split("\n")), *(cell.cell_len for cell in self.cells))


def _suite(suite: SuiteResults, width: int, sign: str) -> Iterator[RenderableType]:
    measured = [case for case in suite.cases if case.measured]
    yield _heading(suite)
    if not measured:
        yield Text("  no case was measured", style="dim")
        yield Text()
        return
    columns = list(_columns(suite, measured, sign))
    needed = math.ceil(_total_width(columns) / WIDTH_STEP) * WIDTH_STEP
    columns, left_out = _fitting(columns, width)
    # The box puts one more blank between columns.
    table = Table(box=SIMPLE_HEAD, padding=(0, COLUMN_GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    # Where columns had to go, a line may have nothing left to say but its parameters.
    places = [place for place in range(len(measured)) if not left_out or _has_value(columns, place)]
    shown = [measured[place] for place in places]
    for line, place in enumerate(places):
        table.add_row(*(column.cells[place] for column in columns), end_section=_ends_section(suite, shown, line))
    yield table
    if left_out:
        lines = f", {counted(len(measured) - len(shown), 'line')} of these alone" if len(shown) < len(measured) else ""
        yield Text(f"left out for the width: {', '.join(left_out)}{lines}; COLUMNS={needed} shows them", style="dim")
    yield Text()


def _heading(suite: SuiteResults) -> Text:
    """Name, what all cases share, and whether the emulated cluster measured any of it."""
    heading = Text(suite.name, style="bold")
    fixed = {name: value for name, value in suite.fixed.items() if name != "lab"}
    if fixed:
        heading.append(f"  {parameters(fixed)}", style="not bold dim")
    emulated = [case for case in suite.cases if case.emulated]
    if emulated:
        shapes = ", ".join(dict.fromkeys(str(case.params.get("lab", "")) for case in emulated))
        which = "" if len(emulated) == len(suite.cases) else "scope=lab is the "
        heading.append(f"\n{which}emulated cluster, not hardware: {shapes}", style="magenta")
    return heading


def _columns(suite: SuiteResults, measured: list[CaseResult], sign: str) -> Iterator[_Column]:
    """All columns that there is something to say in, in order."""
    told = telling(suite.name, measured)
    for name in suite.varying:
        if name == "lab" and len({case.params.get("lab") for case in measured}) <= 2:
            continue  # The heading tells the one shape; scope tells the rows.
        values = [case.params.get(name) for case in measured]
        cells = [Text("" if value is None else parameter(name, value)) for value in values]
        numeric = all(isinstance(value, (int, float)) for value in values if value is not None)
        yield _Column(name, float("inf") if name in told else 0, cells, right=numeric)
    units = {metric.name: metric.unit for metric in suite.metrics}
    shown = {row.metric for case in measured for row in case.measured}
    for place, name in enumerate(metric_order(suite)):
        if name not in shown:
            continue
        rows = [case.rows.get(name) for case in measured]
        unit = "" if units[name] in ("ratio", "count") else f" {units[name]}"
        keep = float("inf") if place == 0 else 10 - place
        if REDUNDANT_METRICS.get(name) in shown:
            keep = -1
        yield _Column(name + unit, keep, _values(rows, sign), metric=True)
    yield _Column("n", 1, [Text(str(max(row.n for row in case.measured))) for case in measured])
    yield _Column("wrong", 20, [_wrong(case) for case in measured])


def _values(rows: Sequence[Row | None], sign: str) -> list[Text]:
    """Values and spreads, each under the other."""
    shown = [None if row is None or row.value is None else row for row in rows]
    values = ["" if row is None else ("" if is_settled(row) else "~") + number(row.value or 0.0) for row in shown]
    spreads = ["" if row is None else _spread(row, sign) for row in shown]
    width = max(map(len, spreads))
    cells = []
    for row, value, scatter in zip(shown, values, spreads, strict=True):
        cell = Text(value, style="" if row is None or is_settled(row) else "yellow")
        if width:
            cell.append(" " + scatter.rjust(width), style="dim")
        cells.append(cell)
    return cells


def _spread(row: Row, sign: str) -> str:
    width = spread(row)
    return "" if width is None else f"{sign}{percent(width)}"


def _wrong(case: CaseResult) -> Text:
    if case.wrong is None:
        return Text("unchecked", style="dim")
    return Text(f"{case.wrong:,}", style="bold red" if case.wrong else "")


def _fitting(columns: list[_Column], width: int) -> tuple[list[_Column], list[str]]:
    """The columns that fit the width, titles folded before a column has to go, and the titles of those left out."""
    left_out: list[str] = []
    if _total_width(columns) > width:
        columns = [replace(column, title=_folded(column.title)) if column.metric else column for column in columns]
    while _total_width(columns) > width:
        least = min(columns, key=lambda column: column.keep)
        if least.keep == float("inf"):
            break  # rich shortens what is left.
        columns.remove(least)
        left_out.append(least.title.replace("\n", ""))
    return columns, left_out


def _folded(title: str) -> str:
    """In two lines, parted after the ``_`` that is nearest to the middle."""
    places = [place + 1 for place, letter in enumerate(title) if letter == "_"]
    if not places:
        return title
    middle = min(places, key=lambda place: abs(2 * place - len(title)))
    return f"{title[:middle]}\n{title[middle:]}"


def _has_value(columns: Iterable[_Column], place: int) -> bool:
    return any(column.metric and column.cells[place].plain.strip() for column in columns)


def _total_width(columns: Iterable[_Column]) -> int:
    widths = [column.width for column in columns]
    return sum(widths) + COLUMN_GAP * (len(widths) - 1)


def _ends_section(suite: SuiteResults, measured: list[CaseResult], place: int) -> bool:
    """True before the first parameter changes, so that long tables fall into groups."""
    if len(suite.varying) < 2 or place + 1 == len(measured):
        return False
    first: Callable[[CaseResult], object] = lambda case: case.params.get(suite.varying[0])  # noqa: E731
    return first(measured[place]) != first(measured[place + 1])


def _problem(problem: Problem) -> Iterator[RenderableType]:
    """The cause, with its case or the number of them; stacks are for the HTML report."""
    case, detail = problem.cases[0]
    line = Text(STATUS_WORDS[problem.status], style=STATUS_STYLES[problem.status])
    metrics = f"{', '.join(problem.metrics)} of " if problem.metrics else ""
    if len(problem.cases) == 1:
        which = f"{problem.suite} {metrics}{problem.parameters_of(case)}"
    else:
        which = f"{problem.suite} {metrics}{counted(len(problem.cases), 'case')}"
    line.append(f"  {which}", style="not bold")
    yield Padding(line, (0, 0, 0, 2), expand=False)
    stacks = " (stacks are in the HTML report)" if detail else ""
    yield Padding(Text(problem.summary + stacks, style="dim"), (0, 0, 0, 4), expand=False)
