"""Builds a platform profile from stored rows: which rows count, curves, tables and failures.

Where a case was measured more than once (resumed, repeated), one attempt counts whole, so that its
latency and bandwidth come from the same iterations: the one with the most metrics that are ok, then
a settled one, then the newest. Rows of an older method version of a suite never count.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import __version__
from bench.break_even import break_even_points
from bench.environment import identity_differences, identity_digest
from bench.errors import UsageError
from bench.fit import UnfittableError, fit_alpha_beta
from bench.measure.sampling import StopReason
from bench.platform_profile import (
    PROFILE_SCHEMA_VERSION,
    AlphaBetaFit,
    Curve,
    CurvePoint,
    ExpertGemm,
    Failure,
    MatmulPeak,
    MemoryBandwidth,
    MetricInfo,
    PlatformProfile,
    RowRef,
    Segment,
    SuiteMethod,
    TableRow,
)
from bench.store.row import Row, RunRecord, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.suite import Value

    Order = tuple[tuple[str, bool, Value], ...]

CURVE_TEXT_FIELDS = ("op", "algorithm", "traffic", "dtype", "backend", "device", "scope", "lab")
SIZE_FIELDS = ("bytes", "bytes_per_rank")
"""Parameters that change along a curve: the size, and what follows from it."""

CURVE_FIELDS = (*CURVE_TEXT_FIELDS, "ranks", "nodes", *SIZE_FIELDS)
TABLE_SUITES = ("matmul_peak", "memory", "attention", "expert_gemm", "codec")
SETTLED = frozenset(str(reason) for reason in StopReason if reason.settled)
RESIDUAL_DECIMALS = 6
SHOWN_DIFFERENCES = 3


@dataclass
class _Attempt:
    """All rows of one case in one run; a later row of a metric replaces an earlier one."""

    ok: dict[str, Row] = field(default_factory=dict)
    bad: dict[str, Row] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.ok.pop(row.metric, None)
        self.bad.pop(row.metric, None)
        (self.ok if row.status == "ok" else self.bad)[row.metric] = row

    def refuse(self, metric: str, reason: str) -> None:
        """Turn an ok row into an invalid one, in the profile only."""
        row = self.ok.pop(metric)
        self.bad[metric] = Row(**{**vars(row), "status": "invalid", "reason": reason, "value": None})

    @property
    def any_row(self) -> Row:
        return next(iter((self.ok or self.bad).values()))

    @property
    def params(self) -> dict[str, Value]:
        return self.any_row.params

    @property
    def settled(self) -> bool:
        return all(row.stop_reason in SETTLED for row in self.ok.values())

    @property
    def merit(self) -> tuple[int, bool, str, str, int]:
        last = max((*self.ok.values(), *self.bad.values()), key=lambda row: row.row_id)
        return len(self.ok), self.settled, last.started_at, last.run_id, last.row_id

    def value_in(self, unit: str) -> float | None:
        """The first ok metric of that unit."""
        return next((row.value for row in self.ok.values() if row.unit == unit), None)


def build_profile(rows: Iterable[Row], runs: Sequence[RunRecord]) -> PlatformProfile:
    """The profile of the machine that ``runs`` measured; rows may come in any order.

    Raises:
        UsageError: no run, a row of none of the runs, or runs of machines or set-ups that differ.
    """
    rows = sorted(rows, key=lambda row: (row.run_id, row.row_id))
    fingerprint = _fingerprint_of_all(runs)
    _require_known_runs(rows, runs)
    newest = _newest_methods(rows)
    current = [row for row in rows if row.method_version == newest[row.suite]]
    by_suite, superseded = _best_attempts(current)
    curves = [curve for attempts in by_suite.values() for curve in _curves(attempts)]
    tables = {suite: _table(attempts) for suite, attempts in by_suite.items() if suite in TABLE_SUITES}
    other = {suite: _table([a for a in attempts if not _is_point(a)]) for suite, attempts in by_suite.items()}
    other = {suite: table for suite, table in other.items() if table and suite not in TABLE_SUITES}
    counted = [point.settled for curve in curves for point in curve.points]
    counted += [row.settled for table in (*tables.values(), *other.values()) for row in table]
    expert_rows = tables.get("expert_gemm", ())
    return PlatformProfile(
        schema_version=PROFILE_SCHEMA_VERSION,
        created_at=utc_now(),
        harness_version=__version__,
        name=_machine_name(fingerprint),
        preset="+".join(sorted({run.preset for run in runs})),
        identity=fingerprint["identity"],
        identity_digest=identity_digest(fingerprint),
        run_ids=tuple(sorted({run.run_id for run in runs})),
        methods=_methods(current),
        collectives=tuple(curves),
        matmul_peak=_matmul_peaks(by_suite.get("matmul_peak", [])),
        memory=_memory_bandwidths(by_suite.get("memory", [])),
        attention=tables.get("attention", ()),
        expert_gemm=ExpertGemm(rows=expert_rows, break_even=break_even_points(expert_rows)),
        codec=tables.get("codec", ()),
        other=other,
        failures=_failures(attempt for attempts in by_suite.values() for attempt in attempts),
        unsettled=counted.count(False),
        superseded=superseded + len(rows) - len(current),
    )


def _fingerprint_of_all(runs: Sequence[RunRecord]) -> Mapping[str, Any]:
    """The first run's fingerprint, whose identity is that of every run."""
    if not runs:
        raise UsageError("a platform profile needs at least one run; name one, or run `bench characterize`")
    fingerprints = [{"identity": {}, "volatile": {}, **run.fingerprint} for run in runs]
    for run, fingerprint in zip(runs, fingerprints, strict=True):
        if differences := identity_differences(fingerprints[0], fingerprint):
            raise UsageError(
                f"runs {runs[0].run_id} and {run.run_id} are not of the same machine and set-up"
                f" ({'; '.join(differences[:SHOWN_DIFFERENCES])}); a profile describes one, so choose runs of one"
            )
    return fingerprints[0]


def _require_known_runs(rows: list[Row], runs: Sequence[RunRecord]) -> None:
    strangers = {row.run_id for row in rows} - {run.run_id for run in runs}
    if strangers:
        raise UsageError(f"there are rows of run {min(strangers)}, but not its record; pass both")


def _machine_name(fingerprint: Mapping[str, Any]) -> str:
    """Host and accelerator or processor model, for people."""
    identity, host = fingerprint["identity"], fingerprint["volatile"].get("host") or "unnamed host"
    gpus = [f"{gpu['count']} x {gpu['model']}" for gpu in identity.get("gpus") or ()]
    return f"{host}: {', '.join(gpus) or (identity.get('cpu') or {}).get('model') or 'unknown processor'}"


def _newest_methods(rows: list[Row]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for row in rows:
        newest[row.suite] = max(row.method_version, newest.get(row.suite, row.method_version))
    return newest


def _best_attempts(rows: list[Row]) -> tuple[dict[str, list[_Attempt]], int]:
    """The attempt that counts of each case, by suite, and the number of rows that do not count."""
    attempts: defaultdict[tuple[str, Order], defaultdict[str, _Attempt]] = defaultdict(lambda: defaultdict(_Attempt))
    # Parameters decide, not the text of the case; the text only saves sorting them for each metric.
    known: dict[str, tuple[dict[str, Value], Order]] = {}
    for row in rows:
        if row.case not in known or known[row.case][0] != row.params:
            known[row.case] = row.params, _order(row.params)
        attempts[row.suite, known[row.case][1]][row.run_id].add(row)
    chosen: dict[str, list[_Attempt]] = {}
    kept = 0
    for (suite, _), by_run in sorted(attempts.items()):
        best = max(by_run.values(), key=lambda attempt: attempt.merit)
        chosen.setdefault(suite, []).append(best)
        kept += len(best.ok) + len(best.bad)
        if "latency" in best.ok and (best.ok["latency"].value or 0.0) <= 0:
            best.refuse("latency", f"a latency of {best.ok['latency'].value} us is no measurement")
    return chosen, len(rows) - kept


def _methods(rows: list[Row]) -> dict[str, SuiteMethod]:
    versions: dict[str, int] = {}
    metrics: defaultdict[str, dict[str, MetricInfo]] = defaultdict(dict)
    for row in rows:
        versions[row.suite] = row.method_version
        if row.metric not in metrics[row.suite]:
            metrics[row.suite][row.metric] = MetricInfo(
                unit=row.unit,
                better="higher" if row.better == "higher" else "lower",
                definition=row.definition,
            )
    return {suite: SuiteMethod(method_version=versions[suite], metrics=metrics[suite]) for suite in sorted(versions)}


def _is_point(attempt: _Attempt) -> bool:
    """Whether the case is a point of a latency curve: its latency, size and number of ranks are known."""
    latency = attempt.ok.get("latency")
    return (
        latency is not None
        and latency.unit == "us"
        and all(type(attempt.params.get(name)) is int for name in ("bytes", "ranks"))
        and latency.suite not in TABLE_SUITES
    )


def _curves(attempts: list[_Attempt]) -> list[Curve]:
    groups: defaultdict[Order, list[_Attempt]] = defaultdict(list)
    for attempt in attempts:
        if _is_point(attempt):
            key = {name: value for name, value in attempt.params.items() if name not in SIZE_FIELDS}
            groups[_order(key)].append(attempt)
    return [_curve(group) for _, group in sorted(groups.items())]


def _curve(attempts: list[_Attempt]) -> Curve:
    """One curve from its points; attempts of the same size never share all other parameters."""
    attempts.sort(key=lambda attempt: attempt.params["bytes"])
    suite, params = attempts[0].ok["latency"].suite, attempts[0].params
    sizes = [int(attempt.params["bytes"]) for attempt in attempts]
    latencies = [float(attempt.ok["latency"].value or 0.0) for attempt in attempts]
    settled = [attempt.settled for attempt in attempts]
    fit, reason = None, ""
    try:
        fit = _fit(sizes, latencies, unsettled=settled.count(False))
    except UnfittableError as error:
        reason = str(error)
    points = tuple(_point(attempt, fit) for attempt in attempts)
    return Curve(
        suite=suite,
        **{name: str(params.get(name, "")) for name in CURVE_TEXT_FIELDS},
        ranks=int(params["ranks"]),
        nodes=int(params.get("nodes", 1)),
        params={name: value for name, value in sorted(params.items()) if name not in CURVE_FIELDS},
        points=points,
        base_latency_us=min(latencies),
        peak_busbw_gb_s=max((p.busbw_gb_s for p in points if p.busbw_gb_s is not None), default=None),
        fit=fit,
        fit_absent_reason=reason,
    )


def _fit(sizes: list[int], latencies: list[float], unsettled: int) -> AlphaBetaFit:
    segments = tuple(
        Segment(min_bytes=line.min_bytes, max_bytes=line.max_bytes, alpha_us=line.alpha_us, beta_gb_s=line.beta_gb_s)
        for line in fit_alpha_beta(sizes, latencies)
    )
    fit = AlphaBetaFit(
        model="alpha-beta",
        segments=segments,
        worst_relative_residual=0.0,
        median_relative_residual=0.0,
        points=len(sizes),
        unsettled_points=unsettled,
    )
    predicted = np.array([fit.latency_us_at(size) for size in sizes])
    residuals = np.abs(predicted / np.array(latencies) - 1)
    return fit.model_copy(
        update={
            "worst_relative_residual": round(float(residuals.max()), RESIDUAL_DECIMALS),
            "median_relative_residual": round(float(np.median(residuals)), RESIDUAL_DECIMALS),
        }
    )


def _point(attempt: _Attempt, fit: AlphaBetaFit | None) -> CurvePoint:
    row = attempt.ok["latency"]
    latency, size = float(row.value or 0.0), int(row.params["bytes"])
    predicted = fit.latency_us_at(size) if fit else None
    return CurvePoint(
        bytes=size,
        latency_us=latency,
        busbw_gb_s=_optional(attempt, "busbw"),
        algbw_gb_s=_optional(attempt, "algbw"),
        share_of_bound=_optional(attempt, "share_of_bound"),
        rank_min_us=row.rank_min,
        rank_max_us=row.rank_max,
        n=row.n,
        settled=attempt.settled,
        fit_us=float(f"{predicted:.7g}") if predicted else None,
        fit_residual=round(predicted / latency - 1, RESIDUAL_DECIMALS) if predicted else None,
        row=RowRef(run_id=row.run_id, row_id=row.row_id),
    )


def _optional(attempt: _Attempt, metric: str) -> float | None:
    return attempt.ok[metric].value if metric in attempt.ok else None


def _table(attempts: Iterable[_Attempt]) -> tuple[TableRow, ...]:
    return tuple(_table_row(attempt) for attempt in attempts if attempt.ok)


def _table_row(attempt: _Attempt) -> TableRow:
    first = next(iter(attempt.ok.values()))
    return TableRow(
        params=dict(sorted(attempt.params.items())),
        values={metric: float(row.value or 0.0) for metric, row in attempt.ok.items()},
        n=first.n,
        settled=attempt.settled,
        row=RowRef(run_id=first.run_id, row_id=first.row_id),
    )


def _peaks(attempts: list[_Attempt], name: str, unit: str) -> list[tuple[str, str, int | None, float, list[_Attempt]]]:
    """Cases by (parameter ``name``, device, threads) with the largest value in ``unit``; its case comes first."""
    groups: defaultdict[tuple[str, str, int], list[_Attempt]] = defaultdict(list)
    for attempt in attempts:
        params = attempt.params
        if attempt.value_in(unit):
            key = str(params.get(name, "")), str(params.get("device", "")), int(params.get("threads", 0))
            groups[key].append(attempt)
    peaks = []
    for (label, device, threads), group in sorted(groups.items()):
        group.sort(key=lambda attempt: -(attempt.value_in(unit) or 0.0))
        peaks.append((label, device, threads or None, group[0].value_in(unit) or 0.0, group))
    return peaks


def _matmul_peaks(attempts: list[_Attempt]) -> tuple[MatmulPeak, ...]:
    return tuple(
        MatmulPeak(
            dtype=dtype,
            device=device,
            threads=threads,
            best_tflop_s=best,
            best_params=dict(sorted(group[0].params.items())),
            settled=group[0].settled,
            points=_table(group),
        )
        for dtype, device, threads, best, group in _peaks(attempts, "dtype", "TFLOP/s")
    )


def _memory_bandwidths(attempts: list[_Attempt]) -> tuple[MemoryBandwidth, ...]:
    return tuple(
        MemoryBandwidth(
            kernel=kernel,
            device=device,
            threads=threads,
            best_gb_s=best,
            best_params=dict(sorted(group[0].params.items())),
            settled=group[0].settled,
            points=_table(group),
        )
        for kernel, device, threads, best, group in _peaks(attempts, "kernel", "GB/s")
    )


def _failures(attempts: Iterable[_Attempt]) -> tuple[Failure, ...]:
    """One entry a case and cause. A metric that is merely unknown where others were measured is none."""
    failures = []
    for attempt in attempts:
        causes: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in attempt.bad.values():
            if not (row.status == "skipped" and attempt.ok):
                causes[row.status, row.reason].append(row)
        failures += [_failure(rows) for rows in causes.values()]
    return tuple(failures)


def _failure(rows: list[Row]) -> Failure:
    """The entry of one case's rows that share status and reason."""
    first = rows[0]
    assert first.status != "ok"
    return Failure(
        suite=first.suite,
        case=first.case,
        params=dict(sorted(first.params.items())),
        metrics=tuple(row.metric for row in rows),
        status=first.status,
        reason=first.reason,
        row=RowRef(run_id=first.run_id, row_id=first.row_id),
    )


def _order(params: Mapping[str, Value]) -> Order:
    """A sort key: parameters by name, numbers as numbers."""
    return tuple((name, isinstance(value, str), value) for name, value in sorted(params.items()))
