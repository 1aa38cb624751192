"""The fairness contract: what two sides must have in common before their speeds may be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Agreement, Value


@dataclass(frozen=True)
class Difference:
    """The largest difference between two series.

    Attributes:
        relative: as a share of the right number; infinite where one of the two is not finite.
        iteration: where, from 0. value, right: the two numbers there.
        compared: iterations that both have.
    """

    relative: float
    iteration: int
    value: float
    right: float
    compared: int


def broken_condition(mine: Mapping[str, Value], right: Mapping[str, Value], label: str, right_label: str) -> str | None:
    """The first condition that differs, in a sentence; None if all are equal."""
    for name in (*right, *(name for name in mine if name not in right)):
        if name not in mine or name not in right:
            lacking = label if name not in mine else right_label
            return f"{lacking} does not say its {name.replace('_', ' ')}, which must be equal"
        if mine[name] != right[name]:
            return (
                f"{name.replace('_', ' ')} differs: {_written(mine[name])} here,"
                f" {_written(right[name])} with {right_label}"
            )
    return None


def largest_difference(values: Sequence[float], right: Sequence[float], first: int | None = None) -> Difference | None:
    """Where a series is furthest from the right one; None if they have no iteration in common.

    Args:
        first: only so many iterations.
    """
    worst: Difference | None = None
    compared = min(len(values), len(right), len(right) if first is None else first)
    for place, (value, wanted) in enumerate(zip(values[:compared], right[:compared], strict=True)):
        relative = _relative(value, wanted)
        if worst is None or relative > worst.relative:
            worst = Difference(relative, place, value, wanted, compared)
    return worst


def broken_agreement(
    agreements: Sequence[Agreement],
    series: Mapping[str, Sequence[float]],
    right: Mapping[str, Sequence[float]],
    right_label: str,
    whole: bool = True,
) -> str | None:
    """The first agreement that the series do not keep, in a sentence; None if they keep all.

    Args:
        whole: all iterations are done, so a series that is not there is a broken agreement too.
    """
    for agreement in agreements:
        name = agreement.series
        difference = largest_difference(series.get(name, ()), right.get(name, ()), agreement.first)
        if difference is None:
            if whole:
                return f"{name} cannot be compared with that of {right_label}: one of them has none"
            continue
        if not difference.relative <= agreement.tolerance:
            allowed = "nothing is allowed" if agreement.tolerance == 0 else f"{agreement.tolerance:.3g} is allowed"
            return (
                f"{name} of iteration {difference.iteration + 1} is {difference.value!r}, with {right_label}"
                f" {difference.right!r}: a difference of {difference.relative:.3g}, and {allowed}"
            )
    return None


def _relative(value: float, right: float) -> float:
    if value == right:
        return 0.0
    if not (math.isfinite(value) and math.isfinite(right)):
        return math.inf
    return abs(value - right) / abs(right) if right else math.inf


def _written(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) and not isinstance(value, bool) else str(value)
