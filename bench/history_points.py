"""Series from rows: a point for each run that measured a case, a gap for each that should have."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bench.environment import identity_differences, identity_digest
from bench.history_series import Commit, Point, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.store.row import Row, RunRecord

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal samples."""
LEAST_BLOCKS = 3
"""Rounds from which on their scatter tells a point's error; fewer say nothing about it."""
MOST_DIFFERENCES = 3
"""Differences between two machines that are named; more are counted."""
OTHER_CASES = "other cases of the suite were measured, this one was not"
NO_ROW = "the run ended before its first row of the suite"


@dataclass(frozen=True)
class Ran:
    """A run that was to measure a suite.

    Attributes:
        record: of the run.
        has_rows: whether it has any row of the suite, whatever its metric.
    """

    record: RunRecord
    has_rows: bool


def series_of(rows: Iterable[Row], ran: Mapping[str, Sequence[Ran]]) -> list[Series]:
    """All series in the order of their suites, cases and beginnings, each with its points and gaps.

    A run is a gap of a series that began before it, if it was to measure the suite on this machine and has no row
    of the case; of several series of a case on a machine, only the last that had begun then has the gap.

    Args:
        rows: of one metric, those to show; a filter on cases leaves the gaps of the others as they are.
        ran: by suite, every run of it in the order of time, filtered by nothing.
    """
    records = {run.record.run_id: run.record for runs in ran.values() for run in runs}
    machines = {run_id: machine_of(record) for run_id, record in records.items()}
    # Of a case that a run measured again, the last counts.
    latest: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = (row.suite, row.case, row.method_version, row.definition, row.unit, row.better, machines[row.run_id])
        latest.setdefault(key, {})[row.run_id] = row
    siblings: dict[tuple[str, str, str], list[tuple[tuple[float, str], dict[str, Row], Series]]] = {}
    for key, by_run in latest.items():
        row, machine = next(iter(by_run.values())), key[-1]
        one = Series(
            row.suite,
            row.metric,
            row.case,
            dict(row.params),
            row.method_version,
            row.definition,
            row.unit,
            row.better,
            machine=machine,
        )
        began = min(place_of(records[run_id]) for run_id in by_run)
        siblings.setdefault((row.suite, row.case, machine), []).append((began, by_run, one))
    for (suite, _, machine), group in siblings.items():
        group.sort(key=lambda item: item[0])
        for run in ran[suite]:
            if machines[run.record.run_id] == machine:
                _add_points(run, group)
    found = [item for group in siblings.values() for item in group]
    found.sort(key=lambda item: (item[2].suite, item[2].case, item[0]))
    _tell_beginnings([one for _, _, one in found], records)
    return [one for _, _, one in found]


def _add_points(run: Ran, group: Sequence[tuple[tuple[float, str], dict[str, Row], Series]]) -> None:
    """A run's points in the series of a case on its machine, which are in the order of their beginnings."""
    run_id = run.record.run_id
    measured = [(by_run[run_id], one) for _, by_run, one in group if run_id in by_run]
    for row, one in measured:
        one.points.append(_point(run, row))
    begun = [one for began, _, one in group if began < place_of(run.record)]
    if begun and not measured:
        begun[-1].points.append(_point(run, None))


def instant(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time, UTC unless it says otherwise; minus infinity where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return -math.inf
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def place_of(record: RunRecord) -> tuple[float, str]:
    """What runs are ordered by."""
    return instant(record.started_at), record.run_id


def machine_of(record: RunRecord) -> str:
    """Digest of the identity; of a record without one, as old or foreign ones may be, a digest of nothing."""
    return identity_digest({"identity": record.fingerprint.get("identity") or {}})


def _point(run: Ran, row: Row | None) -> Point:
    record = run.record
    commit = _commit(record)
    if row is None:
        reason = OTHER_CASES if run.has_rows else NO_ROW
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


def _tell_beginnings(series: Sequence[Series], records: Mapping[str, RunRecord]) -> None:
    """Say of each series of a case that was measured before why it is a new one."""
    before: dict[tuple[str, str], Series] = {}
    for one in series:
        earlier = before.get((one.suite, one.case))
        if earlier is not None:
            one.began = _why_new(earlier, one, records)
            measured = [point for point in earlier.points if point.status != "missing"]
            ended = max(place_of(records[point.run_id]) for point in measured)
            earlier.superseded = ended < place_of(records[one.points[0].run_id])
        before[one.suite, one.case] = one


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
