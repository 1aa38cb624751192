"""How a plan's numbers are written for people: each with its unit, GB and GiB never mixed."""

from __future__ import annotations

import math

GIB = 1 << 30
GB = 10**9


def gib(count: float) -> str:
    """Bytes in GiB, 2**30 bytes: ``59.60 GiB``."""
    return f"{count / GIB:.2f} GiB"


def gb(count: float) -> str:
    """Bytes in GB, 10**9 bytes: ``64.00 GB``."""
    return f"{count / GB:.2f} GB"


def both(count: float) -> str:
    """Bytes in both units: ``64.00 GB (59.60 GiB)``."""
    return f"{gb(count)} ({gib(count)})"


def seconds(value: float) -> str:
    """Seconds with three significant digits, in s, ms or us."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            return f"{significant(value * factor)} {unit}"
    raise AssertionError("the last unit takes all")


def significant(value: float, digits: int = 3) -> str:
    """``value`` to so many significant digits; digits before the point are never rounded away."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 12)}f}"


def percent(share: float) -> str:
    """A share as a percentage: ``24.5 %``."""
    return f"{100 * share:.1f} %"


def billions(count: float) -> str:
    """A count in 10**9: ``671.03 B``."""
    return f"{count / 1e9:,.2f} B"
