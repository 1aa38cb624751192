"""How numbers, parameters and spreads are written for people, in the terminal and in the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.definitions import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.store.row import Row, Value

MIN_SAMPLES_FOR_SPREAD = 4
"""Fewer samples have no quartiles worth showing."""


def number(value: float, digits: int = 3) -> str:
    """``value`` to ``digits`` significant digits; the integer part is never rounded away.

    Thousands are separated by commas; what would start with more than three zeros is written with an exponent.
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals and float(value).is_integer() else text


def unit_sign(unit: str) -> str:
    """The unit as people write it: rows keep ``us`` for microseconds, and a ratio has no sign."""
    return {"us": "µs", "ratio": "", "count": ""}.get(unit, unit)


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 case``, ``2 cases``: the noun in the number that goes with ``count``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def is_size(name: str) -> bool:
    """True for parameters that hold bytes: rows keep no axis kinds, so the name tells."""
    return name == "bytes" or name.startswith("bytes_") or name.endswith("_bytes")


def parameter(name: str, value: Value) -> str:
    """A parameter's value: sizes in binary units, floats without trailing zeros."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and is_size(name):
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def parameters(params: dict[str, Value], names: Sequence[str] | None = None) -> str:
    """``op=all_reduce ranks=4 bytes=1MiB``, of ``names`` where given and present."""
    chosen = params if names is None else [name for name in names if name in params]
    return " ".join(f"{name}={parameter(name, params[name])}" for name in chosen)


def quartiles(samples: Sequence[float]) -> tuple[float, float] | None:
    """First and third quartile, linear between order statistics; None with too few samples."""
    if len(samples) < MIN_SAMPLES_FOR_SPREAD:
        return None
    ordered = sorted(samples)
    return _quantile(ordered, 0.25), _quantile(ordered, 0.75)


def spread(row: Row) -> float | None:
    """Half the interquartile range over the value: half of the samples lie about within +/- this.

    None where the row has no value, a value of zero, or too few samples.
    """
    ends = quartiles(row.samples)
    if ends is None or not row.value:
        return None
    return (ends[1] - ends[0]) / 2 / abs(row.value)


def percent(share: float) -> str:
    """A share as a percentage short enough for a table: ``0.4%``, ``12%``."""
    return f"{share * 100:.1f}%" if share < 0.0995 else f"{share * 100:.0f}%"


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
