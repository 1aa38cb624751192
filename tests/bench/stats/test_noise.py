"""Noise: the floor holds what it says, and each kind of noise is told apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.errors import UsageError
from bench.stats.noise import measure_noise, two_modes
from bench.stats.pairs import Samples

if TYPE_CHECKING:
    from collections.abc import Callable

    Series = Callable[[np.random.Generator, int], np.ndarray]


def plain(random: np.random.Generator, run: int) -> np.ndarray:
    return 0.02 * random.normal(size=40)


def drifting(random: np.random.Generator, run: int) -> np.ndarray:
    return 0.02 * random.normal(size=40) + np.linspace(0, 0.1, 40)


def ageing(random: np.random.Generator, run: int) -> np.ndarray:
    return 0.02 * random.normal(size=40) + 0.02 * run


def autocorrelated(random: np.random.Generator, run: int) -> np.ndarray:
    series = random.normal(size=40)
    for t in range(1, 40):
        series[t] = 0.6 * series[t - 1] + 0.8 * series[t]
    return 0.02 * series


def bimodal(random: np.random.Generator, run: int) -> np.ndarray:
    return 0.01 * random.normal(size=40) + 0.1 * (random.random(40) < 0.4)


def shifted(random: np.random.Generator, run: int) -> np.ndarray:
    return 0.02 * random.normal(size=40) + 0.03 * random.normal()


def runs(series: Series, count: int = 8, seed: int = 0) -> list[Samples]:
    random = np.random.default_rng(seed)
    return [Samples(100 * np.exp(series(random, run)), unit="us") for run in range(count)]


@pytest.mark.parametrize(
    ("series", "finding"),
    [
        (drifting, "drift_within"),
        (ageing, "drift_between"),
        (autocorrelated, "autocorrelated"),
        (bimodal, "bimodal"),
        (shifted, "runs_differ"),
    ],
)
def test_each_kind_of_noise_is_found(series: Series, finding: str) -> None:
    found = sum(finding in measure_noise(runs(series, seed=seed)).findings for seed in range(20))
    assert found >= 18


def test_plain_noise_is_plain() -> None:
    findings = [finding for seed in range(100) for finding in measure_noise(runs(plain, seed=seed)).findings]
    assert len(findings) <= 5, findings


def test_its_numbers_are_those_of_the_samples() -> None:
    noise = measure_noise(runs(plain, 50))
    assert noise.within == pytest.approx(0.02, rel=0.1)
    assert noise.between == pytest.approx(1.2533 * 0.02 / math.sqrt(40), rel=0.25)
    assert noise.independent_share > 0.9
    assert (noise.measurements, noise.samples) == (50, 2000)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_one_comparison_in_twenty_exceeds_the_floor(count: int) -> None:
    exceeded = []
    for seed in range(250):
        measured = runs(shifted, count + 2, seed)
        floor = measure_noise(measured[:count]).floor
        one, other = (float(np.median(np.log(run.values))) for run in measured[count:])
        exceeded.append(abs(other - one) > floor)
    assert 0.02 <= np.mean(exceeded) <= 0.09


def test_few_measurements_are_noted() -> None:
    assert "few_measurements" in measure_noise(runs(plain, 3)).findings


def test_rounds_count_as_blocks() -> None:
    random = np.random.default_rng(3)
    measured = [Samples.from_blocks([100 * np.exp(plain(random, 0)) for _ in range(3)], "us") for _ in range(5)]
    noise = measure_noise(measured)
    assert (noise.measurements, noise.samples) == (5, 600)


@pytest.mark.parametrize("value", [5.0, 0.0, -3.0])
def test_constants_have_no_noise(value: float) -> None:
    noise = measure_noise([Samples(np.full(20, value))] * 5)
    assert (noise.floor, noise.within, noise.correlation, noise.findings) == (0.0, 0.0, 0.0, ())


def test_single_samples_are_enough_for_a_floor() -> None:
    noise = measure_noise([Samples(np.array([value])) for value in (100.0, 101.0, 99.0, 100.5, 99.5)])
    assert 0.01 < noise.floor < 0.05


@pytest.mark.parametrize(
    ("measurements", "match"),
    [
        ([], "at least two"),
        ([Samples(np.ones(3))], "at least two"),
        ([Samples(np.ones(3)), Samples(np.array([]))], "without samples"),
        ([Samples(np.ones(3)), Samples(np.array([math.nan]))], "finite"),
        ([Samples(np.ones(3), unit="us"), Samples(np.ones(3), unit="ns")], "units"),
        ([Samples(np.array([-1.0, 0.0, 1.0]))] * 2, "median is 0"),
    ],
)
def test_what_says_nothing_of_noise_is_refused(measurements: list[Samples], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        measure_noise(measurements)


@pytest.mark.parametrize("n", [12, 20, 60, 300])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "uniform"])
def test_one_heap_is_rarely_taken_for_two(n: int, shape: str) -> None:
    random = np.random.default_rng(n)
    heaps = {
        "normal": random.normal(size=(400, n)),
        "lognormal": random.lognormal(0, 0.3, (400, n)),
        "uniform": random.random((400, n)),
    }[shape]
    assert np.mean([two_modes(heap).are_two for heap in heaps]) <= 0.05


def test_two_heaps_are_two() -> None:
    random = np.random.default_rng(1)
    modes = two_modes(np.concatenate([random.normal(0, 1, 60), random.normal(6, 1, 40)]))
    assert modes.are_two
    assert modes.gap == pytest.approx(6, abs=0.5)
    assert modes.high_share == pytest.approx(0.4, abs=0.03)


def test_an_outlier_is_no_mode() -> None:
    assert not two_modes(np.array([*np.random.default_rng(2).normal(size=40), 50.0])).are_two
