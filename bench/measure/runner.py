"""Measures one case on this rank's group and turns it into rows, whatever the outcome."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bench.definitions import format_bytes
from bench.hardware import available_memory_bytes
from bench.measure.progress import Progress
from bench.measure.sampling import sample
from bench.store.row import Row, Status, utc_now
from bench.suite import Case, require_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bench.definitions import Ceiling, Definition, Work
    from bench.measure.sampling import Sampling, Timing
    from bench.suite import Context, Metric, Site, Suite, Workload

SIGNIFICANT_DIGITS = 7

_Verdict = tuple[Status, str]


def placed_case(suite: Suite, case: Case, site: Site) -> Case:
    """The case with the parameters that follow from the place it runs in.

    A row of a GPU is never compared with a row of a CPU, nor the lab with hardware, because the
    place is part of the parameters, and so of the case's id.
    """
    placed = suite.placed_params(case, site)
    require_plain(suite.name, placed)
    params = {**case.params, **placed, "device": site.device}
    if suite.distributed:
        params["nodes"] = site.nodes
        params["scope"] = site.scope
        params["backend"] = "nccl" if site.device == "cuda" else "gloo"
        if site.lab:
            params["lab"] = site.lab
    return Case(params)


def blank_row(suite: Suite, placed: Case, metric: Metric, seed: int) -> Row:
    """A row of the metric, still without a value (status failed until filled); ``placed`` is from ``placed_case``."""
    case = metric.case_of(placed)
    return Row(
        run_id="",
        row_id=-1,
        suite=suite.name,
        method_version=suite.method_version,
        case=case.id,
        params=dict(case.params),
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        definition=metric.definition.id,
        status="failed",
        reason="not measured",
        seed=seed,
        started_at=utc_now(),
    )


def _blank_rows(suite: Suite, case: Case, site: Site) -> list[Row]:
    """A blank row for each metric of the case."""
    placed = placed_case(suite, case, site)
    return [blank_row(suite, placed, metric, site.seed) for metric in suite.metrics_for(case)]


def unmeasured_rows(suite: Suite, case: Case, site: Site, status: Status, reason: str) -> list[Row]:
    """The rows of a case that gave no number: each metric's, with the status and its cause."""
    rows = _blank_rows(suite, case, site)
    for row in rows:
        row.status, row.reason = status, str(reason)
    return rows


def timed_rows(
    suite: Suite, case: Case, site: Site, work: Work, observed: Mapping[str, Sequence[float]], timing: Timing
) -> list[Row]:
    """The rows of a case that was timed by other means than ``run_case``, and had nothing to check.

    Args:
        observed: as ``Workload.observations`` gives it.
    """
    rows = _blank_rows(suite, case, site)
    _fill(rows, suite, case, work, observed, timing, np.zeros(site.world))
    for row in rows:
        row.wrong = None
    return rows


def run_case(
    suite: Suite, case: Case, context: Context, sampling: Sampling, progress: Progress | None = None
) -> list[Row]:
    """Set up, time and check one case (collective).

    Every rank gets the same rows, but for what its own workload observed: rank 0's count.

    Raises:
        Exception: whatever the suite raises; the group is then in an unknown state.
    """
    progress = progress or Progress()
    progress.phase, progress.iteration, progress.ticks = "setup", 0, 0
    site, group = context.site, context.group
    skip = first_reason(group.gather_objects(suite.skip_reason(case, site) or memory_reason(suite, case, site)))
    if skip:
        return unmeasured_rows(suite, case, site, "skipped", skip)
    rows = _blank_rows(suite, case, site)
    workload = suite.setup(case, replace(context, alive=progress.tick))
    try:
        progress.phase = "measure"
        prepare = counted(workload.prepare, progress)
        timing = sample(workload.run, prepare, sampling, group, site.device, workload.baseline)
        ranges = _range_rows(suite, case, context, sampling, timing, workload, prepare) if sampling.ranges else []
        progress.phase = "check"
        checked = workload.check()
        wrong = group.gather(np.array([np.nan if checked is None else checked], dtype=np.float64))[:, 0]
        _fill(rows, suite, case, workload.work, workload.observations(), timing, wrong)
        _judge_ranges(ranges, rows, timing, wrong)
    finally:
        workload.close()
    if site.device == "cuda":
        del workload, prepare
        _return_device_memory()
    progress.phase = "done"
    return rows + ranges


def _range_rows(
    suite: Suite,
    case: Case,
    context: Context,
    sampling: Sampling,
    timing: Timing,
    workload: Workload,
    prepare: Callable[[], None],
) -> list[Row]:
    """The rows of the ranges that the workload's code marks (collective)."""
    from bench.measure.regions import iterations_for, range_rows, record_ranges

    group, site = context.group, context.site
    spent = record_ranges(workload, prepare, group, site.device, iterations_for(timing, sampling))
    return range_rows(suite, placed_case(suite, case, site), site, spent, str(timing.stop_reason))


def _judge_ranges(ranges: list[Row], rows: list[Row], timing: Timing, wrong: NDArray[np.float64]) -> None:
    """Ranges of a case whose numbers are wrong or impossible are no numbers either."""
    bad = next((row for row in rows if row.status == "invalid"), None)
    if bad is None and _total_wrong(wrong):
        bad = next((row for row in rows if row.status == "failed"), None)
    for row in ranges:
        row.wrong, row.warmup = _total_wrong(wrong), timing.warmup
        if bad:
            _apply(row, (bad.status, bad.reason))


def _total_wrong(by_rank: NDArray[np.float64]) -> int | None:
    """Over all ranks; None if none of them found anything and one could not check (NaN)."""
    found = int(np.nansum(by_rank))
    return None if not found and np.isnan(by_rank).any() else found


def first_reason(reasons: Sequence[str | None]) -> str | None:
    """The first rank's that has one: hosts differ, and a case that one of them cannot take is skipped by all."""
    for rank, reason in enumerate(reasons):
        if reason:
            return f"{reason} (rank {rank})" if rank else reason
    return None


def _return_device_memory() -> None:
    """Give what torch keeps of the ended case back to the device, or the next case would not find it free."""
    import torch

    # A workload may refer to itself; its tensors then wait for the collector.
    gc.collect()
    torch.cuda.empty_cache()


def counted(prepare: Callable[[], None], progress: Progress) -> Callable[[], None]:
    """``prepare``, and a count of the calls begun: what the harness does before each timed window."""

    def count_and_prepare() -> None:
        progress.iteration += 1
        prepare()

    return count_and_prepare


def memory_reason(suite: Suite, case: Case, site: Site) -> str | None:
    """Why the rank's GPU, or this host for all its ranks, has too little memory for the case; or None."""
    needed = suite.memory_bytes(case, site)
    if site.device == "cuda":
        import torch

        free, whose = torch.cuda.mem_get_info()[0], "on the GPU"
    else:
        ranks = site.ranks_on_host
        needed, free, whose = needed * ranks, available_memory_bytes(), f"for {ranks} rank(s) here"
    if needed <= free:
        return None
    return f"needs {format_bytes(needed)} of memory {whose}, {format_bytes(free)} are free"


def _fill(
    rows: list[Row],
    suite: Suite,
    case: Case,
    work: Work,
    observed: Mapping[str, Sequence[float]],
    timing: Timing,
    wrong: NDArray[np.float64],
) -> None:
    """Turn timing, observations and the check's outcome into the rows' values; ``wrong`` is by rank, NaN: unchecked."""
    if (wrong < 0).any():
        raise ValueError(f"check() of {suite.name} counts wrong elements, it returned {int(np.nanmin(wrong))}")
    total_wrong = _total_wrong(wrong)
    verdicts = []
    for row, metric in zip(rows, suite.metrics_for(case), strict=True):
        row.wrong, row.warmup, row.stop_reason = total_wrong, timing.warmup, str(timing.stop_reason)
        row.entry_skew = _rounded(timing.entry_skew_us)
        definition = metric.definition
        if definition.value or definition.against_baseline:
            verdict = _fill_timed(row, definition, work, timing)
        else:
            verdict = _fill_observed(row, metric.key, observed)
        verdicts.append(verdict or _judge(row, work.ceilings.get(metric.key)))
    if total_wrong:
        ranks = ", ".join(str(rank) for rank in np.flatnonzero(wrong > 0))
        verdicts = [("failed", f"{total_wrong} wrong element(s), on rank(s) {ranks}")] * len(rows)
    elif suite.distributed and not suite.valid_alone and len(wrong) == 1:
        verdicts = [("invalid", "a world of one rank moves no data")] * len(rows)
    # The metrics of a case are one measurement: if its time makes one of them impossible, it is wrong for all.
    impossible = next((verdict for verdict in verdicts if verdict[0] == "invalid"), None)
    for row, verdict in zip(rows, verdicts, strict=True):
        _apply(row, impossible or verdict)


def _fill_observed(row: Row, key: str, observed: Mapping[str, Sequence[float]]) -> _Verdict | None:
    """A metric that the workload observed itself; why it has no value, or None."""
    samples = observed.get(key, ())
    if not len(samples):
        return "failed", f"the workload gave no sample of {key}"
    if not np.isfinite(samples).all():
        unfit = next(sample_value for sample_value in samples if not math.isfinite(sample_value))
        return "failed", f"the workload gave {unfit} as a sample of {key}"
    row.samples = [_rounded(sample_value) for sample_value in samples]
    row.n = len(row.samples)
    row.value = float(np.median(samples))
    return None


def _fill_timed(row: Row, definition: Definition, work: Work, timing: Timing) -> _Verdict | None:
    """A metric that follows from durations; why it has no value, or None.

    Its value is that of the medians, over iterations, of the slowest rank's durations: run's, and
    the baseline's where the definition compares the two. Each rank's number is that of its own medians.
    """
    durations = [timing.seconds]
    if definition.against_baseline:
        if timing.baseline_seconds is None:
            return "failed", f"the workload has no baseline, and {row.metric} compares with one"
        durations.append(timing.baseline_seconds)
    if any(_too_short(seconds) for seconds in durations):
        return "invalid", "an iteration was shorter than the clock can tell"
    value_of: Callable[..., float] | None = definition.against_baseline or definition.value
    assert value_of is not None
    slowest = [seconds.max(axis=0) for seconds in durations]
    medians = [np.median(seconds, axis=1) for seconds in durations]
    fastest_rank, slowest_rank = int(medians[0].argmin()), int(medians[0].argmax())
    row.value = value_of(*(float(np.median(seconds)) for seconds in slowest), work)
    if math.isnan(row.value) and work.bound_seconds is None:
        return "skipped", f"{row.metric} is not known for this case here"
    if not math.isfinite(row.value):
        return "failed", f"{definition.id} gives {row.value} for this workload"
    row.samples = [_rounded(value_of(*map(float, seconds), work)) for seconds in zip(*slowest, strict=True)]
    row.n = len(row.samples)
    row.rank_min = _rounded(value_of(*(float(median[fastest_rank]) for median in medians), work))
    row.rank_median = _rounded(value_of(*(float(np.median(median)) for median in medians), work))
    row.rank_max = _rounded(value_of(*(float(median[slowest_rank]) for median in medians), work))
    row.slowest_rank = slowest_rank
    return None


def _too_short(seconds: NDArray[np.float64]) -> bool:
    """True if an iteration, or a rank's median, took no time that the clock could tell; shape ``(world, n)``."""
    return bool(seconds.max(axis=0).min() <= 0 or np.median(seconds, axis=1).min() <= 0)


def _judge(row: Row, ceiling: Ceiling | None) -> _Verdict:
    """Accept the value, unless the hardware cannot do so much."""
    value = row.value
    if ceiling is not None and value is not None and value > ceiling.value:
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
