"""What dependent samples are worth: independent ones are worth themselves, others less."""

from __future__ import annotations

import numpy as np
import pytest

from bench.stats.serial import LEAST_INDEPENDENT, inflation, lag_correlation


def autocorrelated(random: np.random.Generator, cases: int, n: int, correlation: float) -> np.ndarray:
    series = random.normal(size=(cases, n))
    for t in range(1, n):
        series[:, t] = correlation * series[:, t - 1] + np.sqrt(1 - correlation**2) * series[:, t]
    return series


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9])
def test_the_correlation_is_found(correlation: float) -> None:
    series = autocorrelated(np.random.default_rng(1), 300, 400, correlation)
    found, samples = lag_correlation([series])
    assert samples == 400
    assert abs(np.median(found) - correlation) < 0.05


def test_it_inflates_the_variance_by_what_the_mean_shows() -> None:
    random = np.random.default_rng(2)
    x, y = (autocorrelated(random, 400, 200, 0.6) for _ in range(2))
    found = inflation(x, y, (200,), (200,))
    true = x.mean(axis=1).var() * 200
    assert np.median(found.of_shift(200, 200)) == pytest.approx(true, rel=0.25)


def test_blocks_that_differ_count_by_their_number() -> None:
    random = np.random.default_rng(3)
    x, y = (random.normal(size=(200, 3, 20)) + 5 * random.normal(size=(200, 3, 1)) for _ in range(2))
    found = inflation(x.reshape(200, 60), y.reshape(200, 60), (20,) * 3, (20,) * 3)
    assert np.median(found.x) > 10
    assert set(found.degrees) == {2.0}


def test_few_samples_never_become_worth_less_than_six() -> None:
    drift = np.arange(30.0)[None, :]
    found = inflation(drift, drift, (30,), (30,))
    assert 30 / found.x[0] == pytest.approx(LEAST_INDEPENDENT)
    few = np.arange(6.0)[None, :]
    assert inflation(few, few, (6,), (6,)).x[0] == 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_constants_and_short_series_say_nothing(n: int) -> None:
    found = inflation(np.ones((1, n)), np.ones((1, n)), (n,), (n,))
    assert (found.x[0], found.y[0], found.correlation[0]) == (1.0, 1.0, 0.0)
