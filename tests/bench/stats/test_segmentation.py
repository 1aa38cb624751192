"""Candidates for change points: the cuts are the best of all cuts, and outliers are bounded while steps stay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.stats.segmentation import (
    BOUND,
    LEAST_INNER,
    LEAST_LAST,
    PENALTY,
    bound_outliers,
    candidate_splits,
)


def cost_of(values: np.ndarray, splits: tuple[int, ...]) -> float:
    edges = [0, *splits, len(values)]
    pieces = [values[begin:end] for begin, end in itertools.pairwise(edges)]
    return float(sum(((piece - piece.mean()) ** 2).sum() for piece in pieces) + PENALTY * len(splits))


def allowed(splits: tuple[int, ...], points: int) -> bool:
    lengths = np.diff([0, *splits, points])
    return bool((lengths[:-1] >= LEAST_INNER).all() and lengths[-1] >= LEAST_LAST)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-8, 8), min_size=12, max_size=22))
def test_no_other_cuts_are_better(values: list[float]) -> None:
    x = np.array(values)
    (found,) = candidate_splits(x[None], np.ones((1, len(x))), np.ones(1))
    assert allowed(tuple(found), len(x))
    others = [
        splits
        for count in range(3)
        for splits in itertools.combinations(range(1, len(x)), count)
        if allowed(splits, len(x))
    ]
    assert cost_of(x, tuple(found)) <= min(cost_of(x, splits) for splits in others) + 1e-6


def test_series_are_cut_apart_from_each_other() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2100, 40))
    x[::2, 25:] += 6
    together = candidate_splits(x, np.ones_like(x), np.ones(len(x)))
    assert together[7] == candidate_splits(x[7:8], np.ones((1, 40)), np.ones(1))[0]
    assert sum(splits == [25] for splits in together[::2]) > 0.95 * len(x) / 2


def test_a_point_without_weight_cuts_nothing() -> None:
    x, w = np.zeros((1, 30)), np.ones((1, 30))
    x[0, 12:18] = 50.0
    assert candidate_splits(x, w, np.ones(1)) == [[12, 18]]
    w[0, 12:18] = 1e-9
    assert candidate_splits(x, w, np.ones(1)) == [[]]


def test_spikes_are_bounded_and_steps_stay() -> None:
    rng = np.random.default_rng(1)
    x = 0.02 * rng.standard_normal((1, 60))
    x[0, 30:] += 1.0
    spiked = x.copy()
    spiked[0, [10, 45]] += 5.0
    bounded, scale = bound_outliers(spiked)
    assert scale[0] == pytest.approx(0.02, rel=0.4)
    assert abs(bounded[0, 10]) < 0.02 * (BOUND + 3)
    assert bounded[0, 30:].min() > 0.9
    assert bounded[0, :30].max() < 0.1


def test_the_scale_is_that_of_the_noise() -> None:
    x = 3.0 * np.random.default_rng(2).standard_normal((400, 60))
    assert np.median(bound_outliers(x)[1]) == pytest.approx(3.0, rel=0.05)


def test_equal_points_have_a_scale_above_zero() -> None:
    bounded, scale = bound_outliers(np.ones((1, 20)))
    assert (bounded == 1).all()
    assert scale[0] > 0
