"""What a history is made of: points, gaps, changes and the series that they belong to."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.stats.findings import ChangePoint, Drift
    from bench.store.row import Status, Value

Kind = Literal["regression", "improvement", "change"]

LEVEL_POINTS = 10
"""Points whose median is the level at either end of a series."""


@dataclass(frozen=True)
class Commit:
    """What was measured: the commit of the folder that ``bench run`` was called in.

    Attributes:
        id: hexadecimal digits; empty where the run was not in a working tree.
        dirty: whether tracked files differed from it.
    """

    id: str = ""
    dirty: bool = False

    @property
    def text(self) -> str:
        """Short form: ``26b2877c1d0e``, with ``+`` for a changed tree; ``unknown`` where not recorded."""
        return f"{self.id[:12]}{'+' if self.dirty else ''}" if self.id else "unknown"


@dataclass(frozen=True)
class Point:
    """One run's number, or why there is none.

    Attributes:
        started_at: of the run.
        value: None unless status is ok. error: standard error, in the unit of the value; None where unknown.
        status: as of the row; ``missing`` where the run measured other cases of the suite and not this one, or
            ended before its first row.
    """

    run_id: str
    started_at: str
    commit: Commit
    value: float | None
    error: float | None
    status: Status | Literal["missing"]
    reason: str = ""


@dataclass(frozen=True)
class Change:
    """A change point with what it means.

    Attributes:
        kind: regression and improvement by the metric's direction; ``change`` where that is not known.
        found: index, levels and significance.
        first, last: the commits between which it came: measured last before the earliest and first at the latest
            point at which it may have begun.
        stands: whether the series still has the new level: no later change.
    """

    kind: Kind
    found: ChangePoint
    first: Commit
    last: Commit
    stands: bool

    @property
    def commits(self) -> str:
        """``abc..def`` as git takes it, or that the code did not change, or is not known."""
        if not self.first.id or not self.last.id:
            return "commits not recorded"
        if self.first.id == self.last.id:
            return f"same commit {self.last.text}"
        return f"{self.first.text}..{self.last.text}"


@dataclass(frozen=True)
class Slope:
    """A drift with what it means.

    Attributes:
        kind: as of a change.
        found: the stretch, its ends and its significance.
        stands: whether it lasts until the newest measured point.
    """

    kind: Kind
    found: Drift
    stands: bool


@dataclass
class Series:
    """One metric of one case, measured in one way on one machine.

    Attributes:
        machine: digest of the fingerprint's identity.
        began: why it is not the continuation of an earlier series of the same case; empty if there is none.
        points: in the order of time, with the gaps.
        changes: rising; only those that begin where ``--since`` says or later.
        slopes: the drifts that last until where ``--since`` says or longer; no commit began one.
        judged: False where there are too few points.
        shown_from: the first point that ``--since`` leaves.
        superseded: ended before a later series of the same case began, so it tells nothing about today.
    """

    suite: str
    metric: str
    case: str
    params: dict[str, Value]
    method_version: int
    definition: str
    unit: str
    better: str
    machine: str
    began: str = ""
    points: list[Point] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    slopes: list[Slope] = field(default_factory=list)
    judged: bool = False
    shown_from: int = 0
    superseded: bool = False

    @property
    def values(self) -> list[float]:
        """The measured values; NaN in gaps."""
        return [math.nan if point.value is None else point.value for point in self.points]

    @property
    def shown(self) -> list[Point]:
        """The points that ``--since`` leaves."""
        return self.points[self.shown_from :]

    @property
    def measured(self) -> int:
        """How many of all points have a value."""
        return sum(point.value is not None for point in self.points)

    @property
    def standing(self) -> Change | None:
        """The change that brought the present level."""
        return next((change for change in self.changes if change.stands), None)

    @property
    def worsening(self) -> bool:
        """Whether the present level is the end of a drift for the worse."""
        return any(slope.stands and slope.kind == "regression" for slope in self.slopes)

    @property
    def newest(self) -> Point:
        """What the last run gave."""
        return self.points[-1]

    @property
    def level(self) -> float | None:
        """The present level: median of the last points, up to ten, that follow the last change."""
        begin = self.standing.found.index if self.standing else 0
        return _median([point.value for point in self.points[begin:]][-LEVEL_POINTS:])

    @property
    def trend(self) -> float | None:
        """The change from the first points that are shown to the present level, as a share of the first's size.

        Plus where the number rose, as in the effect of a change; None where the first level is zero.
        """
        first = _median([point.value for point in self.shown[:LEVEL_POINTS]])
        return None if not first or self.level is None else (self.level - first) / abs(first)


@dataclass
class History:
    """All series that were asked for, and what the user should know about them.

    Attributes:
        notes: warnings of the store, a line each.
        lost: the run after all points of a suite that left no row, where no series can show it as a gap: its
            file's header cannot be read, or its machine has no series. Empty where there is none.
    """

    metric: str
    series: list[Series]
    notes: list[str] = field(default_factory=list)
    lost: str = ""


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
