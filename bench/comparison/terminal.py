"""A comparison on a terminal: a table of sides, why some have no numbers, and what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bench.comparison.contract import largest_difference
from bench.comparison.view import (
    NONE,
    cell,
    contract_lines,
    duration,
    duration_range,
    headline,
    interval_text,
    matrix_values,
    parts_of,
    predicted_parts,
    prediction_lines,
    prediction_texts,
    shown,
    times,
    value_text,
)
from bench.gate_output.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from bench.comparison.outcome import Outcome
    from bench.comparison.processes import Record
    from bench.comparison.view import Matrix, View

WIDEST = 10_000
"""Columns of characters that no table needs."""
STYLES = {"skipped": "dim", "invalid": "bold red", "failed": "bold red", "timeout": "bold red"}


def print_outcome(outcome: Outcome, view: View, file: IO[str] | None = None) -> None:
    """Print a comparison on standard output or another file."""
    Console(file=file).print(render(outcome, view))


def render(outcome: Outcome, view: View) -> RenderableType:
    """The comparison as a rich renderable."""
    parts: list[RenderableType] = [_Sides(outcome, view), *_further(outcome, view)]
    parts += _parts(view.parts, *parts_of(outcome, view.residual))
    parts += _parts("What a predicted iteration is made of", *predicted_parts(outcome))
    for matrix in view.matrices:
        table = _matrix(outcome, view, matrix)
        parts += [Text(matrix.title, style="bold"), table] if table else []
    for record in outcome.records:
        if record.ending:
            parts.append(Text(f"{visible(record.label)}: {record.ending.status}: {visible(record.ending.reason)}"))
    parts += [
        Text(f"note: {visible(line)}", style="dim")
        for line in (*contract_lines(outcome), *prediction_lines(outcome), *view.remarks)
    ]
    parts.append(Text(visible(headline(outcome)), style="bold" if outcome.exit_code == 0 else "bold yellow"))
    return Group(*parts)


def difference_text(outcome: Outcome, record: Record, name: str) -> str:
    """How far a side's series is from the right one, over all iterations that both have."""
    right = outcome.right
    if right is None or record is right:
        return NONE
    difference = largest_difference(record.series.get(name, ()), right.series.get(name, ()))
    if difference is None:
        return NONE
    return "0" if difference.relative == 0 else f"{difference.relative:.1e}"


class _Sides:
    """A line a side: times and speedup, then metrics and series, in a table of their own where the width is small."""

    def __init__(self, outcome: Outcome, view: View) -> None:
        self._outcome = outcome
        self._view = view
        self._columns = shown(outcome, view.columns)
        self._differences = [name for name in view.curves if any(name in record.series for record in outcome.records)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(times_too=True, others_too=True)
        if Measurement.get(console, options.update(max_width=WIDEST), whole).maximum <= options.max_width:
            yield whole
            return
        yield self._table(times_too=True, others_too=False)
        if self._columns or self._differences:
            yield self._table(times_too=False, others_too=True)

    def _table(self, times_too: bool, others_too: bool) -> Table:
        outcome = self._outcome
        over = f"over {visible(outcome.reference.label)}"
        predicted = ["predicted", "off by"] if outcome.request.profile else []
        headings = ["iteration", "5 to 95 %", *predicted, over, "95 % interval"] if times_too else []
        if others_too:
            headings += [column.heading for column in self._columns]
            headings += [f"{name} off by" for name in self._differences]
        table = _table(self._view.side, headings)
        for record in outcome.timed:
            cells = self._times(record) if times_too else []
            if others_too:
                cells += [cell(outcome, record, column) for column in self._columns]
                cells += [difference_text(outcome, record, name) for name in self._differences]
            table.add_row(Text(visible(record.label), style="bold" if record is outcome.reference else ""), *cells)
        return table

    def _times(self, record: Record) -> list[str | Text]:
        outcome = self._outcome
        spread, speedup = times(outcome, record), outcome.speedup(record)
        status = record.ending.status if record.ending else "interrupted"
        return [
            duration(spread[1]) if spread else Text(status, style=STYLES.get(status, "yellow")),
            duration_range(spread[0], spread[2]) if spread else NONE,
            *(prediction_texts(outcome, record) if outcome.request.profile else ()),
            f"{speedup.value:.2f} x" if speedup else NONE,
            interval_text(speedup) if speedup else NONE,
        ]


def _further(outcome: Outcome, view: View) -> list[Table]:
    columns = shown(outcome, view.further)
    if not columns:
        return []
    table = _table(view.side, [column.heading for column in columns])
    for record in outcome.timed:
        if record.ending is None:
            table.add_row(Text(visible(record.label)), *(cell(outcome, record, column) for column in columns))
    return [table]


def _parts(title: str, names: Sequence[str], sizes: Mapping[str, Mapping[str, float]]) -> list[RenderableType]:
    """Where an iteration's time goes, a line a part."""
    if not names:
        return []
    table = _table("", [visible(label) for label in sizes])
    for name in names:
        cells = [duration(found[name]) if name in found else NONE for found in sizes.values()]
        table.add_row(Text(visible(name)), *cells)
    return [Text(title, style="bold"), table]


def _table(first: str, headings: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        # Text: a name of a file in it may look like rich's markup.
        table.add_column(Text(heading), justify="right")
    return table


def _matrix(outcome: Outcome, view: View, matrix: Matrix) -> Table | None:
    names, values = matrix_values(outcome, matrix)
    if not names:
        return None
    table = _table(view.side, names)
    for label, cells in values.items():
        table.add_row(
            Text(visible(label)),
            *(
                value_text(row.value, row.unit) if (row := cells.get(name)) and row.value is not None else NONE
                for name in names
            ),
        )
    return table
