"""How much more than the mean the busiest expert-parallel rank gets: from a placement, or under Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUADRATURE_POINTS = 480
"""Points of the integral below. The integrand is smooth over the logarithm, so the sum converges fast."""


def inclusion_probabilities(weights: Floats, top_k: int) -> Floats:
    """How likely each expert is among the ``top_k`` of a token, shape of ``weights``; they add up to ``top_k``.

    The experts of a token are drawn one after the other, each in proportion to the weights of those
    not drawn yet (Plackett-Luce). With independent exponential arrival times of these rates, the
    chosen are the first ``top_k`` to arrive; the probability is an integral over the arrival time
    of the expert, of the chance that fewer than ``top_k`` others came earlier. Nothing is sampled.

    Args:
        weights: positive, one an expert, in any unit.
        top_k: experts a token, from 1 to all.

    Raises:
        ValueError: a weight that is not positive and finite, or ``top_k`` out of range.
    """
    rates = np.asarray(weights, dtype=np.float64)
    if rates.ndim != 1 or not (np.isfinite(rates).all() and (rates > 0).all()):
        raise ValueError("weights of experts must be positive finite numbers, one an expert")
    if not 1 <= top_k <= len(rates):
        raise ValueError(f"top_k must be 1 to {len(rates)} (the experts), not {top_k}")
    if top_k == len(rates):
        return np.ones_like(rates)
    rates = rates / rates.sum()
    if top_k == 1:
        return np.asarray(rates)
    log_times = np.linspace(np.log(1e-9), np.log(60.0 / rates.min()), QUADRATURE_POINTS)
    times = np.exp(log_times)
    # Of each expert, at each time: it has arrived, or not yet.
    missing = np.exp(-rates[:, None] * times)
    arrived = -np.expm1(-rates[:, None] * times)
    before = _counts_of_prefixes(arrived, missing, top_k)
    after = _counts_of_prefixes(arrived[::-1], missing[::-1], top_k)[::-1]
    # Fewer than top_k of the others: i of those before, at most top_k - 1 - i of those after.
    at_most = np.cumsum(after, axis=1)[:, ::-1]
    fewer = (before[:-1] * at_most[1:]).sum(axis=1)
    step = log_times[1] - log_times[0]
    probabilities = (rates[:, None] * times * missing * fewer).sum(axis=1) * step
    # The sum is known, so what the quadrature lost is given back.
    return np.asarray(np.minimum(probabilities * (top_k / probabilities.sum()), 1.0))


def _counts_of_prefixes(arrived: Floats, missing: Floats, most: int) -> Floats:
    """Chance that exactly 0, ..., most-1 of the first n arrived: shape ``(experts + 1, most, times)``."""
    experts, times = arrived.shape
    counts = np.zeros((experts + 1, most, times))
    counts[0, 0] = 1.0
    for n in range(experts):
        counts[n + 1] = counts[n] * missing[n]
        counts[n + 1, 1:] += counts[n, :-1] * arrived[n]
    return counts


def zipf_weights(experts: int, exponent: float) -> Floats:
    """Popularity of experts under Zipf's law, the most popular first: ``1 / rank ** exponent``.

    Raises:
        ValueError: an exponent that is negative or not finite.
    """
    if not 0.0 <= exponent < 50.0:
        raise ValueError(f"a Zipf exponent is from 0 (balanced) to 50, not {exponent:g}")
    return np.asarray(np.arange(1, experts + 1, dtype=np.float64) ** -exponent)


def most_factor(experts: int, top_k: int, expert_parallel: NDArray[np.int64]) -> Floats:
    """The largest load of a rank over the mean that any routing can give, for each EP; shape of ``expert_parallel``.

    A rank holds at most ``ceil(E/EP)`` experts, and a token goes to an expert once, so it gets at most
    ``min(top_k, ceil(E/EP))`` of a token's ``top_k`` choices; the mean is ``top_k / EP``.
    """
    parallel = np.asarray(expert_parallel, dtype=np.int64)
    return np.asarray(np.minimum(-(-experts // parallel), top_k) * parallel / top_k)


@dataclass(frozen=True)
class Routing:
    """How tokens spread over experts: all that the planner needs to know the busiest rank's load.

    Attributes:
        load_factor: load of the busiest rank over the mean, as the user states it; 1 for balanced routing.
            It holds for every EP above 1, but is never above ``most_factor`` of that EP.
        zipf: exponent of Zipf's law, with which the factor follows for each EP; 0 for balanced.

    Raises:
        ValueError: both are given, or one is out of range.
    """

    load_factor: float = 1.0
    zipf: float = 0.0

    def __post_init__(self) -> None:
        if not np.isfinite(self.load_factor):
            raise ValueError(f"a load factor must be a finite number, not {self.load_factor:g}")
        if self.load_factor < 1.0:
            raise ValueError(
                f"a load factor is the busiest rank's load over the mean, so 1 or more, not {self.load_factor:g}"
            )
        zipf_weights(1, self.zipf)
        if self.zipf and self.load_factor != 1.0:
            raise ValueError("a load factor and a Zipf exponent say the same; give one of them")

    def factors(self, experts: int, top_k: int, expert_parallel: NDArray[np.int64]) -> Floats:
        """Load of the busiest rank over the mean, for each EP; shape of ``expert_parallel``.

        The ranks hold consecutive experts, ``ceil(E/EP)`` or ``floor(E/EP)`` of them. Under Zipf's
        law experts are numbered by popularity, so that the first rank holds the most popular ones:
        no placement has a higher expectation. The value is the exact expectation over tokens; it
        does not hold how one batch differs from another. It is never above what ``ceil(E/EP)``
        experts of one rank can get: a token goes to an expert once.
        """
        parallel = np.asarray(expert_parallel, dtype=np.int64)
        held = -(-experts // parallel)
        if self.zipf:
            loads = np.concatenate([[0.0], np.cumsum(_zipf_loads(experts, top_k, self.zipf))])
            # The sum of all is the mean itself, up to rounding.
            return np.asarray(np.where(parallel == 1, 1.0, np.maximum(loads[held] * parallel / top_k, 1.0)))
        even = held * parallel / experts
        most = most_factor(experts, top_k, parallel)
        return np.asarray(np.where(parallel == 1, 1.0, np.maximum(even, np.minimum(self.load_factor * even, most))))

    def dealt_factor(self, experts: int, top_k: int, ranks: int) -> float:
        """The busiest rank's factor if popular experts are dealt out one to each rank in turn, for comparison."""
        if not self.zipf:
            return float(self.factors(experts, top_k, np.array([ranks]))[0])
        return float(_zipf_loads(experts, top_k, self.zipf)[::ranks].sum() * ranks / top_k)

    def __str__(self) -> str:
        if self.zipf:
            return f"Zipf {self.zipf:g}, the most popular experts on one rank"
        return "balanced" if self.load_factor == 1.0 else f"busiest rank {self.load_factor:g} x the mean"


def _zipf_loads(experts: int, top_k: int, exponent: float) -> Floats:
    """Copies of a token that each expert expects, the most popular first."""
    key = (experts, top_k, exponent)
    if key not in _ZIPF_LOADS:
        _ZIPF_LOADS[key] = inclusion_probabilities(zipf_weights(experts, exponent), top_k)
    return _ZIPF_LOADS[key]


_ZIPF_LOADS: dict[tuple[int, int, float], Floats] = {}
