"""Keeps the rows that ``--where`` asks for."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from bench.definitions import parse_bytes
from bench.errors import UsageError, unknown_name
from bench.gate_output.text import visible
from bench.report.formatting import is_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.store.row import Row, Value


def rows_where(rows: Sequence[Row], texts: Sequence[str]) -> list[Row]:
    """The rows whose parameters match all ``key=value`` texts.

    Raises:
        UsageError: not such a text, no such parameter, or nothing is left.
    """
    kept = list(rows)
    for text in texts:
        name, equals, wanted = text.partition("=")
        if not equals or not wanted:
            raise UsageError(f"--where takes PARAMETER=VALUES, not {text!r}")
        known = {key for row in rows for key in row.params}
        if name not in known:
            raise unknown_name("parameter", name, sorted(map(visible, known)))
        matches = _matcher(name, wanted)
        left = [row for row in kept if name in row.params and matches(row.params[name])]
        if not left:
            values = sorted({visible(_plain(row.params[name])) for row in kept if name in row.params})
            raise UsageError(
                f"no row has {text!r} beside the rest; values of {visible(name)}: {', '.join(values[:20]) or 'none'}"
            )
        kept = left
    return kept


def _matcher(name: str, wanted: str) -> Callable[[Value], bool]:
    """Whether a value is one of those of the text; sizes may have their unit."""
    patterns = [part.strip() for part in wanted.split(",")]
    numbers = set()
    for pattern in patterns:
        try:
            numbers.add(float(parse_bytes(pattern) if is_size(name) else pattern))
        except (UsageError, ValueError):
            continue

    def matches(value: Value) -> bool:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and float(value) in numbers:
            return True
        return any(fnmatch.fnmatchcase(_plain(value), pattern) for pattern in patterns)

    return matches


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
