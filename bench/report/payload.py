"""The report's data for its scripts: each suite's cases in columns, small enough for tens of thousands of rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.report.cases import is_settled, value_order
from bench.report.formatting import counted, is_size, parameter, quartiles, spread
from bench.report.layout import TIME_UNITS, metric_order, views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.platform_profile import Curve, PlatformProfile
    from bench.report.cases import CaseResult, SuiteResults
    from bench.store.row import Row, Value

SIGNIFICANT_DIGITS = 6
POOR_RESIDUAL = 0.5
"""A fit that is off by more than this share at a measured point is marked as poor."""
PLACE = ("lab", "ranks", "nodes")
"""Of a fitted curve's identity, what is not in its name."""


def suite_payload(suite: SuiteResults, profile: PlatformProfile | None = None) -> dict[str, Any]:
    """One suite as plain JSON values: parameters, metrics, cases and numbers by column, and what to draw.

    Texts that repeat are numbers into a list (``codes`` into ``values`` and ``texts``; -1 is absent).
    """
    units = {metric.name: metric for metric in suite.metrics}
    fits = _fits(profile)
    return {
        "name": suite.name,
        "fixed": {name: parameter(name, value) for name, value in suite.fixed.items()},
        "params": [_parameter_column(name, suite.cases) for name in suite.varying],
        "metrics": [
            {
                **asdict(units[name]),
                "log": units[name].unit in TIME_UNITS,
                "rows": _metric_columns([case.rows.get(name) for case in suite.cases], fits),
            }
            for name in metric_order(suite)
        ],
        "status": _coded([case.status for case in suite.cases]),
        "reason": _coded(["" if case.status == "ok" else _summary(case.reason) for case in suite.cases]),
        "run": _coded([case.run_id for case in suite.cases]),
        "method": _coded([case.method_version for case in suite.cases]),
        "emulated": [int(case.emulated) for case in suite.cases],
        "views": [asdict(view) for view in views(suite)],
    }


def fit_table(profile: PlatformProfile | None) -> dict[str, Any] | None:
    """The fitted latency and bandwidth of each curve, a row a segment; None without any curve."""
    if profile is None or not profile.collectives:
        return None
    identities = [_curve_identity(curve) for curve in profile.collectives]
    shared = _shared(identities)
    rows = []
    for curve, identity in zip(profile.collectives, identities, strict=True):
        told = [value for name, value in identity.items() if name not in shared and value]
        row: dict[str, Any] = {
            "curve": " · ".join(told) or curve.op or curve.suite,
            **{name: getattr(curve, name) for name in PLACE},
            "base_us": _short(curve.base_latency_us),
            "peak": _short(curve.peak_busbw_gb_s),
            "points": len(curve.points),
            "note": curve.fit_absent_reason,
        }
        if curve.fit is None:
            rows.append(row)
            continue
        row["worst"] = _short(curve.fit.worst_relative_residual)
        row["median"] = _short(curve.fit.median_relative_residual)
        row["poor"] = curve.fit.worst_relative_residual > POOR_RESIDUAL
        if curve.fit.unsettled_points:
            row["note"] = f"{counted(curve.fit.unsettled_points, 'point')} did not settle"
        for segment in curve.fit.segments:
            ends = {"from": segment.min_bytes, "to": segment.max_bytes}
            rows.append({**row, **ends, "alpha_us": _short(segment.alpha_us), "beta": _short(segment.beta_gb_s)})
    return {"shared": shared, "rows": rows}


def break_even_table(profile: PlatformProfile | None) -> dict[str, Any] | None:
    """Where grouped overtakes looped expert GEMM, a row for each pair of curves; None without any."""
    if profile is None or not profile.expert_gemm.break_even:
        return None
    entries = profile.expert_gemm.break_even
    texts = [{name: parameter(name, value) for name, value in entry.params.items()} for entry in entries]
    shared = _shared(texts)
    rows = [
        {
            "curve": " · ".join(
                f"{name} {value}" if value.isdigit() else value for name, value in text.items() if name not in shared
            ),
            "outcome": entry.outcome + ("" if entry.settled else " (a compared point did not settle)"),
            "crossings": [[_short(crossing.tokens), crossing.faster_above] for crossing in entry.crossings],
            "from": entry.min_tokens,
            "to": entry.max_tokens,
        }
        for entry, text in zip(entries, texts, strict=True)
    ]
    return {"shared": shared, "rows": rows}


def _curve_identity(curve: Curve) -> dict[str, str]:
    """What tells a fitted curve from the others beside its place, as texts."""
    names = ("suite", "op", "algorithm", "traffic", "dtype", "backend", "device", "scope")
    more = {name: f"{name} {parameter(name, value)}" for name, value in curve.params.items()}
    return {name: getattr(curve, name) for name in names} | more


def _shared(identities: Sequence[dict[str, str]]) -> dict[str, str]:
    """What is the same in all of several, and not empty; nothing if there is only one to compare."""
    first, *others = identities
    if not others:
        return {}
    return {name: text for name, text in first.items() if text and all(other.get(name) == text for other in others)}


def to_json(value: Any) -> str:
    """JSON that is inert inside an HTML script element: no text in it can end the element or open another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _parameter_column(name: str, cases: Sequence[CaseResult]) -> dict[str, Any]:
    found = {(type(value), value): value for case in cases if (value := case.params.get(name)) is not None}
    values = sorted(found.values(), key=value_order)
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    place = {(type(value), value): code for code, value in enumerate(values)}
    return {
        "name": name,
        "numeric": numeric,
        "size": is_size(name),
        "values": values,
        "texts": [parameter(name, value) for value in values],
        "codes": [_code(place, case.params.get(name)) for case in cases],
    }


def _code(place: dict[tuple[type, Value], int], value: Value | None) -> int:
    return -1 if value is None else place[(type(value), value)]


def _metric_columns(rows: Sequence[Row | None], fits: dict[tuple[str, int], tuple[float, float]]) -> dict[str, Any]:
    """The rows of one metric, by column; null where a case has no such row, or no such number."""
    ends = [None if row is None or row.status != "ok" else quartiles(row.samples) for row in rows]
    fitted = [None if row is None else fits.get((row.run_id, row.row_id)) for row in rows]
    columns: dict[str, Any] = {
        "value": [_short(row.value) if row else None for row in rows],
        "low": [_short(end[0]) if end else None for end in ends],
        "high": [_short(end[1]) if end else None for end in ends],
        "spread": [_short(spread(row)) if row else None for row in rows],
        "n": [row.n if row else None for row in rows],
        "warmup": [row.warmup if row else None for row in rows],
        "stop": _coded([row.stop_reason if row else "" for row in rows]),
        "settled": [int(is_settled(row)) if row else 1 for row in rows],
        "wrong": [row.wrong if row else None for row in rows],
        "fastest": [_short(row.rank_min) if row else None for row in rows],
        "middle": [_short(row.rank_median) if row else None for row in rows],
        "slowest": [_short(row.rank_max) if row else None for row in rows],
        "slowest_rank": [row.slowest_rank if row else None for row in rows],
        "entry_skew": [_short(row.entry_skew) if row else None for row in rows],
        "status": _coded([row.status if row else "" for row in rows]),
        "reason": _coded([_summary(row.reason) if row else "" for row in rows]),
        "row_id": [row.row_id if row else None for row in rows],
        "started": _coded([row.started_at if row else "" for row in rows]),
    }
    if any(fit is not None for fit in fitted):
        columns["fit"] = [_short(fit[0]) if fit else None for fit in fitted]
        columns["residual"] = [_short(fit[1]) if fit else None for fit in fitted]
    return columns


def _coded(values: Iterable[Any]) -> dict[str, Any]:
    places: dict[Any, int] = {}
    codes = [places.setdefault(value, len(places)) for value in values]
    return {"values": list(places), "codes": codes}


def _fits(profile: PlatformProfile | None) -> dict[tuple[str, int], tuple[float, float]]:
    """What the fit predicts (microseconds) and its residual, by the latency row it belongs to."""
    if profile is None:
        return {}
    return {
        (point.row.run_id, point.row.row_id): (point.fit_us, point.fit_residual)
        for curve in profile.collectives
        for point in curve.points
        if point.fit_us is not None and point.fit_residual is not None
    }


def _summary(reason: str) -> str:
    """The first line of a reason; the ranks' stacks that follow are shown once, with the failures."""
    return reason.strip().partition("\n")[0]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{SIGNIFICANT_DIGITS}g}")
