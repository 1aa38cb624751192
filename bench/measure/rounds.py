"""Rounds: a case measured several times, each by other processes, and pooled into one row a metric.

Two groups of processes on one machine differ by more than the samples of either show: where their
memory lies, and which core a thread of the library came to rest on, stay as they are until the
processes end. Only other processes tell how far a number can be relied on.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.measure.sampling import StopReason
from bench.store.row import UNMEASURED_FIRST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.store.row import Row
    from bench.suite import Preset

ROUNDS: dict[Preset, int] = {"quick": 1, "standard": 5, "full": 5}
"""Rounds of each preset. They share the preset's time."""

AGREEMENT = 0.05
"""Rounds agree if none is further than this share of their median from it."""


def pool(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """One row a metric from those of each round; of a single round, its own rows.

    A pooled row's value, and the numbers of its ranks, are the medians over the rounds: with many
    samples from few processes, a median over all samples would say little about other processes.
    Its samples are those of all rounds, in order. A metric that a round could not measure has that
    round's outcome.

    Args:
        rounds: the rows of each round, at least one; the same metrics in the same order in each, but
            for rows of marked ranges (``bench.measure.regions``), which a round may lack.
    """
    if len(rounds) == 1:
        return list(rounds[0])
    metrics = _by_metric(rounds)
    pooled = [_pool_metric(rows) for rows in metrics]
    # The metrics of a case are one measurement, and the first is what it is about.
    first = next((rows for rows in metrics if all(row.status == "ok" for row in rows)), None)
    if first is not None:
        reason = block_agreement([float(row.value or 0.0) for row in first])
        for row in pooled:
            row.stop_reason = reason
    return pooled


def _by_metric(rounds: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows of each metric, in the order of its first; of the rounds that have it."""
    metrics: dict[tuple[str, str], list[Row]] = {}
    for rows in rounds:
        for row in rows:
            metrics.setdefault((row.metric, row.case), []).append(row)
    return list(metrics.values())


def is_skipped(rows: Sequence[Row]) -> bool:
    """Whether a round showed that this place is not meant for the case: further rounds would show no more."""
    return all(row.status == "skipped" for row in rows)


def _pool_metric(rows: Sequence[Row]) -> Row:
    """The row of a metric from that of each round."""
    worst = min(rows, key=lambda row: UNMEASURED_FIRST.index(row.status))
    if worst.status != "ok":
        return replace(worst, reason=f"{worst.reason} (round {1 + rows.index(worst)} of {len(rows)})")
    return replace(
        rows[0],
        value=_median(row.value for row in rows),
        n=sum(row.n for row in rows),
        samples=[sample for row in rows for sample in row.samples],
        rounds=[row.n for row in rows],
        rank_min=_median(row.rank_min for row in rows),
        rank_median=_median(row.rank_median for row in rows),
        rank_max=_median(row.rank_max for row in rows),
        slowest_rank=statistics.mode(row.slowest_rank for row in rows),
        entry_skew=_median(row.entry_skew for row in rows),
        warmup=sum(row.warmup for row in rows),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def block_agreement(values: Sequence[float]) -> StopReason:
    """Whether the rounds' values are as close to each other as is asked of a settled row."""
    center = statistics.median(values)
    agree = all(abs(value - center) <= AGREEMENT * abs(center) for value in values)
    return StopReason.ROUNDS_AGREE if agree else StopReason.ROUNDS_DIFFER
