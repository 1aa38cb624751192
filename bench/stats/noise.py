"""Noise of a series: by how much measurements of the same code differ, and in which way they are noisy.

The floor is measured, not assumed: the same code, measured several times (A/A), and the effect that
a comparison of two such measurements exceeds once in twenty times. A change below it is nothing
that this machine can show with two such runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.errors import UsageError
from bench.stats.serial import LEAST_SERIES, lag_correlation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench.stats.pairs import Samples

    Array = NDArray[np.float64]

FLOOR_CONFIDENCE = 0.95
FEW_MEASUREMENTS = 5
"""Of fewer, the floor is mostly the doubt about it."""
LEAST_TREND_SAMPLES = 12
TREND_SHARE = 0.35
"""A run drifts if a straight line explains so much of its ranks' variance; mere correlation of neighbours does not."""
NOTED_CORRELATION = 0.2
LEAST_MODE_SAMPLES = 12
LEAST_MODE_SHARE = 0.1
MODE_SEPARATION = 4.0
"""Two modes lie so many standard deviations within a mode apart. The best split of one normal, lognormal or uniform
heap reaches less in 99 of 100 trials, with what ``_least_separation`` adds for few samples."""

Finding = Literal["drift_between", "drift_within", "autocorrelated", "bimodal", "runs_differ", "few_measurements"]


@dataclass(frozen=True)
class Modes:
    """The best split of values into a low and a high heap.

    Attributes:
        gap: between the heaps' means, on the values' scale.
        separation: the gap in standard deviations within a heap; infinite where heaps are points.
        high_share: share of the values in the high heap.
        are_two: whether one heap alone would hardly look so.
    """

    gap: float = 0.0
    separation: float = 0.0
    high_share: float = 0.0
    are_two: bool = False


@dataclass(frozen=True)
class Noise:
    """How noisy a series is. All amounts are relative to its median (0.02 is 2 %).

    Attributes:
        floor: what the effect between two such measurements exceeds once in twenty times.
        between: standard deviation of the measurements' medians.
        within: standard deviation of samples about their measurement's median, by quartiles.
        correlation: between samples that follow each other in a measurement.
        independent_share: how many independent samples one is worth, from that.
        drift_between: change over all measurements in their order, by Theil and Sen's slope.
        drift_within: change from the first to the last third of a measurement, median of its size.
        modes: of all samples together; ``gap`` is relative.
        measurements, samples: how many there were.
        findings: what a reader should know, by code.
    """

    floor: float
    between: float
    within: float
    correlation: float
    independent_share: float
    drift_between: float
    drift_within: float
    modes: Modes
    measurements: int
    samples: int
    findings: tuple[Finding, ...]


def measure_noise(measurements: Sequence[Samples]) -> Noise:
    """The noise of a series from repeated measurements of the same code, in the order of time.

    Raises:
        UsageError: fewer than two measurements, no or non-finite samples, other units, or a median of zero.
    """
    scaled = _scaled(measurements)
    medians = np.array([np.median(_block_medians(values, sizes)) for values, sizes in scaled])
    runs = [values for values, _ in scaled]
    everything = np.concatenate(runs)
    residuals = np.concatenate([values - np.median(values) for values in runs])
    between = float(medians.std(ddof=1))
    within = float(np.subtract(*np.quantile(residuals, (0.75, 0.25)))) / 1.349
    blocks = [block for values, sizes in scaled for block in np.split(values, np.cumsum(sizes)[:-1])]
    correlation, correlated_samples = lag_correlation([block[None, :] for block in blocks])
    r = float(correlation[0])
    modes = two_modes(everything)
    drift_between, between_drifts = _drift_between(medians)
    drift_within, within_drifts = _drift_within(runs)
    findings: list[Finding] = []
    if between_drifts:
        findings.append("drift_between")
    if within_drifts:
        findings.append("drift_within")
    if r > max(NOTED_CORRELATION, 3 / math.sqrt(max(1, correlated_samples))):
        findings.append("autocorrelated")
    if modes.are_two:
        findings.append("bimodal")
    if _runs_differ(runs, r):
        findings.append("runs_differ")
    if len(runs) < FEW_MEASUREMENTS:
        findings.append("few_measurements")
    return Noise(
        floor=float(noise_floor(between, len(runs))),
        between=between,
        within=within,
        correlation=r,
        independent_share=(1 - r) / (1 + r),
        drift_between=drift_between,
        drift_within=drift_within,
        modes=modes,
        measurements=len(runs),
        samples=everything.size,
        findings=tuple(findings),
    )


def noise_floor(between: float | Array, measurements: int) -> float | Array:
    """The floor from the standard deviation of so many measurements' medians (of their logarithms).

    A new pair's difference has twice the variance of one measurement, and that is known from few.
    """
    from scipy.special import stdtrit

    return between * (math.sqrt(2) * float(stdtrit(measurements - 1, (1 + FLOOR_CONFIDENCE) / 2)))


def two_modes(values: Array) -> Modes:
    """The split of the values, shape ``(n,)``, into two heaps with the least variance within them."""
    n = values.size
    least = max(3, math.ceil(LEAST_MODE_SHARE * n))
    if n < LEAST_MODE_SAMPLES or 2 * least > n:
        return Modes()
    ordered = np.sort(values)
    ordered = ordered - ordered[n // 2]
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    low = np.arange(least, n - least + 1)
    low_mean, high_mean = sums[low - 1] / low, (sums[-1] - sums[low - 1]) / (n - low)
    rest = np.maximum(squares[-1] - low * low_mean**2 - (n - low) * high_mean**2, 0.0)
    best = int(rest.argmin())
    gap = float(high_mean[best] - low_mean[best])
    spread = math.sqrt(float(rest[best]) / (n - 2))
    separation = gap / spread if spread > 1e-12 * max(1.0, gap) else (math.inf if gap > 1e-12 else 0.0)
    return Modes(gap, separation, float(n - low[best]) / n, separation > _least_separation(n))


def _least_separation(n: int) -> float:
    return MODE_SEPARATION + 20 / n


def _scaled(measurements: Sequence[Samples]) -> list[tuple[Array, tuple[int, ...]]]:
    """Values and block sizes of each measurement, as logarithms, or relative where some are not positive."""
    if len(measurements) < 2:
        raise UsageError(f"noise needs at least two measurements of the same code, not {len(measurements)}")
    if len({measurement.unit for measurement in measurements}) != 1:
        raise UsageError("measurements in different units have no common noise")
    if not all(measurement.values.size for measurement in measurements):
        raise UsageError("a measurement without samples says nothing of noise; leave it out")
    everything = np.concatenate([measurement.values for measurement in measurements])
    if not np.isfinite(everything).all():
        raise UsageError("a sample is not a finite number; leave its measurement out")
    if everything.min() > 0:
        return [(np.log(measurement.values), measurement.block_sizes) for measurement in measurements]
    center = abs(float(np.median(everything)))
    if center == 0:
        if everything.any():
            raise UsageError("the median is 0, so nothing can be said relative to it")
        center = 1.0
    return [(measurement.values / center, measurement.block_sizes) for measurement in measurements]


def _block_medians(values: Array, sizes: tuple[int, ...]) -> Array:
    return np.array([np.median(block) for block in np.split(values, np.cumsum(sizes)[:-1])])


def _drift_between(medians: Array) -> tuple[float, bool]:
    """Change over all measurements, and whether chance would hardly order them so."""
    from scipy.stats import kendalltau

    n = medians.size
    i, j = np.triu_indices(n, 1)
    slope = float(np.median((medians[j] - medians[i]) / (j - i)))
    if n < FEW_MEASUREMENTS or np.ptp(medians) == 0:
        return slope * (n - 1), False
    return slope * (n - 1), bool(kendalltau(np.arange(n), medians).pvalue < 0.01)


def _drift_within(runs: Sequence[Array]) -> tuple[float, bool]:
    """Size of the change within a measurement, and whether most of them follow a straight line."""
    long = [values for values in runs if values.size >= LEAST_TREND_SAMPLES and np.ptp(values) > 0]
    if not long:
        return 0.0, False
    changes, shares = [], []
    for values in long:
        third = values.size // 3
        changes.append(abs(float(np.median(values[-third:]) - np.median(values[:third]))))
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        shares.append(float(np.corrcoef(ranks, np.arange(values.size))[0, 1]) ** 2)
    return float(np.median(changes)), bool(np.median(shares) > TREND_SHARE)


def _runs_differ(runs: Sequence[Array], correlation: float) -> bool:
    """Whether measurements differ by more than their own samples explain (Kruskal and Wallis)."""
    from scipy.special import chdtrc

    from bench.stats.rank_tests import midranks

    if min(values.size for values in runs) < LEAST_SERIES:
        return False
    ranks, _ = midranks(np.concatenate(runs)[None, :])
    n, variance = ranks.size, float(ranks.var(ddof=1))
    if variance == 0:
        return False
    parts = np.split(ranks[0], np.cumsum([values.size for values in runs])[:-1])
    h = sum(part.size * (float(part.mean()) - (n + 1) / 2) ** 2 for part in parts) / variance
    return bool(chdtrc(len(runs) - 1, h * (1 - correlation) / (1 + correlation)) < 0.001)
