"""A history on a terminal: a line a series with its sparkline, then its changes, then the verdict."""

from __future__ import annotations

import statistics
from typing import IO, TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.gate_output.text import visible
from bench.history_output.text import (
    case_text,
    change_text,
    share,
    since_text,
    slope_text,
    span_text,
    state_text,
    value_text,
    verdict,
)
from bench.report.formatting import parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.history_series import Change, History, Series, Slope

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
GAP, ASCII_GAP = "·", " "
SPARK_WIDTH = 40
"""Characters of a sparkline; longer series have several points a character, of which it shows the median."""
LEAST_SPARK_WIDTH = 10
OTHER_COLUMNS_WIDTH = 46
"""Of points, gaps, value, trend and changes with their margins."""
STYLES = {"regression": "red", "improvement": "green", "change": "yellow"}
TONES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}


def print_history(history: History, file: IO[str] | None = None) -> None:
    """Print a history on standard output or another file; colour is for a person's terminal."""
    console = Console(file=file)
    plain = not (console.encoding or "").lower().startswith("utf")
    for suite in dict.fromkeys(one.suite for one in history.series):
        _print_suite(console, history.metric, [one for one in history.series if one.suite == suite], plain)
    text, tone = verdict(history)
    console.print(Text(text, style=TONES[tone]))


def _print_suite(console: Console, metric: str, series: Sequence[Series], plain: bool) -> None:
    fixed, varying = _names(series)
    heading = Text(f"{visible(series[0].suite)} {visible(metric)}", style="bold")
    if fixed:
        heading.append(f"  {visible(parameters(series[0].params, fixed))}", style="not bold dim")
    heading.append(f"  better: {visible(series[0].better)}", style="not bold dim")
    console.print(heading)
    names = [visible(parameters(one.params, varying)) or "-" for one in series]
    width = _spark_width(console.width, max(map(len, names)))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("case", overflow="fold")
    for title in ("history", "points", "gaps", "now", "trend", "changes"):
        table.add_column(title, justify="left" if title == "history" else "right", no_wrap=True)
    for name, one in zip(names, series, strict=True):
        known = sum(point.value is not None for point in one.shown)
        table.add_row(
            Text(name),
            Text(sparkline([point.value for point in one.shown], plain, width)),
            str(known),
            str(len(one.shown) - known or ""),
            Text(value_text(one.level, visible(one.unit))),
            "-" if one.trend is None else share(one.trend),
            str(len(one.changes)),
        )
    console.print(table)
    for one in series:
        if one.began:
            console.print(
                Padding(Text(f"{case_text(one)}: new series: {visible(one.began)}", style="dim"), (0, 0, 0, 2))
            )
        if state := state_text(one):
            console.print(Padding(Text(f"{case_text(one)}: {state}", style="yellow"), (0, 0, 0, 2)))
        for change in one.changes:
            _print_found(console, one, change, change_text(one, change), since_text(one, change))
        for slope in one.slopes:
            _print_found(console, one, slope, slope_text(one, slope), span_text(one, slope))
    console.print()


def _print_found(console: Console, one: Series, found: Change | Slope, what: str, where: str) -> None:
    style = STYLES[found.kind] + (" bold" if found.stands and not one.superseded else "")
    line = Text(visible(what), style=style)
    line.append(f"  {case_text(one)}", style="default not bold")
    console.print(Padding(line, (0, 0, 0, 2)))
    console.print(Padding(Text(where, style="dim"), (0, 0, 0, 4)))


def _spark_width(console_width: int, name_width: int) -> int:
    """What the other columns leave, within reason."""
    return max(LEAST_SPARK_WIDTH, min(SPARK_WIDTH, console_width - min(name_width, 30) - OTHER_COLUMNS_WIDTH))


def _names(series: Sequence[Series]) -> tuple[list[str], list[str]]:
    """Parameters that all series share, and those that tell them apart."""
    names = list(dict.fromkeys(name for one in series for name in one.params))
    values = {name: {(type(one.params.get(name)).__name__, one.params.get(name)) for one in series} for name in names}
    return [n for n in names if len(values[n]) == 1], [n for n in names if len(values[n]) > 1]


def sparkline(values: Sequence[float | None], plain: bool = False, most: int = SPARK_WIDTH) -> str:
    """The values as characters of rising height, from the least to the greatest; a gap is no height at all."""
    blocks, gap = (ASCII_BLOCKS, ASCII_GAP) if plain else (BLOCKS, GAP)
    width = min(most, len(values))
    groups = [values[number * len(values) // width : (number + 1) * len(values) // width] for number in range(width)]
    heights = [statistics.median(known) if (known := [v for v in group if v is not None]) else None for group in groups]
    present = [height for height in heights if height is not None]
    if not present:
        return gap * width
    low, span = min(present), max(present) - min(present)
    top = len(blocks) - 1
    return "".join(
        gap if height is None else blocks[round((height - low) / span * top) if span else top // 2]
        for height in heights
    )
