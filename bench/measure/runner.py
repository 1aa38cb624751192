"""Measures one case on this rank's group and turns it into rows, whatever the outcome."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.definitions import Ceiling, format_bytes
from bench.hardware import available_memory_bytes
from bench.measure.progress import Progress
from bench.measure.sampling import sample
from bench.store.row import Row, Status, utc_now
from bench.suite import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.measure.sampling import Sampling, Timing
    from bench.suite import Context, Metric, Site, Suite, Workload

SIGNIFICANT_DIGITS = 7

_Verdict = tuple[Status, str]


def placed_case(suite: Suite, case: Case, site: Site) -> Case:
    """The case with the parameters that follow from the place it runs in.

    A row of a GPU is never compared with a row of a CPU, nor the lab with hardware, because the
    place is part of the parameters, and so of the case's id.
    """
    params = {**case.params, **suite.placed_params(case, site), "device": site.device}
    if suite.distributed:
        params["nodes"] = site.nodes
        params["scope"] = site.scope
        params["backend"] = "nccl" if site.device == "cuda" else "gloo"
        if site.lab:
            params["lab"] = site.lab
    return Case(params)


def _blank_rows(suite: Suite, case: Case, site: Site) -> list[Row]:
    """A row for each metric of the case, still without a value (status failed until filled)."""
    placed = placed_case(suite, case, site)
    return [
        Row(
            run_id="",
            row_id=-1,
            suite=suite.name,
            method_version=suite.method_version,
            case=placed.id,
            params=dict(placed.params),
            metric=metric.name,
            unit=metric.unit,
            better=metric.better,
            definition=metric.definition.id,
            status="failed",
            reason="not measured",
            seed=site.seed,
            started_at=utc_now(),
        )
        for metric in suite.metrics_for(case)
    ]


def unmeasured_rows(suite: Suite, case: Case, site: Site, status: Status, reason: str) -> list[Row]:
    """The rows of a case that gave no number: each metric's, with the status and its cause."""
    rows = _blank_rows(suite, case, site)
    for row in rows:
        row.status, row.reason = status, reason
    return rows


def run_case(
    suite: Suite, case: Case, context: Context, sampling: Sampling, progress: Progress | None = None
) -> list[Row]:
    """Set up, time and check one case (collective); the same rows on every rank.

    Raises:
        Exception: whatever the suite raises; the group is then in an unknown state.
    """
    progress = progress or Progress()
    progress.phase, progress.iteration = "setup", 0
    site, group = context.site, context.group
    # Rank 0 decides for all, so that a reason that differs between hosts cannot part the group.
    skip = group.broadcast(suite.skip_reason(case, site) or _memory_reason(suite, case, site))
    if skip:
        return unmeasured_rows(suite, case, site, "skipped", skip)
    rows = _blank_rows(suite, case, site)
    workload = suite.setup(case, context)
    try:
        progress.phase = "measure"
        timing = sample(workload.run, counted(workload.prepare, progress), sampling, group, site.device)
        progress.phase = "check"
        wrong = group.gather(np.array([workload.check()], dtype=np.float64))[:, 0]
        _fill(rows, suite, case, workload, timing, wrong, group.world)
    finally:
        workload.close()
    progress.phase = "done"
    return rows


def counted(prepare: Callable[[], None], progress: Progress) -> Callable[[], None]:
    """``prepare``, and a count of the iterations begun: what the harness does before each timed window."""

    def count_and_prepare() -> None:
        progress.iteration += 1
        prepare()

    return count_and_prepare


def _memory_reason(suite: Suite, case: Case, site: Site) -> str | None:
    """Why the rank's GPU, or this host for all its ranks, has too little memory for the case; or None."""
    if site.device == "cuda":
        import torch

        needed, free, whose = suite.memory_bytes(case), torch.cuda.mem_get_info()[0], "on the GPU"
    else:
        ranks = site.ranks_on_host
        needed, free, whose = suite.memory_bytes(case) * ranks, available_memory_bytes(), f"for {ranks} rank(s) here"
    if needed <= free:
        return None
    return f"needs {format_bytes(needed)} of memory {whose}, {format_bytes(free)} are free"


def _fill(
    rows: list[Row],
    suite: Suite,
    case: Case,
    workload: Workload,
    timing: Timing,
    wrong: np.ndarray[Any, np.dtype[np.float64]],
    world: int,
) -> None:
    """Turn timing, observations and the check's outcome into the rows' values."""
    observed = workload.observations()
    total_wrong = int(wrong.sum())
    metrics = suite.metrics_for(case)
    for row, metric in zip(rows, metrics, strict=True):
        row.wrong, row.warmup, row.stop_reason = total_wrong, timing.warmup, str(timing.stop_reason)
        row.entry_skew = _rounded(timing.entry_skew_us)
        if metric.definition.value is None:
            _fill_observed(row, observed.get(metric.name, ()))
        else:
            _fill_timed(row, metric, workload, timing)
    if total_wrong:
        ranks = ", ".join(str(rank) for rank in np.flatnonzero(wrong))
        verdicts: list[_Verdict] = [("failed", f"{total_wrong} wrong element(s), on rank(s) {ranks}")] * len(rows)
    else:
        verdicts = [_judge(row, workload.work.ceilings.get(row.metric), suite.distributed, world) for row in rows]
    # The metrics of a case are one measurement: if its time makes one of them impossible, it is wrong for all.
    impossible = next((verdict for verdict in verdicts if verdict[0] == "invalid"), None)
    for row, verdict in zip(rows, verdicts, strict=True):
        _apply(row, impossible or verdict)


def _fill_observed(row: Row, samples: Sequence[float]) -> None:
    """A metric that the workload observed itself."""
    row.samples = [_rounded(sample_value) for sample_value in samples]
    row.n = len(row.samples)
    row.value = float(np.median(samples)) if row.n else math.nan


def _fill_timed(row: Row, metric: Metric, workload: Workload, timing: Timing) -> None:
    """A metric that follows from the duration: median of the slowest rank's, and each rank's own."""
    value_of = metric.definition.value
    assert value_of is not None
    work, medians = workload.work, timing.rank_medians
    slowest = timing.slowest
    if float(slowest.min()) <= 0:
        row.value = math.inf
        return
    row.samples = [_rounded(value_of(float(seconds), work)) for seconds in slowest]
    row.n = len(row.samples)
    row.value = value_of(float(np.median(slowest)), work)
    row.rank_min = _rounded(value_of(float(medians.min()), work))
    row.rank_median = _rounded(value_of(float(np.median(medians)), work))
    row.rank_max = _rounded(value_of(float(medians.max()), work))
    row.slowest_rank = int(medians.argmax())


def _judge(row: Row, ceiling: Ceiling | None, distributed: bool, world: int) -> _Verdict:
    """Accept the value, or say why it is none: impossible values never become numbers."""
    value = row.value
    if distributed and world == 1:
        return "invalid", "a world of one rank moves no data"
    if value is None or math.isnan(value):
        return "skipped", f"{row.metric} is not known for this case here"
    if math.isinf(value):
        return "invalid", "an iteration was shorter than the clock can tell"
    if ceiling is not None and value > ceiling.value:
        return (
            "invalid",
            f"{row.metric} of {value:.4g} {row.unit} is above the {ceiling.value:.4g} possible here ({ceiling.source})",
        )
    return "ok", ""


def _apply(row: Row, verdict: _Verdict) -> None:
    """Give the row its status; what is no measurement keeps no numbers."""
    row.status, row.reason = verdict
    if row.status == "ok":
        row.value = _rounded(float(row.value or 0.0))
        return
    row.value, row.samples, row.n = None, [], 0
    row.rank_min = row.rank_median = row.rank_max = row.slowest_rank = None


def _rounded(value: float) -> float:
    """Seven significant digits: beyond any clock's truth, and half the size on disk."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
