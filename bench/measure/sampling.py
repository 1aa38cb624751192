"""Sampling: warm-up, batches of timed iterations over all ranks, and the rule that ends them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.errors import UsageError
from bench.measure.clock import clock_offsets_ns, loop_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.measure.clock import Call
    from bench.measure.group import RankGroup
    from bench.suite import Preset

SECOND_NS = 1_000_000_000
BATCHES_IN_MIN_TIME = 4
STABLE_CHECKS = 4
STABLE_CHANGE = 0.05
STABLE_TARGET_FACTOR = 2
MEDIAN_Z = 1.96
MOST_TARGET = 0.99
LEAST_INDEPENDENT = 6
"""Of fewer samples, not even the least and the largest hold the median between them with 95 %."""


class StopReason(StrEnum):
    """Why sampling ended."""

    CONVERGED = "converged"
    NOISE_STABLE = "noise_stable"
    MAX_TIME = "max_time"
    MAX_SAMPLES = "max_samples"
    ROUNDS_AGREE = "rounds_agree"
    ROUNDS_DIFFER = "rounds_differ"

    @property
    def settled(self) -> bool:
        """False where time or samples ran out before the median was known well enough, or rounds differ."""
        return self in (StopReason.CONVERGED, StopReason.NOISE_STABLE, StopReason.ROUNDS_AGREE)


@dataclass(frozen=True)
class Sampling:
    """When to stop measuring a case.

    Attributes:
        min_time_ns, max_time_ns: least and most time in iterations after the warm-up, with what
            precedes each timed window (``prepare``, barrier); set-up and checks excluded.
        min_samples, max_samples: least and most number of iterations; one iteration that outlasts
            ``max_time_ns`` is enough.
        target: converged once the 95 % confidence interval of the median reaches no further than
            this share of the median to either side.
        warmup_time_ns, warmup_samples: untimed iterations before, at least both.
    """

    min_time_ns: int = SECOND_NS // 4
    max_time_ns: int = 2 * SECOND_NS
    min_samples: int = 10
    max_samples: int = 2000
    target: float = 0.01
    warmup_time_ns: int = SECOND_NS // 10
    warmup_samples: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.min_time_ns <= self.max_time_ns:
            raise UsageError("sampling needs 0 < min_time_ns <= max_time_ns")
        if not 1 <= self.min_samples <= self.max_samples:
            raise UsageError("sampling needs 1 <= min_samples <= max_samples")
        if not 0 < self.target < 1:
            raise UsageError("sampling needs a target between 0 and 1")
        if self.warmup_time_ns < 0 or self.warmup_samples < 1:
            raise UsageError("sampling needs a warm-up of at least one iteration")

    @classmethod
    def from_preset(cls, preset: Preset) -> Sampling:
        """The settings of a preset: quick trades certainty for time, full the other way."""
        return {
            "quick": cls(SECOND_NS // 5, 6 * SECOND_NS // 5, target=0.02, warmup_time_ns=SECOND_NS // 20),
            "standard": cls(SECOND_NS // 2, 8 * SECOND_NS, max_samples=10_000),
            "full": cls(SECOND_NS, 20 * SECOND_NS, max_samples=20_000, target=0.005, warmup_time_ns=SECOND_NS // 2),
        }[preset]

    def with_max_time(self, seconds: float) -> Sampling:
        """The same with another most time (and a least time no longer than it)."""
        max_time_ns = round(seconds * SECOND_NS)
        return replace(self, max_time_ns=max_time_ns, min_time_ns=min(self.min_time_ns, max_time_ns))

    def of_one_round(self, rounds: int) -> Sampling:
        """The settings of each of so many rounds that share the time, the samples and the certainty of one."""
        most = max(self.min_samples, self.max_samples // rounds)
        return replace(
            self,
            min_time_ns=max(1, self.min_time_ns // rounds),
            max_time_ns=max(1, self.max_time_ns // rounds),
            max_samples=most,
            target=min(self.target * math.sqrt(rounds), MOST_TARGET),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Timing:
    """What was sampled, the same on every rank.

    Attributes:
        seconds: duration of each iteration on each rank, shape ``(world, n)``.
        entry_ns: start of each iteration, on rank 0's clock, shape ``(world, n)``.
        warmup: iterations before the first sample.
        stop_reason: why sampling ended.
        baseline_seconds: duration of the baseline in each iteration on each rank, shape
            ``(world, n)``; None without a baseline.
    """

    seconds: NDArray[np.float64]
    entry_ns: NDArray[np.float64]
    warmup: int
    stop_reason: StopReason
    baseline_seconds: NDArray[np.float64] | None = None

    @property
    def slowest(self) -> NDArray[np.float64]:
        """Each iteration's duration: the slowest rank's, seconds, shape ``(n,)``."""
        return np.asarray(self.seconds.max(axis=0))

    @property
    def rank_medians(self) -> NDArray[np.float64]:
        """Each rank's own median duration, seconds, shape ``(world,)``."""
        return np.asarray(np.median(self.seconds, axis=1))

    @property
    def entry_skew_us(self) -> float:
        """Microseconds between the first and the last rank's start, median over iterations."""
        return float(np.median(self.entry_ns.max(axis=0) - self.entry_ns.min(axis=0)) / 1e3)


def median_half_width(samples: NDArray[np.float64]) -> float:
    """Half width of the median's 95 % confidence interval, as a share of the median.

    The interval is between order statistics, so it assumes no distribution. Samples of one run
    follow each other closely, which makes them worth fewer independent ones: their number is
    reduced by the lag-1 autocorrelation of their ranks, never raised. Infinite where fewer than
    ``LEAST_INDEPENDENT`` remain.
    """
    n = len(samples)
    independent = n / _inflation(samples) if n else 0.0
    median = float(np.median(samples)) if n else 0.0
    if independent < LEAST_INDEPENDENT or median <= 0:
        return math.inf
    ordered = np.sort(samples)
    # Binomial bounds on the median's rank, as shares of the sample, with the reduced count.
    share = MEDIAN_Z / (2 * math.sqrt(independent))
    low = ordered[max(0, math.floor(n * (0.5 - share)))]
    high = ordered[min(n - 1, math.ceil(n * (0.5 + share)))]
    return float(max(high - median, median - low) / median)


def _inflation(samples: NDArray[np.float64]) -> float:
    """How many samples are worth one independent one, from the lag-1 rank autocorrelation; >= 1, maybe infinite."""
    n = len(samples)
    # Equal samples share the mean of their ranks: a coarse clock makes many of them, and their order means nothing.
    _, which, counts = np.unique(samples, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which] - (n + 1) / 2
    variance = float(ranks @ ranks)
    if variance == 0:
        return 1.0
    correlation = float(ranks[:-1] @ ranks[1:]) / variance
    # The estimate from n samples is too small by (1 + 3 r) / n in the mean (Kendall 1954).
    correlation = max(0.0, correlation + (1 + 3 * correlation) / n)
    return (1 + correlation) / (1 - correlation) if correlation < 1 else math.inf


class StopRule:
    """Decides after each batch whether to go on; deterministic, so all ranks decide the same."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._noise: list[float] = []

    def decide(self, samples: NDArray[np.float64], elapsed_ns: float) -> StopReason | None:
        """The reason to stop now, or None.

        Args:
            samples: all durations so far, seconds, in order.
            elapsed_ns: time in iterations so far, with what precedes each timed window.
        """
        sampling, n = self._sampling, len(samples)
        half_width = median_half_width(samples)
        low, high = np.quantile(samples, (0.25, 0.75))
        self._noise.append(float(high - low) / max(float(np.median(samples)), 1e-12))
        out_of_time, out_of_samples = elapsed_ns >= sampling.max_time_ns, n >= sampling.max_samples
        if n >= sampling.min_samples and (elapsed_ns >= sampling.min_time_ns or out_of_samples):
            if half_width <= sampling.target:
                return StopReason.CONVERGED
            if half_width <= STABLE_TARGET_FACTOR * sampling.target and self._noise_is_stable():
                return StopReason.NOISE_STABLE
        if out_of_time:
            return StopReason.MAX_TIME
        return StopReason.MAX_SAMPLES if out_of_samples else None

    def _noise_is_stable(self) -> bool:
        """True once the last checks saw the same interquartile range: more samples will not lower it."""
        recent = self._noise[-STABLE_CHECKS:]
        return len(recent) == STABLE_CHECKS and max(recent) - min(recent) <= STABLE_CHANGE * max(max(recent), 1e-12)


def sample(
    run: Call,
    prepare: Call,
    sampling: Sampling,
    group: RankGroup,
    device: str = "cpu",
    baseline: Call | None = None,
) -> Timing:
    """Warm up and time ``run`` on all ranks of ``group`` together (collective).

    Each iteration is: ``prepare``, a barrier, then the timed ``run``; with a baseline, the same
    again for it, and the two take turns at going first. After each batch the ranks exchange their
    durations, so that all of them see the slowest rank's and stop together; the baseline's have no say.
    """
    loop = loop_for(device)
    offsets = clock_offsets_ns(group)[:, np.newaxis]

    def batch(first: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Iterations ``first`` to ``first + n``.

        Returns:
            durations of run (and the baseline), s, shape ``(1 or 2, world, n)``; entries of run on
            rank 0's clock, ns, shape ``(world, n)``; and the batch's own time, ns.
        """
        places = _places(first, n) if baseline else np.arange(n)[np.newaxis]
        calls = [baseline or run] * places.size
        for place in places[0]:
            calls[place] = run
        entries, durations = loop(calls, prepare, group.barrier)
        everyone = group.gather(np.array([entries, durations], dtype=np.float64))
        starts, lengths = everyone[:, 0] - offsets, everyone[:, 1]
        spent = float((starts + lengths).max() - starts.min())
        by_call = np.stack([lengths[:, place] for place in places]) / SECOND_NS
        return by_call, starts[:, places[0]], spent

    warmup, spent, iteration_ns = 0, 0.0, 1.0
    while warmup < sampling.warmup_samples or spent < sampling.warmup_time_ns:
        count = 1 if warmup == 0 else max(1, min(warmup, int((sampling.warmup_time_ns - spent) / iteration_ns)))
        _, _, batch_ns = batch(warmup, count)
        warmup, spent, iteration_ns = warmup + count, spent + batch_ns, max(1.0, batch_ns / count)
        if spent >= sampling.max_time_ns:
            break

    rule, reason, elapsed = StopRule(sampling), None, 0.0
    seconds, entries = np.empty((2 if baseline else 1, group.world, 0)), np.empty((group.world, 0))
    while reason is None:
        n = seconds.shape[-1]
        wanted = int(sampling.min_time_ns / BATCHES_IN_MIN_TIME / iteration_ns)
        left = int((sampling.max_time_ns - elapsed) / iteration_ns) + 1
        count = max(1, min(wanted, left, sampling.max_samples - n))
        by_call, starts, batch_ns = batch(n, count)
        seconds, entries = np.concatenate([seconds, by_call], axis=-1), np.hstack([entries, starts])
        elapsed += batch_ns
        iteration_ns = max(1.0, elapsed / (n + count))
        reason = rule.decide(seconds[0].max(axis=0), elapsed)
    return Timing(seconds[0], entries, warmup, reason, seconds[1] if baseline else None)


def _places(first: int, n: int) -> NDArray[np.int64]:
    """Where run and the baseline stand among the calls of iterations ``first`` to ``first + n``; shape ``(2, n)``.

    Run goes first in even iterations, the baseline in odd ones.
    """
    iterations = np.arange(n)
    run_at = 2 * iterations + (first + iterations) % 2
    return np.stack([run_at, run_at ^ 1])
