"""Rounds pooled into rows: medians over rounds, all samples kept, and no failure hidden."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.rounds import AGREEMENT, ROUNDS, is_skipped, pool
from bench.measure.sampling import Sampling, StopReason
from bench.store.row import Row
from bench.suite import PRESETS


def row(metric: str = "latency", **changes: Any) -> Row:
    values = {"value": 10.0, "n": 2, "samples": [9.0, 11.0], "slowest_rank": 0, "wrong": 0, "stop_reason": "converged"}
    numbers = {"rank_min": 8.0, "rank_median": 9.0, "rank_max": 10.0, "entry_skew": 1.0, "warmup": 3}
    return Row("", -1, "suite", 1, "case", {}, metric, "us", "lower", "latency/v1", **values | numbers | changes)


def failed(status: str, metric: str = "latency") -> Row:
    return row(metric, status=status, reason="why", value=None, n=0, samples=[])


def test_a_single_round_is_left_as_it_is() -> None:
    rows = [row(), row("algbw")]
    assert pool([rows]) == rows
    assert rows[0].rounds == []


def test_each_number_is_the_median_over_rounds_and_all_samples_are_kept() -> None:
    rounds = [
        [row(value=10.0, rank_max=10.0, slowest_rank=1, warmup=1)],
        [row(value=30.0, rank_max=40.0, slowest_rank=0, warmup=2, n=3, samples=[1.0, 2.0, 3.0])],
        [row(value=11.0, rank_max=12.0, slowest_rank=1, warmup=4)],
    ]
    (pooled,) = pool(rounds)
    assert (pooled.value, pooled.rank_max, pooled.slowest_rank, pooled.warmup) == (11.0, 12.0, 1, 7)
    assert pooled.samples == [9.0, 11.0, 1.0, 2.0, 3.0, 9.0, 11.0]
    assert (pooled.n, pooled.rounds) == (7, [2, 3, 2])
    pooled.validate()


@given(st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=9))
def test_rounds_agree_as_far_as_the_furthest_from_their_median(values: list[float]) -> None:
    (pooled,) = pool([[row(value=value)] for value in values])
    center = statistics.median(values)
    agree = max(abs(value - center) for value in values) <= AGREEMENT * center
    assert pooled.stop_reason == (StopReason.ROUNDS_AGREE if agree else StopReason.ROUNDS_DIFFER)


def test_the_first_metric_says_whether_a_case_settled() -> None:
    latencies, shares = (10.0, 10.1), (0.5, 0.9)
    rounds = [[row(value=a), row("share", value=b)] for a, b in zip(latencies, shares, strict=True)]
    assert [pooled.stop_reason for pooled in pool(rounds)] == [StopReason.ROUNDS_AGREE] * 2


@pytest.mark.parametrize("status", ["failed", "timeout", "invalid", "skipped"])
def test_what_one_round_could_not_measure_is_not_measured(status: str) -> None:
    (pooled,) = pool([[row()], [failed(status)], [row()]])
    assert (pooled.status, pooled.value, pooled.reason) == (status, None, "why (round 2 of 3)")


def test_a_metric_that_is_unknown_here_leaves_the_others() -> None:
    rounds = [[row(), failed("skipped", "share")], [row(), failed("skipped", "share")]]
    latency, share = pool(rounds)
    assert (latency.status, share.status) == ("ok", "skipped")
    assert not is_skipped(rounds[0])
    assert is_skipped([failed("skipped")])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("rounds", [1, 2, 7, 100])
def test_rounds_share_the_time_of_a_preset(preset: Any, rounds: int) -> None:
    whole = Sampling.from_preset(preset)
    part = whole.of_one_round(rounds)
    assert part.max_time_ns * rounds <= whole.max_time_ns
    assert part.max_samples * rounds <= max(whole.max_samples, rounds * whole.min_samples)
    assert ROUNDS[preset] % 2 == 1, "the median of an odd number of rounds is one of them, the same for all metrics"
    if rounds == 1:
        assert part == whole
