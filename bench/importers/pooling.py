"""Joins what a file has several times, a metric of one case, into one row with all of its samples."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from bench.store.row import UNMEASURED_FIRST, Row

if TYPE_CHECKING:
    from bench.importers.contents import Contents


def pool(contents: Contents) -> list[Row]:
    """The rows of a file, each metric of a case once, in the order of their first appearance.

    Repeated numbers (repetitions, a table printed again, a log of several starts) become samples; the
    value is their median, and ``rounds`` tells which come from the same start of the tool. One that is
    not ok makes the whole row so, as everywhere.
    """
    groups: dict[tuple[str, int, str, str, str], list[tuple[int, Row]]] = {}
    for launch, row in zip(contents.launches, contents.rows, strict=True):
        key = (row.suite, row.method_version, row.case, row.metric, row.definition)
        groups.setdefault(key, []).append((launch, row))
    return [group[0][1] if len(group) == 1 else _joined(group) for group in groups.values()]


def _joined(group: list[tuple[int, Row]]) -> Row:
    rows = [row for _, row in group]
    status = next(status for status in UNMEASURED_FIRST if any(row.status == status for row in rows))
    joined = next(row for row in rows if row.status == status)
    counted = [row.wrong for row in rows if row.wrong is not None]
    joined.wrong = sum(counted) if counted else None
    if status != "ok":
        bad = sum(row.status == status for row in rows)
        joined.reason = f"{joined.reason} ({bad} of {len(rows)} repetitions)"
        return joined
    counts: dict[int, int] = {}
    samples: list[float] = []
    for launch, row in group:
        found = row.samples or [row.value or 0.0]
        samples += found
        counts[launch] = counts.get(launch, 0) + len(found)
    # Samples of one start lie together, as ``rounds`` needs them.
    joined.value = median(row.value or 0.0 for row in rows)
    joined.samples = samples
    joined.n = len(samples)
    joined.rounds = list(counts.values()) if len(counts) > 1 else []
    if any(row.rank_min is not None for row in rows):
        joined.rank_min = median(row.rank_min for row in rows if row.rank_min is not None)
        joined.rank_max = median(row.rank_max for row in rows if row.rank_max is not None)
    return joined
