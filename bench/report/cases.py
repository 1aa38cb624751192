"""Rows gathered into cases, one record a case with all its metrics; what varies apart from what stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.asked_case import asked_case
from bench.measure.sampling import StopReason
from bench.store.row import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.store.row import Row, Status, Value

SEVERITY: tuple[Status, ...] = ("failed", "timeout", "invalid", "ok", "skipped")
"""What a case is when its rows disagree: the first of these that one of them has.

A case is still measured where only one of its metrics is not known there (``skipped``).
"""


@dataclass(frozen=True)
class MetricColumn:
    """A metric of a suite as its rows describe it."""

    name: str
    unit: str
    better: str
    definition: str


@dataclass
class CaseResult:
    """One case of one run.

    Attributes:
        params: of the case; ``run_id`` and ``method_version`` join them where they tell cases apart.
        rows: by metric, in the suite's order.
    """

    suite: str
    case: str
    run_id: str
    method_version: int
    params: dict[str, Value]
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The first of ``SEVERITY`` among the rows."""
        return min((row.status for row in self.rows.values()), key=SEVERITY.index)

    @property
    def reason(self) -> str:
        """Why the case is not ok: the reason of the first row with its status."""
        status = self.status
        return next(row.reason for row in self.rows.values() if row.status == status)

    @property
    def settled(self) -> bool:
        """False if a measured row ran out of time or samples first."""
        return all(is_settled(row) for row in self.rows.values())

    @property
    def wrong(self) -> int | None:
        """Wrong elements: the most that a row reports; None if never checked."""
        return max((row.wrong for row in self.rows.values() if row.wrong is not None), default=None)

    @property
    def measured(self) -> list[Row]:
        """The rows that have a value."""
        return [row for row in self.rows.values() if row.status == "ok"]

    @property
    def emulated(self) -> bool:
        """True if it ran in the emulated cluster."""
        return is_emulated(self.params)


@dataclass(frozen=True)
class SuiteResults:
    """All cases of a suite.

    Attributes:
        metrics: in order of appearance.
        varying: names of the parameters that differ between cases, or that some cases lack.
        fixed: the parameters that all cases share.
    """

    name: str
    cases: list[CaseResult]
    metrics: list[MetricColumn]
    varying: list[str]
    fixed: dict[str, Value]


def is_settled(row: Row) -> bool:
    """False where sampling says that it ran out; rows of other tools, with reasons of their own, count as settled."""
    return row.status != "ok" or row.stop_reason not in _UNSETTLED


_UNSETTLED = {reason.value for reason in StopReason if not reason.settled}


def is_emulated(params: dict[str, Value]) -> bool:
    """True if the parameters name the emulated cluster as the place."""
    return params.get("scope") == "lab" or bool(params.get("lab"))


def gather(rows: Iterable[Row]) -> list[SuiteResults]:
    """Suites in order of appearance, each with its cases in the order of their parameters' values.

    The order of the rows is not kept: a sweep is rotated, so it says nothing.
    A case's rows are those of one run, suite, method version and case. A metric that comes twice
    (a case that was measured again in the same run) starts a record of its own.
    """
    suites: dict[str, list[CaseResult]] = {}
    latest: dict[tuple[str, str, int, str], CaseResult] = {}
    for row in rows:
        key = (row.run_id, row.suite, row.method_version, row.case)
        found = latest.get(key)
        if found is None or row.metric in found.rows:
            found = CaseResult(row.suite, row.case, row.run_id, row.method_version, dict(row.params))
            latest[key] = found
            suites.setdefault(row.suite, []).append(found)
        found.rows[row.metric] = row
    return [_suite(name, cases) for name, cases in suites.items()]


def _suite(name: str, cases: list[CaseResult]) -> SuiteResults:
    if len({case.method_version for case in cases}) > 1:
        for case in cases:
            case.params.setdefault("method_version", case.method_version)
    runs_of: dict[tuple[int, str], set[str]] = {}
    for case in cases:
        runs_of.setdefault((case.method_version, case.case), set()).add(case.run_id)
    if any(len(runs) > 1 for runs in runs_of.values()):
        for case in cases:
            case.params.setdefault("run_id", case.run_id)
    metrics: dict[str, MetricColumn] = {}
    for case in cases:
        for row in case.rows.values():
            metrics.setdefault(row.metric, MetricColumn(row.metric, row.unit, row.better, row.definition))
    varying = varying_names(cases)
    cases = sorted(cases, key=lambda case: [value_order(case.params.get(name)) for name in varying])
    fixed = {key: value for key, value in cases[0].params.items() if key not in varying}
    return SuiteResults(name, cases, list(metrics.values()), varying, fixed)


def varying_names(cases: Sequence[CaseResult]) -> list[str]:
    """Parameters that differ between the cases, or that only some have, in order of appearance."""
    values: dict[str, set[tuple[str, Value]]] = {}
    present: dict[str, int] = {}
    for case in cases:
        for key, value in case.params.items():
            # The type goes with the value: True == 1 in Python, and they are not the same parameter.
            values.setdefault(key, set()).add((type(value).__name__, value))
            present[key] = present.get(key, 0) + 1
    return [key for key, found in values.items() if len(found) > 1 or present[key] < len(cases)]


def value_order(value: Value | None) -> tuple[int, float, str]:
    """Sorts a parameter's values: absent first, then numbers by size, then texts."""
    if value is None:
        return (0, 0.0, "")
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, value)


def count_by_status(cases: Iterable[CaseResult]) -> dict[Status, int]:
    """Number of cases of each status, as they were asked for, all statuses present."""
    counts: dict[Status, int] = dict.fromkeys(STATUSES, 0)
    for parts in as_asked(cases):
        counts[min((part.status for part in parts), key=SEVERITY.index)] += 1
    return counts


def as_asked(cases: Iterable[CaseResult]) -> list[list[CaseResult]]:
    """The cases that were asked for, each as the records that the parameters of its metrics make of it."""
    found: dict[tuple[object, ...], list[CaseResult]] = {}
    times: Counter[tuple[object, ...]] = Counter()
    for case in cases:
        whose = (case.run_id, case.suite, case.method_version)
        # What was measured again in the same run is another one.
        times[(*whose, case.case)] += 1
        key = (*whose, asked_case(case.suite, case.case), times[(*whose, case.case)])
        found.setdefault(key, []).append(case)
    return list(found.values())
