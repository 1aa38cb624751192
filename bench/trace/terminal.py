"""A breakdown as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bench.gate_output.text import visible
from bench.report.formatting import number, percent
from bench.trace.overview import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bench.trace.breakdown import Breakdown
    from bench.trace.overview import Overview

MOST_STEPS = 24
"""Of more steps than this the table would hide the rest; ``--json`` and ``--html`` have all."""


def render(overview: Overview) -> RenderableType:
    """The breakdown: ranks, collectives, and steps where they are marked."""
    parts: list[RenderableType] = [Text(f"{overview.scope_words}; shares of its time", style="dim")]
    rows = [(visible(rank.label), overview.shown(rank)) for rank in overview.ranks]
    if len(rows) > 1:
        rows.append(("mean", overview.mean))
    parts.append(_shares("rank", rows))
    if overview.mean.collectives:
        parts += [Text("communication", style="bold"), _collectives(overview), Text(headline(overview))]
    steps = overview.steps
    if 1 < len(steps) <= MOST_STEPS:
        over = ", mean over ranks" if len(overview.ranks) > 1 else ""
        parts += [Text(f"\nsteps{over}", style="bold"), _shares("step", [(str(step.step), step) for step in steps])]
    parts += [Text(f"note: {visible(remark)}", style="dim") for remark in overview.remarks]
    return Group(*parts)


def headline(overview: Overview) -> str:
    """What is asked for most: who has the communication, how much of it is hidden, what it costs a step."""
    mean = overview.mean
    gather, scatter = mean.communication_share("all_gather"), mean.communication_share("reduce_scatter")
    return (
        f"of the communication {percent(gather)} is all-gather, {percent(scatter)} reduce-scatter,"
        f" {percent(max(0.0, 1 - gather - scatter))} other; {percent(mean.overlap_share)} of it is hidden behind"
        f" computing, and the rest is {percent(mean.share(mean.exposed_us))} of the time"
    )


def milliseconds(us: float) -> str:
    """Microseconds, written in milliseconds."""
    return f"{number(us / 1000)} ms"


def _shares(first: str, rows: Sequence[tuple[str, Breakdown]]) -> Table:
    table = _table(first, "time", *(words for _, words in PARTS), "overlapped")
    for name, one in rows:
        shares = [percent(max(0.0, one.share(getattr(one, f"{part}_us")))) for part, _ in PARTS]
        table.add_row(Text(name), milliseconds(one.duration_us), *shares, percent(one.share(one.overlap_us)))
    return table


def _collectives(overview: Overview) -> Table:
    mean = overview.mean
    table = _table("collective", "calls, all traces", "time", "of communication", "exposed", "exposed, of time")
    for collective in mean.collectives:
        table.add_row(
            collective.name,
            f"{overview.calls.get(collective.name, 0):,}",
            milliseconds(collective.time_us),
            percent(mean.communication_share(collective.name)),
            milliseconds(collective.exposed_us),
            percent(mean.share(collective.exposed_us)),
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    return table
