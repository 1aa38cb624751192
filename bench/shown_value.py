"""A value as an error message shows it: of bounded length, whatever somebody wrote into a file."""

from __future__ import annotations

MOST_SHOWN = 60


def shown_value(value: object) -> str:
    """``repr`` of a value, cut where it is long; Python does not write out whole numbers of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
