"""The words of a history that the terminal and the page share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.gate_output.text import visible
from bench.report.formatting import counted, number, parameters, unit_sign

if TYPE_CHECKING:
    from bench.history_series import Change, History, Series, Slope
    from bench.stats.findings import ChangePoint, Drift


def share(value: float) -> str:
    """A relative change: ``+5.1%``; plus where the number rose, also of a negative one."""
    return f"{value * 100:+.1f}%" if math.isfinite(value) else "from zero"


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit; a dash for none."""
    return "-" if value is None else f"{number(value)} {unit_sign(unit)}".strip()


def case_text(one: Series) -> str:
    """The case as people read it, on one line."""
    return visible(parameters(one.params) or one.case or "(no parameters)")


def change_text(one: Series, change: Change) -> str:
    """``confirmed regression +5.1% [+4.0%, +6.2%]: 101 to 106 us``."""
    return f"{change.found.status} {change.kind} {_sizes(one, change.found)}"


def slope_text(one: Series, slope: Slope) -> str:
    """``confirmed drift (regression) +5.1% [+4.0%, +6.2%]: 101 to 106 us``."""
    return f"{slope.found.status} drift ({slope.kind}) {_sizes(one, slope.found)}"


def span_text(one: Series, slope: Slope) -> str:
    """From which to which run a drift goes, and that no commit is to be looked for."""
    first, last = (one.points[place] for place in (slope.found.first, slope.found.last))
    return (
        f"all along from {visible(first.started_at[:10])}, run {visible(first.run_id)}, to"
        f" {visible(last.started_at[:10])}, run {visible(last.run_id)}, {counted(slope.found.points, 'point')};"
        " a slope explains them as well as a step, so no commit is named"
    )


def _sizes(one: Series, found: ChangePoint | Drift) -> str:
    ends = ", ".join(share(end) for end in found.interval)
    return f"{share(found.effect)} [{ends}]: {number(found.before)} to {value_text(found.after, one.unit)}"


def since_text(one: Series, change: Change) -> str:
    """Since which run and commits, and how many points tell so."""
    found = change.found
    point = one.points[found.index]
    return (
        f"since {visible(point.started_at[:10])}, run {visible(point.run_id)}, {visible(change.commits)}; "
        f"{counted(found.points_before, 'point')} before and {found.points_after} after"
    )


def state_text(one: Series) -> str:
    """What is to be said of a series beside its changes; empty for nothing."""
    said = []
    if not one.judged:
        said.append("too few points to judge")
    if one.newest.status not in ("ok", "skipped"):
        said.append(f"newest run: {one.newest.status}")
    if one.superseded:
        said.append("ended")
    return ", ".join(said)


def verdict(history: History) -> tuple[str, str]:
    """The last line, and its tone: good, warn or bad."""
    present = [one for one in history.series if not one.superseded]
    standing = [one.standing for one in present if one.standing and one.standing.kind == "regression"]
    confirmed = sum(change.found.status == "confirmed" for change in standing)
    broken = sum(one.newest.status not in ("ok", "skipped") for one in present)
    parts = [f"{counted(len(history.series), 'series', 'series')} judged together"]
    if confirmed:
        parts.append(f"{counted(confirmed, 'confirmed regression')} that stand{'s' if confirmed == 1 else ''}")
    if len(standing) > confirmed:
        parts.append(f"{len(standing) - confirmed} suspected")
    if broken:
        parts.append(f"{broken} not measured by the newest run")
    if unjudged := sum(not one.judged for one in present):
        parts.append(f"{unjudged} with too few points yet")
    if worsening := sum(one.worsening for one in present):
        parts.append(f"{worsening} drifting for the worse")
    if not standing and not worsening:
        parts.append("no regression stands")
    if history.lost:
        parts.append(f"the newest run, {visible(history.lost)}, left no row")
    tone = (
        "bad"
        if confirmed or broken or history.lost
        else "warn"
        if standing or worsening or not any(one.judged for one in present)
        else "good"
    )
    return "; ".join(parts) + ".", tone
