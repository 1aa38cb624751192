"""The words of a history that the terminal and the page share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.gate_output.text import visible
from bench.report.formatting import counted, number, parameters, unit_sign

if TYPE_CHECKING:
    from bench.history_series import Change, History, Series


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
    found = change.found
    ends = ", ".join(share(end) for end in found.interval)
    levels = f"{number(found.before)} to {value_text(found.after, one.unit)}"
    return f"{found.status} {change.kind} {share(found.effect)} [{ends}]: {levels}"


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
    if one.drifting:
        said.append("drifts: a slope, not a step")
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
    if not standing:
        parts.append("no regression stands")
    if history.lost:
        parts.append(f"the newest run, {visible(history.lost)}, left no row")
    tone = (
        "bad"
        if confirmed or broken or history.lost
        else "warn"
        if standing or not any(one.judged for one in present)
        else "good"
    )
    return "; ".join(parts) + ".", tone
