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
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bench.measure.group import RankGroup
    from bench.suite import Preset

SECOND_NS = 1_000_000_000
BATCHES_IN_MIN_TIME = 4
STABLE_CHECKS = 4
STABLE_CHANGE = 0.05
STABLE_TARGET_FACTOR = 5
MEDIAN_Z = 1.96


class StopReason(StrEnum):
    """Why sampling ended."""

    CONVERGED = "converged"
    NOISE_STABLE = "noise_stable"
    MAX_TIME = "max_time"
    MAX_SAMPLES = "max_samples"

    @property
    def settled(self) -> bool:
        """False where time or samples ran out before the median was known well enough."""
        return self in (StopReason.CONVERGED, StopReason.NOISE_STABLE)


@dataclass(frozen=True)
class Sampling:
    """When to stop measuring a case.

    Attributes:
        min_time_ns, max_time_ns: least and most time in timed iterations, set-up excluded.
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
            "quick": cls(SECOND_NS // 5, 4 * SECOND_NS // 5, target=0.02, warmup_time_ns=SECOND_NS // 20),
            "standard": cls(SECOND_NS // 2, 4 * SECOND_NS),
            "full": cls(SECOND_NS, 15 * SECOND_NS, max_samples=10_000, target=0.005, warmup_time_ns=SECOND_NS // 2),
        }[preset]

    def with_max_time(self, seconds: float) -> Sampling:
        """The same with another most time (and a least time no longer than it)."""
        max_time_ns = round(seconds * SECOND_NS)
        return replace(self, max_time_ns=max_time_ns, min_time_ns=min(self.min_time_ns, max_time_ns))

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
    """

    seconds: NDArray[np.float64]
    entry_ns: NDArray[np.float64]
    warmup: int
    stop_reason: StopReason

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
    reduced by the lag-1 autocorrelation of the ranks, never raised. Infinite below 6 samples,
    where no pair of order statistics covers 95 %.
    """
    n = len(samples)
    if n < 6:
        return math.inf
    effective = max(6.0, n / _inflation(samples))
    ordered = np.sort(samples)
    median = float(np.median(ordered))
    if median <= 0:
        return math.inf
    # Binomial bounds on the median's rank, as shares of the sample, with the reduced count.
    share = MEDIAN_Z / (2 * math.sqrt(effective))
    low = ordered[max(0, math.floor(n * (0.5 - share)))]
    high = ordered[min(n - 1, math.ceil(n * (0.5 + share)))]
    return float(max(high - median, median - low) / median)


def _inflation(samples: NDArray[np.float64]) -> float:
    """How many samples are worth one independent one, from the lag-1 rank autocorrelation; >= 1."""
    ranks = np.argsort(np.argsort(samples, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    variance = float(ranks @ ranks)
    correlation = float(ranks[:-1] @ ranks[1:]) / variance if variance > 0 else 0.0
    correlation = min(max(correlation, 0.0), 0.95)
    return (1 + correlation) / (1 - correlation)


class StopRule:
    """Decides after each batch whether to go on; deterministic, so all ranks decide the same."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._noise: list[float] = []

    def decide(self, samples: NDArray[np.float64], elapsed_ns: float) -> StopReason | None:
        """The reason to stop now, or None.

        Args:
            samples: all durations so far, seconds, in order.
            elapsed_ns: time in iterations so far, barriers included.
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
    run: Callable[[], None],
    prepare: Callable[[], None],
    sampling: Sampling,
    group: RankGroup,
    device: str = "cpu",
) -> Timing:
    """Warm up and time ``run`` on all ranks of ``group`` together (collective).

    Each iteration is: ``prepare``, a barrier, then the timed ``run``. After each batch the ranks
    exchange their durations, so that all of them see the slowest rank's and stop together.
    """
    loop = loop_for(device)
    offsets = clock_offsets_ns(group)[:, np.newaxis] if group.world > 1 else np.zeros((1, 1))

    def before() -> None:
        prepare()
        group.barrier()

    def batch(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Durations (s), entries on rank 0's clock (ns), and the batch's own time (ns)."""
        entries, durations = loop(run, before if group.world > 1 else prepare, n)
        everyone = group.gather(np.array([entries, durations], dtype=np.float64))
        starts, lengths = everyone[:, 0] - offsets, everyone[:, 1]
        spent = float((starts + lengths).max() - starts.min()) if n else 0.0
        return lengths / SECOND_NS, starts, spent

    warmup, spent, iteration_ns = 0, 0.0, 1.0
    while warmup < sampling.warmup_samples or spent < sampling.warmup_time_ns:
        count = 1 if warmup == 0 else max(1, min(warmup, int((sampling.warmup_time_ns - spent) / iteration_ns)))
        _, _, batch_ns = batch(count)
        warmup, spent, iteration_ns = warmup + count, spent + batch_ns, max(1.0, batch_ns / count)
        if spent >= sampling.max_time_ns:
            break

    rule, reason, elapsed = StopRule(sampling), None, 0.0
    seconds, entries = np.empty((group.world, 0)), np.empty((group.world, 0))
    while reason is None:
        wanted = int(sampling.min_time_ns / BATCHES_IN_MIN_TIME / iteration_ns)
        left = int((sampling.max_time_ns - elapsed) / iteration_ns) + 1
        count = max(1, min(wanted, left, sampling.max_samples - seconds.shape[1]))
        lengths, starts, batch_ns = batch(count)
        seconds, entries = np.hstack([seconds, lengths]), np.hstack([entries, starts])
        elapsed += batch_ns
        iteration_ns = max(1.0, elapsed / seconds.shape[1])
        reason = rule.decide(seconds.max(axis=0), elapsed)
    return Timing(seconds, entries, warmup, reason)
