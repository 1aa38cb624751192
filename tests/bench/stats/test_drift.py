"""A drift against a step: slopes on both sides make one, a step with flat sides is none."""

from __future__ import annotations

import numpy as np
import pytest

from bench.stats.drift import is_drift


def judged(x: np.ndarray, left: int, weights: np.ndarray | None = None) -> bool:
    residual = x.copy()
    residual[:left] -= x[:left].mean()
    residual[left:] -= x[left:].mean()
    return is_drift(x, np.ones(len(x)) if weights is None else weights, left, residual)


@pytest.mark.parametrize("way", [1, -1])
def test_a_ramp_is_a_drift_and_a_step_is_none(way: int) -> None:
    noise = np.random.default_rng(0).standard_normal(60)
    assert judged(way * 0.15 * np.arange(60) + noise, 30)
    step = np.concatenate([np.zeros(30), np.full(30, 4.0)])
    assert not judged(way * step + noise, 30)


def test_slopes_against_the_step_are_no_drift() -> None:
    saw = np.concatenate([-0.1 * np.arange(30), 6 - 0.1 * np.arange(30)])
    assert not judged(saw + 0.3 * np.random.default_rng(1).standard_normal(60), 30)


def test_exact_values_are_judged_without_error() -> None:
    assert not judged(np.array([1.0] * 20 + [2.0] * 20), 20)
    assert judged(np.arange(40.0), 20)
