"""A history as plain JSON: every point, every gap and every change of each series."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.history_series import Change, History, Point, Series, Slope
    from bench.stats.findings import ChangePoint, Drift

VERSION = 2
"""Of this form; a field that changes its meaning raises it."""


def to_dict(history: History) -> dict[str, Any]:
    """The history as ``bench history --json`` prints it; no number in it is NaN or infinite."""
    return {
        "version": VERSION,
        "metric": history.metric,
        "series": [_series(one) for one in history.series],
        "lost": history.lost or None,
    }


def _series(one: Series) -> dict[str, Any]:
    return {
        "suite": one.suite,
        "case": one.case,
        "params": one.params,
        "method_version": one.method_version,
        "definition": one.definition,
        "unit": one.unit,
        "better": one.better,
        "machine": one.machine,
        "began": one.began,
        "superseded": one.superseded,
        "judged": one.judged,
        "level": one.level,
        "trend": one.trend,
        "points": [_point(point) for point in one.shown],
        "changes": [_change(one, change) for change in one.changes],
        "drifts": [_drift(one, slope) for slope in one.slopes],
    }


def _point(point: Point) -> dict[str, Any]:
    return {**asdict(point), "commit": point.commit.id or None, "dirty": point.commit.dirty}


def _change(one: Series, change: Change) -> dict[str, Any]:
    found = change.found
    return {
        "kind": change.kind,
        "status": found.status,
        "stands": change.stands,
        "run_id": one.points[found.index].run_id,
        "earliest_run_id": one.points[found.earliest].run_id,
        "latest_run_id": one.points[found.latest].run_id,
        "commits": change.commits,
        **_sizes(found),
        "points_before": found.points_before,
        "points_after": found.points_after,
    }


def _drift(one: Series, slope: Slope) -> dict[str, Any]:
    found = slope.found
    return {
        "kind": slope.kind,
        "status": found.status,
        "stands": slope.stands,
        "first_run_id": one.points[found.first].run_id,
        "last_run_id": one.points[found.last].run_id,
        **_sizes(found),
        "points": found.points,
    }


def _sizes(found: ChangePoint | Drift) -> dict[str, Any]:
    return {
        "before": found.before,
        "after": found.after,
        "effect": _finite(found.effect),
        "interval": [_finite(end) for end in found.interval],
        "p_value": found.p_value,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
