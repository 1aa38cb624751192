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


@dataclass(frozen=True)
class Course:
    """What a side has done so far.

    Attributes:
        series: by name, a number of each iteration. choices: of each iteration, how often each option was chosen.
    """

    series: Mapping[str, Sequence[float]]
    choices: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Parted:
    """Where the choices of two sides differ first.

    Attributes:
        iteration: from 0. share: of the choices that differ there, at least; infinite if the options differ.
    """

    iteration: int
    share: float


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


def largest_difference(
    values: Sequence[float], right: Sequence[float], first: int | None = None, begin: int = 0
) -> Difference | None:
    """Where a series is furthest from the right one; None if they have no iteration in common.

    Args:
        first: only so many iterations. begin: but not those before this one.
    """
    worst: Difference | None = None
    compared = min(len(values), len(right), len(right) if first is None else first)
    for place in range(begin, compared):
        value, wanted = values[place], right[place]
        relative = _relative(value, wanted)
        if worst is None or relative > worst.relative:
            worst = Difference(relative, place, value, wanted, compared)
    return worst


def parted(choices: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> Parted | None:
    """Where choices differ first, of the iterations that both have; None if nowhere."""
    for iteration, (mine, wanted) in enumerate(zip(choices, right, strict=False)):
        if len(mine) != len(wanted):
            return Parted(iteration, math.inf)
        # A choice that falls the other way is missing at one option and too much at another.
        moved = sum(abs(one - other) for one, other in zip(mine, wanted, strict=True)) / 2
        if moved:
            return Parted(iteration, moved / sum(wanted) if sum(wanted) else math.inf)
    return None


def broken_agreement(
    agreements: Sequence[Agreement], mine: Course, right: Course, right_label: str, whole: bool = True
) -> str | None:
    """The first agreement that a side does not keep, in a sentence; None if it keeps all.

    Args:
        whole: all iterations are done, so a series that is not there is a broken agreement too.
    """
    where = parted(mine.choices, right.choices)
    for agreement in agreements:
        name = agreement.series
        values, wanted = mine.series.get(name, ()), right.series.get(name, ())
        if whole and not (values and wanted):
            return f"{name} cannot be compared with that of {right_label}: one of them has none"
        if broken := _broken(agreement, values, wanted, right_label, where):
            return broken
    return None


def _broken(
    agreement: Agreement, values: Sequence[float], wanted: Sequence[float], right_label: str, where: Parted | None
) -> str | None:
    """What a series breaks of one agreement."""
    first, parting = agreement.first, agreement.parting
    spans = [(0, first, agreement.tolerance)]
    if parting and where and (first is None or where.iteration < first):
        if where.iteration < parting.after or where.share > parting.share:
            return (
                f"{parting.of} part from those with {right_label} in iteration {where.iteration + 1}, {where.share:.2%}"
                f" of them; they may by rounding, but not in the first {parting.after} iterations nor more than"
                f" {parting.share:.2%}"
            )
        spans = [(0, where.iteration, agreement.tolerance), (where.iteration, first, parting.tolerance)]
    for begin, end, tolerance in spans:
        difference = largest_difference(values, wanted, end, begin)
        if difference is not None and not difference.relative <= tolerance:
            allowed = "nothing is allowed" if tolerance == 0 else f"{tolerance:.3g} is allowed"
            return (
                f"{agreement.series} of iteration {difference.iteration + 1} is {difference.value!r}, with"
                f" {right_label} {difference.right!r}: a difference of {difference.relative:.3g}, and {allowed}"
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
