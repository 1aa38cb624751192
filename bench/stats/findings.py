"""What the judgement of a history finds: steps that have a place, and drifts that have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["suspected", "confirmed"]


@dataclass(frozen=True)
class ChangePoint:
    """One step of a series.

    Attributes:
        index: the first point of the new level, counted with the gaps.
        earliest, latest: where that point lies in 90 % of cases.
        before, after: medians on both sides, up to the neighbouring changes.
        effect: ``after / before - 1``; infinite where ``before`` is zero.
        interval: of the effect, 95 %, for this one split.
        p_value: that any split of a series without change would look like this at one of 40 looks.
        points_before, points_after: measured points of the two levels.
        status: confirmed with ``Settings.confirm_points`` on both sides, else suspected.
    """

    index: int
    earliest: int
    latest: int
    before: float
    after: float
    effect: float
    interval: tuple[float, float]
    p_value: float
    points_before: int
    points_after: int
    status: Status


@dataclass(frozen=True)
class Drift:
    """A stretch that rises or falls all along: a change, yet no step, so that no point can be named which began it.

    Attributes:
        first, last: its first and last measured points, counted with the gaps.
        before, after: the straight line through it at either end.
        effect: ``after / before - 1``; infinite where ``before`` is zero.
        interval: of the effect, 95 %.
        p_value: as of a step.
        points: measured points of the stretch.
        status: confirmed with twice ``Settings.confirm_points``, else suspected.
    """

    first: int
    last: int
    before: float
    after: float
    effect: float
    interval: tuple[float, float]
    p_value: float
    points: int
    status: Status


@dataclass(frozen=True)
class Findings:
    """What is known of one series.

    Attributes:
        changes: rising by index.
        drifts: rising by their first points.
        judged: False with too few points.
    """

    changes: tuple[ChangePoint, ...] = ()
    drifts: tuple[Drift, ...] = ()
    judged: bool = True
