"""The gate's result on a terminal: what needs a look as a table, then notes, then the verdict."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.gate_output.text import (
    BY_TURNS,
    CaseNames,
    change_text,
    change_title,
    interval_text,
    threshold_text,
    value_text,
    why,
)
from bench.gate_output.text import visible as _visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from bench.gate_result import Comparison, GateResult

STYLES = {
    "regressed": "bold red",
    "failed": "bold red",
    "missing": "bold red",
    "inconclusive": "yellow",
    "improved": "green",
    "new": "cyan",
    "pass": "dim",
}
QUIET = ("pass", "new")
MOST_QUIET = 20
"""Comparisons that need no look are listed up to this number; more are counted."""
MOST_LOUD = 200
FOLDED_WIDTH = 24
"""To which names are folded before a column is left out for them."""
VERDICT_WIDTH = 15
LEFT_OUT_FIRST = ("counts from", "baseline", "candidate", "95 % interval")
COMMAND = re.compile(r"::(?=[\w-]+[^:]*::)")
"""Begins a command to the runner of a CI system that reads the log, if a line begins with it."""


def visible(text: str) -> str:
    """As in the other outputs; wrapped lines begin anywhere, so nothing that could begin a command is left."""
    return COMMAND.sub(r":\\x3a", _visible(text))


def print_result(result: GateResult, file: IO[str] | None = None) -> None:
    """Print a result on standard output or another file; colour is for a person's terminal."""
    Console(file=file).print(render(result))


def render(result: GateResult) -> RenderableType:
    """The result as a rich renderable."""
    return Group(*_parts(result))


def _parts(result: GateResult) -> Iterator[RenderableType]:
    sides = f"baseline {visible(result.baseline)}\ncandidate {visible(result.candidate)}"
    yield Text(f"{sides}\npolicy {visible(result.policy.source)}\n", style="dim")
    names = CaseNames(result.comparisons)
    suites = dict.fromkeys(comparison.suite for comparison in result.comparisons)
    left = 0
    for suite in suites:
        found = [comparison for comparison in result.comparisons if comparison.suite == suite]
        loud = [comparison for comparison in found if comparison.verdict not in QUIET]
        quiet = [comparison for comparison in found if comparison.verdict in QUIET]
        shown = [*loud[:MOST_LOUD], *(quiet if len(quiet) <= MOST_QUIET else ())]
        left += len(found) - len(shown)
        if shown:
            heading = Text(f"  {visible(suite)}", style="bold")
            heading.append(f"  {visible(names.shared(suite))}", style="not bold dim")
            yield heading
            yield _Table(shown, names)
            if any(comparison.by_turns for comparison in shown):
                yield Text(f"  {BY_TURNS}", style="dim")
            yield from _reasons([comparison for comparison in shown if comparison in loud], names)
            yield Text()
    if left:
        yield Text(f"{left:,} more not listed; --json, --html and --junit have all of them", style="dim")
    for note in result.notes:
        yield Text(f"note: {visible(note)}", style="dim")
    for error in result.errors:
        yield Text(f"error: {visible(error)}", style="bold red")
    tone = {0: "bold green", 3: "bold yellow"}.get(result.exit_code, "bold red")
    yield Text(visible(result.headline), style=tone)


class _Table:
    """The comparisons of a suite; on a narrow terminal columns are left out, from the least telling."""

    def __init__(self, comparisons: Sequence[Comparison], names: CaseNames) -> None:
        self._comparisons = comparisons
        self._names = names

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._columns()
        for name in LEFT_OUT_FIRST:
            if sum(2 + min(width, most) for width, most in self._widths(columns)) <= options.max_width:
                break
            columns.pop(name, None)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for name in columns:
            folds = name in ("verdict", "metric", "case")
            table.add_column(
                name.partition("/")[0],
                justify="left" if folds else "right",
                no_wrap=not folds,
                overflow="fold" if folds else "ellipsis",
            )
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*cells)
        yield table

    def _columns(self) -> dict[str, list[Text]]:
        """Cells by column; what follows a slash tells two columns of one title apart."""
        found = self._comparisons
        columns = {
            "verdict": [Text(_verdict(comparison), style=_style(comparison)) for comparison in found],
            "metric": [Text(visible(comparison.metric)) for comparison in found],
            "case": [Text(visible(self._names.of(comparison))) for comparison in found],
            "baseline": [Text(value_text(comparison.baseline_value, comparison.unit)) for comparison in found],
            "candidate": [Text(value_text(comparison.candidate_value, comparison.unit)) for comparison in found],
            change_title(found): [Text(change_text(comparison, interval=False)) for comparison in found],
            "95 % interval": [Text(interval_text(comparison)) for comparison in found],
            "counts from": [Text(threshold_text(comparison)) for comparison in found],
        }
        return {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}

    def _widths(self, columns: dict[str, list[Text]]) -> Iterator[tuple[int, int]]:
        """The width that each column wants, and the most that it needs: names may be folded."""
        for name, cells in columns.items():
            most = FOLDED_WIDTH if name in ("metric", "case") else 10**6
            if name == "verdict":  # Folded between words.
                most = max(VERDICT_WIDTH, *(len(word) for cell in cells for word in cell.plain.split()))
            yield max(len(name), *(cell.cell_len for cell in cells)), most


def _reasons(comparisons: Sequence[Comparison], names: CaseNames) -> Iterator[RenderableType]:
    for comparison in comparisons:
        line = Text(comparison.outcome, style=_style(comparison))
        line.append(f"  {visible(comparison.metric)} {visible(names.of(comparison))}".rstrip(), "not bold")
        yield Padding(line, (0, 0, 0, 2), expand=False)
        yield Padding(
            Text(f"{comparison.reason_code}: {visible(why(comparison))}", style="dim"), (0, 0, 0, 4), expand=False
        )


def _verdict(comparison: Comparison) -> str:
    """The outcome; of what is new also why, since its numbers do not tell."""
    return f"new: {comparison.reason_code}" if comparison.verdict == "new" else comparison.outcome


def _style(comparison: Comparison) -> str:
    return "yellow" if comparison.waived else STYLES[comparison.verdict]
