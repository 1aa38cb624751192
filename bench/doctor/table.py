"""The checks as people read them: a table, then the commands that would add what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from bench.doctor.check import Check, Status

STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "missing": "red", "n/a": "dim"}


def render(checks: Sequence[Check], suites: Iterable[tuple[str, str | None]] = ()) -> RenderableType:
    """What ``Console.print`` shows; print it with ``crop=False``, so that commands stay whole in a pipe.

    Args:
        suites: name of each suite, and why it cannot run here, or None if it can.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # Texts, not strings: rich would take the extra in 'package[gpu]' for markup.
    table = Table(box=None, pad_edge=False)
    for title in ("", "check", "found"):
        table.add_column(title, overflow="fold")
    for check in checks:
        table.add_row(Text(check.status, STYLES[check.status]), Text(check.name), Text(check.found))
    for name, reason in suites:
        style = STYLES["n/a" if reason else "ok"]
        table.add_row(Text("n/a" if reason else "ok", style), Text(f"suite {name}"), Text(reason or "runs"))
    lines: list[RenderableType] = [table]
    to_fix = [check for check in checks if check.fix]
    if to_fix:
        lines += [Text(), Text("To add or repair:")]
    for check in to_fix:
        lines.append(Text(f"  {check.name}:", STYLES[check.status]))
        lines.append(Text(f"    {check.fix}", no_wrap=True, overflow="ignore"))
    lines += [Text(), Text(_verdict(checks), "bold")]
    return Group(*lines)


def _verdict(checks: Sequence[Check]) -> str:
    absent = [check.name for check in checks if check.required and check.status == "missing"]
    if absent:
        return f"Nothing can be measured yet: {', '.join(absent)}."
    warnings = sum(check.status == "warn" for check in checks)
    return f"Ready to measure, with {warnings} warning(s)." if warnings else "Ready to measure."
