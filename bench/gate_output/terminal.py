"""The gate's result on a terminal: what needs a look as a table, then notes, then the verdict."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.gate_output.text import case_name, change_text, threshold_text, value_text, visible, why

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

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


def print_result(result: GateResult, file: IO[str] | None = None) -> None:
    """Print a result on standard output or another file; colour is for a person's terminal."""
    Console(file=file).print(render(result))


def render(result: GateResult) -> RenderableType:
    """The result as a rich renderable."""
    return Group(*_parts(result))


def _parts(result: GateResult) -> Iterator[RenderableType]:
    sides = f"baseline {visible(result.baseline)}\ncandidate {visible(result.candidate)}"
    yield Text(f"{sides}\npolicy {visible(result.policy.source)}", style="dim")
    loud = [comparison for comparison in result.comparisons if comparison.verdict not in QUIET]
    quiet = [comparison for comparison in result.comparisons if comparison.verdict in QUIET]
    shown = [*loud[:MOST_LOUD], *(quiet if len(quiet) <= MOST_QUIET else ())]
    if shown:
        yield _table(shown)
    if left := len(result.comparisons) - len(shown):
        yield Text(f"{left:,} more not listed; --json, --html and --junit have all of them", style="dim")
    told = [comparison for comparison in shown if comparison.verdict not in QUIET or comparison.waived]
    for comparison in told:
        line = Text(comparison.outcome, style=_style(comparison))
        line.append(f"  {visible(comparison.suite)} {visible(comparison.metric)} {case_name(comparison)}", "not bold")
        yield Padding(line, (0, 0, 0, 2), expand=False)
        yield Padding(Text(f"{comparison.reason_code}: {why(comparison)}", style="dim"), (0, 0, 0, 4), expand=False)
    for note in result.notes:
        yield Text(f"note: {visible(note)}", style="dim")
    for error in result.errors:
        yield Text(f"error: {visible(error)}", style="bold red")
    tone = {0: "bold green", 3: "bold yellow"}.get(result.exit_code, "bold red")
    yield Text(result.headline, style=tone)


def _table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("verdict", no_wrap=True)
    for name in ("suite", "metric", "case"):
        table.add_column(name, overflow="fold")
    for name in ("baseline", "candidate", "change", "counts from"):
        table.add_column(name, justify="right", overflow="fold")
    for comparison in comparisons:
        table.add_row(
            Text(comparison.outcome, style=_style(comparison)),
            Text(visible(comparison.suite)),
            Text(visible(comparison.metric)),
            Text(case_name(comparison)),
            Text(value_text(comparison.baseline_value, comparison.unit)),
            Text(value_text(comparison.candidate_value, comparison.unit)),
            Text(change_text(comparison)),
            Text(threshold_text(comparison)),
        )
    return table


def _style(comparison: Comparison) -> str:
    return "yellow" if comparison.waived else STYLES[comparison.verdict]
