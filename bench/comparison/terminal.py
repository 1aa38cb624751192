"""A comparison on a terminal: a table of sides, why some have no numbers, and what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bench.comparison.contract import largest_difference
from bench.comparison.view import (
    NONE,
    cell,
    contract_lines,
    duration,
    headline,
    matrix_values,
    speedup_text,
    times,
    value_text,
)
from bench.gate_output.text import visible

if TYPE_CHECKING:
    from typing import IO

    from rich.console import RenderableType

    from bench.comparison.outcome import Outcome
    from bench.comparison.processes import Record
    from bench.comparison.view import Matrix, View

STYLES = {"ok": "green", "skipped": "dim", "invalid": "bold red", "failed": "bold red", "timeout": "bold red"}


def print_outcome(outcome: Outcome, view: View, file: IO[str] | None = None) -> None:
    """Print a comparison on standard output or another file."""
    Console(file=file).print(render(outcome, view))


def render(outcome: Outcome, view: View) -> RenderableType:
    """The comparison as a rich renderable."""
    parts: list[RenderableType] = [_sides(outcome, view)]
    parts += [table for matrix in view.matrices if (table := _matrix(outcome, view, matrix)) is not None]
    for record in outcome.records:
        if record.ending:
            parts.append(Text(f"{visible(record.label)}: {record.ending.status}: {visible(record.ending.reason)}"))
    parts += [Text(f"note: {visible(line)}", style="dim") for line in (*contract_lines(outcome), *view.remarks)]
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


def _sides(outcome: Outcome, view: View) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(view.side, no_wrap=True)
    differences = [name for name in view.curves if any(name in record.series for record in outcome.records)]
    columns = [column for column in view.columns if any(cell(outcome, one, column) != NONE for one in outcome.timed)]
    headings = ["iteration", "5 to 95 %", f"speedup over {outcome.reference.label}", *(c.heading for c in columns)]
    for heading in (*headings, *(f"{name} off by" for name in differences)):
        table.add_column(heading, justify="right")
    for record in outcome.timed:
        spread, speedup = times(outcome, record), outcome.speedup(record)
        status = record.ending.status if record.ending else "ok"
        time = (
            (status, NONE)
            if spread is None
            else (duration(spread[1]), f"{duration(spread[0])} to {duration(spread[2])}")
        )
        table.add_row(
            Text(visible(record.label), style="bold" if record is outcome.reference else ""),
            Text(time[0], style="" if spread else STYLES[status]),
            time[1],
            speedup_text(speedup) if speedup else NONE,
            *(cell(outcome, record, column) for column in columns),
            *(difference_text(outcome, record, name) for name in differences),
        )
    return table


def _matrix(outcome: Outcome, view: View, matrix: Matrix) -> Table | None:
    names, values = matrix_values(outcome, matrix)
    if not names:
        return None
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title_justify="left")
    table.title = matrix.title
    table.add_column(view.side, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for label, cells in values.items():
        table.add_row(
            Text(visible(label)),
            *(
                value_text(row.value, row.unit) if (row := cells.get(name)) and row.value is not None else NONE
                for name in names
            ),
        )
    return table
