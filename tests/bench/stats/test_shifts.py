"""Shifts and their intervals: equal to brute force, and as often right as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.stats.rank_tests import mann_whitney, signed_rank
from bench.stats.shifts import MOST_POINTS, one_sample_shift, two_sample_shift

NONE = np.ones(1)
VALUES = st.floats(-100, 100, allow_nan=False, width=32)


@settings(deadline=None)
@given(arrays(np.float64, (1, 7), elements=VALUES), arrays(np.float64, (1, 9), elements=VALUES))
def test_the_shift_is_the_median_difference_and_within_its_interval(x: np.ndarray, y: np.ndarray) -> None:
    shift, low, high = two_sample_shift(x, y, 0.95, NONE)
    assert shift[0] == np.median(y[0][None, :] - x[0][:, None])
    assert low[0] <= shift[0] <= high[0]
    back, back_low, back_high = two_sample_shift(y, x, 0.95, NONE)
    assert (back[0], back_low[0], back_high[0]) == (-shift[0], -high[0], -low[0])


def test_the_interval_holds_what_the_test_does_not_reject() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(50, 8)), random.normal(size=(50, 10)) + 1
    _, low, high = two_sample_shift(x, y, 0.95, np.ones(50))
    for end, step in ((low, 1e-9), (high, -1e-9)):
        inside, outside = y - (end + step)[:, None], y - (end - step)[:, None]
        assert (mann_whitney(x, inside) > 0.05).all()
        assert (mann_whitney(x, outside) <= 0.05).all()


def test_so_does_that_of_pairs() -> None:
    differences = np.random.default_rng(1).normal(size=(50, 9)) + 0.5
    shift, low, high = one_sample_shift(differences, 0.95)
    assert ((low < shift) & (shift < high)).all()
    for end, step in ((low, 1e-9), (high, -1e-9)):
        assert (signed_rank(differences - (end + step)[:, None]) > 0.05).all()
        assert (signed_rank(differences - (end - step)[:, None]) <= 0.05).all()


@pytest.mark.parametrize(("n", "bounded"), [(1, False), (2, False), (3, False), (4, True), (6, True)])
def test_too_few_samples_have_no_interval(n: int, bounded: bool) -> None:
    x = np.random.default_rng(n).normal(size=(1, n))
    _, low, high = two_sample_shift(x, x + 1, 0.95, NONE)
    assert bool(np.isfinite([low[0], high[0]]).all()) is bounded


@pytest.mark.parametrize("n", [5, 15, 60, 300])
def test_the_interval_is_right_as_often_as_it_says(n: int) -> None:
    random = np.random.default_rng(n)
    cases = 800
    x, y = random.lognormal(0, 0.02, (cases, n)), random.lognormal(0.03, 0.02, (cases, n))
    shift, low, high = two_sample_shift(np.log(x), np.log(y), 0.95, np.ones(cases))
    covered = ((low <= 0.03) & (high >= 0.03)).mean()
    assert 0.93 <= covered <= 0.995
    assert abs(np.median(shift) - 0.03) < 0.003


def test_dependent_samples_have_a_wider_interval() -> None:
    random = np.random.default_rng(4)
    x, y = np.repeat(random.normal(size=(2, 1, 40)), 2, axis=1)
    _, low, high = two_sample_shift(x, y, 0.95, np.array([1.0, 2.0]))
    assert high[1] - low[1] > 1.7 * (high[0] - low[0])


def test_many_samples_are_thinned_to_nearly_the_same() -> None:
    random = np.random.default_rng(5)
    x, y = random.normal(size=(1, 3 * MOST_POINTS)), random.normal(size=(1, 3 * MOST_POINTS)) + 0.2
    shift, _, _ = two_sample_shift(x, y, 0.95, NONE)
    assert shift[0] == pytest.approx(np.median(y[0][None, :] - x[0][:, None]), abs=0.01)
    centre, low, high = one_sample_shift(y - x, 0.95)
    assert low[0] < centre[0] < high[0]
