"""Comparison of pairs: which way is taken, what cannot be compared, and the numbers of each way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.stats.pairs import Pair, Samples, compare
from bench.store.row import Row

RANDOM = np.random.default_rng(5)


def noisy(n: int, center: float = 100.0) -> np.ndarray:
    return center * RANDOM.lognormal(0, 0.02, n)


def pair(one: Any, other: Any, blocks: tuple[int, ...] = (), **settings: Any) -> Pair:
    return Pair("case", Samples(one, blocks, "us"), Samples(other, blocks, "us"), **settings)


@pytest.mark.parametrize(
    ("n", "blocks", "interleaved", "way", "units"),
    [
        (30, (), False, "serial", 30),
        (30, (10, 10, 10), False, "serial", 30),
        (30, (5,) * 6, False, "units", 6),
        (30, (1,) * 30, False, "units", 30),
        (30, (5,) * 6, True, "units", 6),
    ],
)
def test_the_way_follows_from_the_blocks(n: int, blocks: Any, interleaved: bool, way: str, units: int) -> None:
    (found,) = compare([pair(noisy(n), noisy(n), blocks, interleaved=interleaved)])
    assert (found.way, found.units) == (way, units)
    assert found.samples_a_unit == (1 if way == "serial" else n // units)


def test_pairs_that_share_a_drift_are_compared_one_by_one() -> None:
    drift = np.linspace(1, 1.3, 20)
    baseline, candidate = noisy(20) * drift, 1.03 * noisy(20) * drift
    (paired,) = compare([pair(baseline, candidate, (1,) * 20, interleaved=True)])
    (plain,) = compare([pair(baseline, candidate, (1,) * 20)])
    assert (paired.way, plain.way) == ("paired", "units")
    assert paired.p_value < 0.01 < plain.p_value
    assert paired.low < math.log(1.03) < paired.high


def test_pairs_that_share_nothing_are_not_paired() -> None:
    found = compare([pair(noisy(20), noisy(20), (1,) * 20, interleaved=True) for _ in range(50)])
    assert sum(comparison.way == "units" for comparison in found) >= 45


def test_the_order_of_pairs_is_kept_whatever_their_shapes() -> None:
    shapes = [(10, ()), (30, (5,) * 6), (10, ()), (12, (1,) * 12), (30, (5,) * 6)]
    pairs = [pair(noisy(n), (1 + i) * noisy(n), blocks) for i, (n, blocks) in enumerate(shapes)]
    found = compare(pairs)
    for i, comparison in enumerate(found):
        assert comparison.relative(comparison.shift) == pytest.approx(i, abs=0.15)
        assert comparison == compare([pairs[i]])[0]


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        ([], [1.0], "no_samples"),
        ([1.0, math.nan], [1.0, 1.0], "not_finite"),
        ([1.0], [math.inf], "not_finite"),
        ([0.0] * 5, [1.0] * 5, "zero_baseline"),
        ([-1.0, 0.0, 1.0], [1.0] * 3, "zero_baseline"),
    ],
)
def test_what_cannot_be_compared_says_why(one: list[float], other: list[float], problem: str) -> None:
    (found,) = compare([pair(np.array(one), np.array(other))])
    assert (found.way, found.problem) == (None, problem)


def test_units_that_differ_are_refused() -> None:
    (found,) = compare([Pair("case", Samples(noisy(5), unit="us"), Samples(noisy(5), unit="ns"))])
    assert (found.way, found.problem) == (None, "units_differ")


def test_negative_values_are_compared_as_they_are() -> None:
    baseline = np.array([-2.0, -1.9, -2.1, -2.05, -1.95, -2.0])
    (found,) = compare([pair(baseline, baseline + 1)])
    assert not found.is_ratio
    assert found.relative(found.shift) == pytest.approx(0.5, abs=0.02)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=12),
    st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=12),
    st.floats(1e-6, 1e6),
)
def test_the_unit_does_not_matter(one: list[float], other: list[float], factor: float) -> None:
    (found,) = compare([pair(np.array(one), np.array(other))])
    (scaled,) = compare([pair(factor * np.array(one), factor * np.array(other))])
    assert scaled.shift == pytest.approx(found.shift, abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
def test_swapped_sides_give_the_opposite(one: list[float], other: list[float]) -> None:
    (there,), (back,) = compare([pair(np.array(one), np.array(other))]), compare([pair(np.array(other), np.array(one))])
    assert back.shift == pytest.approx(-there.shift, abs=1e-12)
    assert back.p_value == pytest.approx(there.p_value)


def test_blocks_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(UsageError, match="blocks of 4 samples in all, but there are 3"):
        Samples(np.ones(3), (2, 2))
    with pytest.raises(UsageError, match="list of numbers"):
        Samples(np.ones((2, 2)))


def row(unit: str = "us", samples: tuple[float, ...] = (1.0, 2.0), rounds: tuple[int, ...] = ()) -> Row:
    return Row("r", 0, "s", 1, "c", {}, "m", unit, "lower", "d", 1.5, len(samples), list(samples), rounds=list(rounds))


def test_samples_of_rows_keep_rounds_and_runs_apart() -> None:
    samples = Samples.from_rows([row(), row(samples=(3.0, 4.0, 5.0), rounds=(1, 2))])
    assert samples.values.tolist() == [1, 2, 3, 4, 5]
    assert samples.blocks == (2, 1, 2)
    assert samples.block_medians().tolist() == [1.5, 3.0, 4.5]
    with pytest.raises(UsageError, match="ns, us"):
        Samples.from_rows([row(), row("ns")])


def test_samples_of_blocks_leave_out_empty_ones() -> None:
    samples = Samples.from_blocks([[1.0, 2.0], [], [3.0]], "us")
    assert (samples.blocks, samples.unit) == ((2, 1), "us")
    assert Samples.from_blocks([]).block_sizes == ()
