"""Histories from the store: one series for each thing that is measured, judged for changes."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from bench.environment import identity_differences, identity_digest
from bench.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_NOT_MEASURED,
    EXIT_OK,
    EXIT_REGRESSION,
    UsageError,
    unknown_name,
)
from bench.history_filter import rows_where

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.stats.change_points import ChangePoint, Settings
    from bench.store.reader import Store
    from bench.store.row import Row, RunRecord, Status, Value

Kind = Literal["regression", "improvement", "change"]

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal samples."""
LEAST_BLOCKS = 3
"""Rounds from which on their scatter tells a point's error; fewer say nothing about it."""
LEVEL_POINTS = 10
"""Points whose median is the level at either end of a series."""
MOST_DIFFERENCES = 3
"""Differences between two machines that are named; more are counted."""


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
        status: as of the row; ``missing`` where the run measured other cases of the suite and not this one.
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


@dataclass
class Series:
    """One metric of one case, measured in one way on one machine.

    Attributes:
        machine: digest of the fingerprint's identity.
        began: why it is not the continuation of an earlier series of the same case; empty if there is none.
        points: in the order of time, with the gaps.
        changes: rising; only those that begin where ``--since`` says or later.
        judged: False where there are too few points.
        drifting: whether a slope was found that is no step.
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
    judged: bool = False
    drifting: bool = False
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
        """The present level over that of the first points that are shown, less one; None where that is zero."""
        first = _median([point.value for point in self.shown[:LEVEL_POINTS]])
        return None if not first or self.level is None else self.level / first - 1


@dataclass
class History:
    """All series that were asked for, and what the user should know about them."""

    metric: str
    series: list[Series]
    notes: list[str] = field(default_factory=list)


def read_history(
    store: Store,
    metric: str,
    where: Sequence[str] = (),
    suite: str | None = None,
    since: str | None = None,
    settings: Settings | None = None,
) -> History:
    """The histories of a metric, judged together.

    Args:
        store: where the runs are.
        metric: its name.
        where: ``key=value`` texts; a value may list several with commas and use the wildcards of the shell.
        suite: only of this suite.
        since: a date (2026-03-14, or with a time) or a run: what came before is judged and not shown.
        settings: what counts as a change.

    Raises:
        UsageError: no such metric, suite, parameter or run, or nothing is left.
        StoreError: a file is damaged.
    """
    from bench.stats.change_points import find_changes

    rows = store.rows(metric=metric, suite=suite)
    torn = list(store.torn)
    if not rows:
        raise _nothing(store, metric, suite)
    kept = rows_where(rows, where)
    records = {run.run_id: run.record for run in store.runs()}
    order = sorted(records.values(), key=lambda record: (_instant(record.started_at), record.run_id))
    begin = None if since is None else _since(store, since)
    series = _series(kept, order)
    findings = find_changes(
        [one.values for one in series],
        [[math.nan if point.error is None else point.error for point in one.points] for one in series],
        settings,
    )
    for one, found in zip(series, findings, strict=True):
        one.judged, one.drifting = found.judged, found.drifting
        one.shown_from = 0 if begin is None else sum(_instant(point.started_at) < begin for point in one.points)
        changes = [_change(one, change, change is found.changes[-1]) for change in found.changes]
        one.changes = [change for change in changes if change.found.index >= one.shown_from]
    shown = [one for one in series if one.shown]
    if not shown:
        raise UsageError(
            f"no run since {since} has {metric!r} of these cases; leave --since out, or take an earlier one"
        )
    return History(metric, shown, torn)


def _nothing(store: Store, metric: str, suite: str | None) -> UsageError:
    """Why there is no row of the metric."""
    found = store.query("SELECT DISTINCT suite, metric FROM rows")
    if found.empty:
        return UsageError(f"there is no run in {store.path}; `bench run` makes one, --store names another store")
    suites = sorted(set(found["suite"]))
    if suite is not None and suite not in suites:
        return unknown_name("suite", suite, suites)
    mine = found if suite is None else found[found["suite"] == suite]
    return unknown_name("metric", metric, sorted(set(mine["metric"])))


def _instant(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time, UTC unless it says otherwise; minus infinity where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return -math.inf
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _since(store: Store, text: str) -> float:
    """The moment that ``--since`` names: a date or time, else the start of a run."""
    # A run's id may read as a date (20260314T...), so only what has a date's dashes is one.
    moment = _instant(text) if "-" in text[:8] else -math.inf
    if moment > -math.inf:
        return moment
    try:
        return _instant(store.record(store.resolve(text)).started_at)
    except UsageError as error:
        raise UsageError(f"--since takes a date (2026-03-14) or a run: {error}") from None


def _series(rows: Iterable[Row], order: Sequence[RunRecord]) -> list[Series]:
    """All series in the order of their suites, cases and beginnings, with a gap for each run that lacks them."""
    place = {record.run_id: number for number, record in enumerate(order)}
    machines = {record.run_id: _machine(record) for record in order}
    # Of a case that a run measured again, the last counts.
    latest: dict[tuple[Any, ...], dict[str, Row]] = {}
    runs_of: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        machine = machines[row.run_id]
        way = (row.suite, row.method_version, machine)
        runs_of.setdefault(way, set()).add(row.run_id)
        key = (row.suite, row.case, row.metric, row.method_version, row.definition, row.unit, row.better, machine)
        latest.setdefault(key, {})[row.run_id] = row
    found = []
    for key, by_run in latest.items():
        row = next(iter(by_run.values()))
        one = Series(
            row.suite,
            row.metric,
            row.case,
            dict(row.params),
            row.method_version,
            row.definition,
            row.unit,
            row.better,
            machine=key[-1],
        )
        began = min(place[run_id] for run_id in by_run)
        runs = sorted(runs_of[row.suite, row.method_version, key[-1]], key=place.__getitem__)
        one.points = [_point(order[place[run_id]], by_run.get(run_id)) for run_id in runs if place[run_id] >= began]
        found.append((place[one.points[0].run_id], one))
    found.sort(key=lambda item: (item[1].suite, item[1].case, item[0]))
    _tell_beginnings([one for _, one in found], {record.run_id: record for record in order})
    return [one for _, one in found]


def _machine(record: RunRecord) -> str:
    """Digest of the identity; of a record without one, as old or foreign ones may be, a digest of nothing."""
    return identity_digest({"identity": record.fingerprint.get("identity") or {}})


def _point(record: RunRecord, row: Row | None) -> Point:
    commit = _commit(record)
    if row is None:
        reason = "other cases of the suite were measured, this one was not"
        return Point(record.run_id, record.started_at, commit, None, None, "missing", reason)
    if row.status != "ok" or row.value is None:
        return Point(record.run_id, record.started_at, commit, None, None, row.status, row.reason)
    return Point(record.run_id, record.started_at, commit, row.value, point_error(row), "ok")


def _commit(record: RunRecord) -> Commit:
    git = (record.fingerprint.get("volatile") or {}).get("git") or {}
    return Commit(str(git.get("commit") or ""), bool(git.get("dirty")))


def point_error(row: Row) -> float | None:
    """Standard error of a row's value, in its unit, from the scatter of its rounds; None where it has too few.

    Samples within one round follow each other, so their scatter would promise too much.
    """
    if len(row.rounds) < LEAST_BLOCKS or sum(row.rounds) != len(row.samples) or not all(row.rounds):
        return None
    ends = [sum(row.rounds[: number + 1]) for number in range(len(row.rounds))]
    medians = [statistics.median(row.samples[end - count : end]) for end, count in zip(ends, row.rounds, strict=True)]
    return MEDIAN_ERROR * statistics.stdev(medians) / math.sqrt(len(medians))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _tell_beginnings(series: Sequence[Series], records: Mapping[str, RunRecord]) -> None:
    """Say of each series of a case that was measured before why it is a new one."""
    before: dict[tuple[str, str], Series] = {}
    for one in series:
        earlier = before.get((one.suite, one.case))
        if earlier is not None:
            one.began = _why_new(earlier, one, records)
            ended = max(_place(point, records) for point in earlier.points if point.status != "missing")
            earlier.superseded = ended < _place(one.points[0], records)
        before[one.suite, one.case] = one


def _place(point: Point, records: Mapping[str, RunRecord]) -> tuple[float, str]:
    return _instant(records[point.run_id].started_at), point.run_id


def _why_new(earlier: Series, one: Series, records: Mapping[str, RunRecord]) -> str:
    reasons = []
    if earlier.method_version != one.method_version:
        reasons.append(f"method version {earlier.method_version} became {one.method_version}")
    for name in ("definition", "unit", "better"):
        old, new = getattr(earlier, name), getattr(one, name)
        if old != new:
            reasons.append(f"{name} {old} became {new}")
    if earlier.machine != one.machine:
        old, new = (
            {"identity": records[each.points[0].run_id].fingerprint.get("identity") or {}} for each in (earlier, one)
        )
        differences = identity_differences(old, new)
        more = f", and {len(differences) - MOST_DIFFERENCES} more" if len(differences) > MOST_DIFFERENCES else ""
        reasons.append(f"another machine: {'; '.join(differences[:MOST_DIFFERENCES])}{more}")
    return "; ".join(reasons)


def _change(one: Series, found: ChangePoint, last: bool) -> Change:
    """A change point with its commits and its meaning."""
    earlier = [point for point in one.points[: found.earliest] if point.value is not None]
    if one.better not in ("lower", "higher") or found.after == found.before:
        kind: Kind = "change"
    else:
        kind = "regression" if (found.after > found.before) == (one.better == "lower") else "improvement"
    return Change(kind, found, earlier[-1].commit, one.points[found.latest].commit, last)


def exit_code(history: History) -> int:
    """The exit code of ``--fail-on-regression``, by the series that are still measured.

    1 where the present level is a confirmed regression; else 4 where the newest run failed or lacks a case, or
    nothing could be judged; else 3 where a regression is suspected; else 0.
    """
    present = [one for one in history.series if not one.superseded]
    standing = [one.standing for one in present if one.standing and one.standing.kind == "regression"]
    if any(change.found.status == "confirmed" for change in standing):
        return EXIT_REGRESSION
    if not any(one.judged for one in present) or any(one.newest.status not in ("ok", "skipped") for one in present):
        return EXIT_NOT_MEASURED
    return EXIT_INCONCLUSIVE if standing else EXIT_OK
