"""A drift against steps: a line that explains as much is a drift, and a step that explains more is none."""

from __future__ import annotations

import numpy as np
import pytest

from bench.stats.drift import is_drift, line_through


def judged(x: np.ndarray, *splits: int, spare: int = 1) -> bool:
    residual = np.concatenate([piece - piece.mean() for piece in np.split(x, splits)])
    return is_drift(x, np.ones(len(x)), residual, spare)


@pytest.mark.parametrize("way", [1, -1])
def test_a_ramp_is_a_drift_and_a_step_is_none(way: int) -> None:
    noise = np.random.default_rng(0).standard_normal(60)
    assert judged(way * 0.15 * np.arange(60) + noise, 30)
    step = np.concatenate([np.zeros(30), np.full(30, 4.0)])
    assert not judged(way * step + noise, 30)


def test_stairs_of_small_steps_are_a_drift_and_of_large_ones_are_none() -> None:
    noise = np.random.default_rng(2).standard_normal(90)
    ramp = 0.05 * np.arange(90) + noise
    assert judged(ramp, 30, 60, spare=3)
    stairs = np.repeat([0.0, 4.0, 8.0], 30) + noise
    assert not judged(stairs, 30, 60, spare=3)


def test_what_the_steps_have_more_has_to_explain_more() -> None:
    unclear = np.repeat([0.0, 1.0], 30) + 0.6 * np.random.default_rng(3).standard_normal(60)
    assert not judged(unclear, 30, spare=0)
    assert judged(unclear, 30, spare=20)


def test_slopes_against_the_step_are_no_drift() -> None:
    saw = np.concatenate([-0.1 * np.arange(30), 6 - 0.1 * np.arange(30)])
    assert not judged(saw + 0.3 * np.random.default_rng(1).standard_normal(60), 30)


def test_exact_values_are_judged_without_error() -> None:
    assert not judged(np.array([1.0] * 20 + [2.0] * 20), 20)
    assert judged(np.arange(40.0), 20)


def test_the_line_is_that_of_least_squares_and_knows_its_error() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal(25), rng.uniform(0.2, 1, 25)
    line = line_through(x, w)
    slope, level = np.polyfit(np.arange(25), x, 1, w=np.sqrt(w))
    assert (line.begin, line.end) == (pytest.approx(level), pytest.approx(level + 24 * slope))
    assert line.residual == pytest.approx(x - level - slope * np.arange(25))
    many = rng.standard_normal((4000, 25))
    ends = [(fit.end - fit.begin) ** 2 for fit in (line_through(each, np.ones(25)) for each in many)]
    assert np.mean(ends) == pytest.approx(line_through(x, np.ones(25)).leverage, rel=0.1)
