"""Tests of curves through measured points and of blends over shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.platforms.tables import RateCurve, SecondsCurve, blend_weights

SIZES = st.floats(1, 1e12)
SECONDS = st.floats(1e-9, 1e3)
POINTS = st.lists(st.tuples(SIZES, SECONDS), min_size=1, max_size=8)


def test_between_points_both_axes_are_logarithmic() -> None:
    curve = SecondsCurve.from_points([(1e2, 1e-3), (1e4, 1e-1)])
    assert curve.seconds_at([1e2, 1e3, 1e4]) == pytest.approx([1e-3, 1e-2, 1e-1])


def test_beyond_the_ends() -> None:
    points = [(10.0, 1.0), (20.0, 3.0)]
    assert SecondsCurve.from_points(points).seconds_at([5, 40]) == pytest.approx([1, 6])
    assert SecondsCurve.from_points(points, below="proportional").seconds_at([5, 40]) == pytest.approx([0.5, 6])
    assert RateCurve.from_points(points).rate_at([5, 40]) == pytest.approx([1, 3])


def test_a_faster_larger_size_is_noise() -> None:
    curve = SecondsCurve.from_points([(1, 4.0), (2, 3.0), (4, 5.0)])
    assert curve.seconds == pytest.approx([12**0.5, 12**0.5, 5])


def test_one_slow_point_among_sound_ones_counts_little() -> None:
    points = [(1, 1.0), (2, 8.0), (4, 1.0), (8, 1.0), (16, 2.0)]
    assert SecondsCurve.from_points(points).seconds == pytest.approx([1, 2, 2, 2, 2])


def test_of_equal_sizes_the_best_counts() -> None:
    assert SecondsCurve.from_points([(1, 4.0), (1, 3.0)]).seconds == pytest.approx([3])
    assert RateCurve.from_points([(1, 4.0), (1, 3.0)]).rates.tolist() == [4]


def test_covers_says_what_was_measured() -> None:
    curve = SecondsCurve.from_points([(2, 1.0), (8, 2.0)])
    assert curve.covers([1, 2, 5, 8, 9]).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)], [(1.0, 0.0)], [(1.0, float("nan"))], [(float("inf"), 1.0)]])
@pytest.mark.parametrize("curve", [SecondsCurve, RateCurve])
def test_impossible_points_are_refused(
    curve: type[SecondsCurve | RateCurve], points: list[tuple[float, float]]
) -> None:
    with pytest.raises(ValueError, match=r"above 0|at least one point"):
        curve.from_points(points)


@given(POINTS, st.lists(SIZES, min_size=2, max_size=5), st.sampled_from(["constant", "proportional"]))
def test_seconds_are_positive_and_never_fall(points: list[tuple[float, float]], sizes: list[float], below: str) -> None:
    curve = SecondsCurve.from_points(points, below=below)  # type: ignore[arg-type]
    seconds = curve.seconds_at(sorted(sizes))
    assert (seconds > 0).all()
    assert (np.diff(seconds) >= -1e-9 * seconds[1:]).all()


def test_a_measured_shape_counts_alone() -> None:
    assert blend_weights((4096, 128), [(2048, 128), (4096, 128), (4096, 64)]).tolist() == [0, 1, 0]


def test_nearer_shapes_count_more() -> None:
    weights = blend_weights((4096,), [(2048,), (1024,)])
    assert weights == pytest.approx([0.8, 0.2])


@given(st.floats(1, 1e6), st.lists(st.floats(1, 1e6), min_size=1, max_size=6))
def test_weights_add_up_to_one(target: float, known: list[float]) -> None:
    weights = blend_weights((target,), [(one,) for one in known])
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
