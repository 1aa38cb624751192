"""The words of a gate's result that all outputs share; names from rows can neither act nor hide in them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from bench.report.formatting import number, parameters, unit_sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.gate_result import Comparison
    from bench.suite import Value

BY_TURNS = (
    "change by turns: the median of what each turn differs from the turn beside it; the values are medians of all"
    " turns, with the machine's drift in them"
)
MOST_CHARACTERS = 2000
"""Of a name or a message; what is longer is cut, and says so."""


def visible(text: str) -> str:
    """``text`` with every control, format and undecodable character written out as an escape.

    Escape sequences of terminals, marks that turn the direction of writing, and newlines cannot act
    then, and XML can hold it.
    """
    shown = "".join(character if character.isprintable() else _escape(character) for character in text)
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}... ({len(shown):,} characters)"


def case_name(comparison: Comparison) -> str:
    """The case's parameters as people read them; its id if it has none."""
    return visible(parameters(dict(comparison.params)) or comparison.case)


class OfACase(Protocol):
    """Whatever is of a case of a suite."""

    @property
    def suite(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Value]: ...


class CaseNames:
    """Short names of cases: what tells a suite's cases apart, and once what they all share."""

    def __init__(self, comparisons: Iterable[OfACase]) -> None:
        values: dict[str, dict[str, set[tuple[str, Value | None]]]] = {}
        self._shared: dict[str, dict[str, Value]] = {}
        found = list(comparisons)
        for comparison in found:
            known = values.setdefault(comparison.suite, {})
            for name in comparison.params:
                known.setdefault(name, set())
        for comparison in found:
            for name, seen in values[comparison.suite].items():
                value = comparison.params.get(name)
                seen.add((type(value).__name__, value))
        self._varying = {
            suite: [name for name, seen in names.items() if len(seen) > 1] for suite, names in values.items()
        }
        for comparison in found:
            varying = self._varying[comparison.suite]
            shared = {name: value for name, value in comparison.params.items() if name not in varying}
            self._shared.setdefault(comparison.suite, shared)

    def of(self, comparison: OfACase) -> str:
        """The parameters that differ in its suite; empty where nothing does."""
        return visible(parameters(dict(comparison.params), self._varying[comparison.suite]))

    def shared(self, suite: str) -> str:
        """The parameters that all cases of a suite share."""
        return visible(parameters(self._shared.get(suite, {})))


def value_text(value: float | None, unit: str) -> str:
    """``12.3 µs``; a dash without a number."""
    if value is None:
        return "-"
    sign = unit_sign(unit)
    return f"{number(value)} {visible(sign)}" if sign else number(value)


def change_text(comparison: Comparison, *, interval: bool = True) -> str:
    """``+5.2% [+4.1%, +6.3%]``: the candidate against the baseline; an interval without ends is left out."""
    if comparison.change is None:
        return "-"
    text = signed_percent(comparison.change)
    ends = interval_text(comparison) if interval else ""
    return f"{text} {ends}" if ends else text


def change_title(comparisons: Iterable[Comparison]) -> str:
    """The title of the column of changes: they need not be those of the values beside them."""
    return "change by turns" if any(comparison.by_turns for comparison in comparisons) else "change"


def interval_text(comparison: Comparison) -> str:
    """``[+4.1%, +6.3%]``: the interval of the change; empty where it has no ends."""
    ends = comparison.change_interval
    if ends is None or not all(map(math.isfinite, ends)):
        return ""
    return f"[{signed_percent(ends[0])}, {signed_percent(ends[1])}]"


def threshold_text(comparison: Comparison) -> str:
    """``5.0%``, or ``8.2% (noise)`` where measured noise raises it."""
    if comparison.threshold is None:
        return "-"
    by_noise = comparison.noise_floor is not None and comparison.noise_floor > (comparison.minimum_effect or 0.0)
    return share_text(comparison.threshold) + (" (noise)" if by_noise else "")


def signed_percent(share: float) -> str:
    """A signed share as a percentage: ``+5.2%``; a share that is not finite as it is."""
    if not math.isfinite(share):
        return f"{share:+}"
    return f"{share * 100:+,.1f}%" if abs(share) < 10 else f"{share * 100:+,.0f}%"


def share_text(share: float | None) -> str:
    """A share as a percentage: ``5.2%``; a dash without one."""
    return "-" if share is None else signed_percent(share).lstrip("+")


def why(comparison: Comparison) -> str:
    """Reason and message, with what would settle it and what lets it through."""
    parts = [visible(comparison.message)]
    if comparison.waived:
        parts.append(f"waived: {visible(comparison.waiver)}")
    if comparison.verdict == "inconclusive":
        detectable = comparison.minimum_detectable_effect
        if detectable is not None and math.isfinite(detectable) and comparison.interval is not None:
            parts.append(f"a slowdown from {share_text(comparison.minimum_detectable_effect)} on would have been seen")
        if comparison.samples_to_settle:
            parts.append(f"about {comparison.samples_to_settle:,} more {comparison.counted_in} a side should settle it")
    return "; ".join(parts)


def _escape(character: str) -> str:
    code = ord(character)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if short:
        return short
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
