"""Histories with known changes and the noise that real ones have, for proofs; the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import unknown_name
from bench.stats.proof_scenarios import ANNOTATED, HISTORY_SCENARIOS, STEPS, UNCHANGED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LAST_LOOK = 60
"""Points of a series without a change."""
STEP_AT, NEW_POINTS = 40, 30
ANNOTATED_POINTS = 120
LEAST_DISTANCE = 12
"""Points between two annotated changes, and between them and the ends."""

SPIKES = 0.04
"""Share of points that are slower by a tenth to a half, each by itself."""
DRIFT = 0.05
"""Rise from the first to the last point of a drifting series."""
NOISY_FACTOR, NOISY_POINTS = 3.0, 12
"""Every other stretch of so many points has so many times the noise."""
MODE_SHARE, MODE_EFFECT = 0.2, 0.08
"""Share of points in the slower of two modes, and how much slower that is."""
AUTOCORRELATION = 0.4
"""Of neighbouring points."""
MISSING, MISSING_IN_A_ROW = 0.1, 6
"""Share of single points that are missing, and the length of one longer gap."""
UNSURE, UNSURE_FACTOR = 0.2, 4.0
"""Share of points with so many times the error of the others, which is known."""


@dataclass(frozen=True)
class Histories:
    """Series with their annotations.

    Attributes:
        values: shape (series, points); NaN where nothing was measured.
        changes: for each series the first points of new levels.
        errors: standard error of each value, or None.
    """

    values: Array
    changes: list[list[int]]
    errors: Array | None = None


def make_histories(scenario: str, effect: float, cv: float, seed: int, series: int) -> Histories:
    """The series of a scenario, around 100, with lognormal noise.

    Args:
        scenario: of ``HISTORY_SCENARIOS``.
        effect: size of the steps, 0.05 for 5 %.
        cv: standard deviation of the noise over its mean.
        seed: of everything that is random.
        series: how many.

    Raises:
        UsageError: no such scenario.
    """
    if scenario not in HISTORY_SCENARIOS:
        raise unknown_name("scenario", scenario, list(HISTORY_SCENARIOS))
    rng = np.random.default_rng([seed, *scenario.encode()])
    kind = scenario.partition("_")[2] if scenario in (*STEPS, *ANNOTATED) else scenario
    points = LAST_LOOK if scenario in UNCHANGED else STEP_AT + NEW_POINTS if scenario in STEPS else ANNOTATED_POINTS
    changes, level = _levels(scenario, effect, rng, (series, points))
    sigma = math.sqrt(math.log1p(cv * cv))
    factors, noise, errors = _noise(kind, sigma, rng, (series, points))
    values = 100 * np.exp(level + noise) * factors
    if kind in ("gaps", "messy"):
        values[_missing(rng, (series, points))] = np.nan
        changes = [_measured(places, one) for places, one in zip(changes, values, strict=True)]
    return Histories(values, changes, None if errors is None else values * errors)


def _levels(
    scenario: str, effect: float, rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[list[list[int]], Array]:
    """Where each series changes, and the logarithm of its level at each point."""
    series, points = shape
    level = np.zeros(shape)
    if scenario in STEPS:
        level[:, STEP_AT:] = math.log1p(effect)
        return [[STEP_AT] for _ in range(series)], level
    if scenario in UNCHANGED:
        return [[] for _ in range(series)], level
    changes = [_places(rng, points) for _ in range(series)]
    for number, places in enumerate(changes):
        for place in places:
            level[number, place:] += math.log1p(effect * rng.uniform(0.5, 2)) * rng.choice((-1, 1))
    return changes, level


def _places(rng: np.random.Generator, points: int) -> list[int]:
    """One to four places at least ``LEAST_DISTANCE`` apart and from the ends."""
    count = int(rng.integers(1, 5))
    free = points - (count + 1) * LEAST_DISTANCE
    cuts = np.sort(rng.integers(0, free + 1, count))
    return [int(cut) + (number + 1) * LEAST_DISTANCE for number, cut in enumerate(cuts)]


def _noise(
    kind: str, sigma: float, rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[Array, Array, Array | None]:
    """Factors that disturb the level, noise as logarithms, and the relative error of each point where it is known."""
    factors, noise = np.ones(shape), sigma * rng.standard_normal(shape)
    place = np.arange(shape[1])
    errors = None
    if kind in ("spikes", "messy"):
        factors = np.where(rng.random(shape) < SPIKES, 1 + rng.uniform(0.1, 0.5, shape), 1.0)
    if kind in ("heteroscedastic", "messy"):
        noise = noise * np.where(place // NOISY_POINTS % 2 == 1, NOISY_FACTOR, 1.0)
    if kind == "drift":
        factors = factors * (1 + DRIFT * place / (shape[1] - 1))
    elif kind == "bimodal":
        factors = np.where(rng.random(shape) < MODE_SHARE, 1 + MODE_EFFECT, 1.0)
    elif kind == "autocorrelated":
        for number in range(1, shape[1]):
            fresh = math.sqrt(1 - AUTOCORRELATION**2) * noise[:, number]
            noise[:, number] = AUTOCORRELATION * noise[:, number - 1] + fresh
    elif kind == "unequal":
        unsure = np.where(rng.random(shape) < UNSURE, UNSURE_FACTOR, 1.0)
        noise, errors = noise * unsure, sigma * unsure
    return factors, noise, errors


def _measured(places: list[int], values: Array) -> list[int]:
    """Changes at the first measured point of their levels: nobody could know better."""
    measured = np.flatnonzero(np.isfinite(values))
    later = [int(measured[number]) for number in np.searchsorted(measured, places) if number < len(measured)]
    return list(dict.fromkeys(later))


def _missing(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which points are missing: single ones, and one longer gap a series."""
    missing = rng.random(shape) < MISSING
    begin = rng.integers(0, shape[1] - MISSING_IN_A_ROW, shape[0])[:, None]
    place = np.arange(shape[1])
    return missing | ((place >= begin) & (place < begin + MISSING_IN_A_ROW))
