"""The stop rule, the confidence interval of the median, and timing in one process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.errors import UsageError
from bench.measure.group import RankGroup
from bench.measure.sampling import Sampling, StopReason, StopRule, Timing, median_half_width, sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

MS = 1_000_000


def decide(samples: list[float], elapsed_ms: float, **settings: float) -> StopReason | None:
    sampling = Sampling(min_time_ns=10 * MS, max_time_ns=100 * MS, max_samples=500, **settings)  # type: ignore[arg-type]
    return StopRule(sampling).decide(np.array(samples), elapsed_ms * MS)


def test_equal_samples_converge_but_not_before_the_least_time_and_number() -> None:
    assert decide([1.0] * 20, 50) is StopReason.CONVERGED
    assert decide([1.0] * 20, 5) is None
    assert decide([1.0] * 8, 50) is None


def test_noisy_samples_end_by_time_or_number_and_say_so() -> None:
    noisy = [1.0, 2.0] * 20
    assert decide(noisy, 50) is None
    assert decide(noisy, 100) is StopReason.MAX_TIME
    assert decide(noisy * 20, 50) is StopReason.MAX_SAMPLES
    assert not StopReason.MAX_TIME.settled
    assert not StopReason.MAX_SAMPLES.settled


def test_a_cap_on_samples_does_not_hide_that_they_converged() -> None:
    assert decide([1.0] * 500, 1) is StopReason.CONVERGED


def test_one_slow_iteration_is_enough() -> None:
    assert decide([3.0], 3000) is StopReason.MAX_TIME


def test_noise_that_stopped_falling_ends_the_sampling_near_the_target() -> None:
    rng = np.random.default_rng(1)
    samples = 1 + 0.05 * rng.standard_normal(12_000)
    steps = (1000, 2000, 4000, 8000, 9000, 10_000)
    half_width = median_half_width(samples[: steps[-1]])

    def reasons(target: float) -> list[StopReason | None]:
        rule = StopRule(Sampling(min_time_ns=MS, max_time_ns=10**12, max_samples=10**6, target=target))
        return [rule.decide(samples[:n], 2 * MS) for n in steps]

    assert reasons(half_width / 1.9)[0] is None
    assert reasons(half_width / 1.9)[-1] is StopReason.NOISE_STABLE
    assert set(reasons(half_width / 2.2)) == {None}


def test_interval_of_the_median_covers_what_it_claims() -> None:
    """95 % of intervals hold the true median, for independent samples of a skewed distribution."""
    rng = np.random.default_rng(0)
    covered = 0.0
    for _ in range(400):
        samples = rng.lognormal(0, 0.3, 60)
        half_width = median_half_width(samples) * np.median(samples)
        covered += abs(np.median(samples) - 1) <= half_width
    assert covered >= 0.93 * 400


def test_samples_that_follow_each_other_are_worth_less() -> None:
    rng = np.random.default_rng(0)
    independent = 1 + 0.05 * rng.standard_normal(400)
    drifting = np.sort(independent)
    assert median_half_width(drifting) > 1.5 * median_half_width(independent)
    following = autoregressive(0.8, 0.05, 1, 400)[0]
    assert 1.5 * median_half_width(independent) < median_half_width(following) < float("inf")


def autoregressive(rho: float, deviation: float, runs: int, n: int) -> NDArray[np.float64]:
    """``runs`` series of ``n`` samples around 1, each of which follows the one before it by ``rho``."""
    noise = np.random.default_rng(7).standard_normal((runs, n))
    series = noise.copy()
    for i in range(1, n):
        series[:, i] = rho * series[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    return np.asarray(1 + deviation * series)


@pytest.mark.parametrize(("rho", "n", "least"), [(0.5, 10, 0.95), (0.9, 10, 0.88), (0.9, 50, 0.9), (0.9, 200, 0.93)])
def test_the_interval_covers_the_median_also_of_samples_that_follow_each_other(
    rho: float, n: int, least: float
) -> None:
    series = autoregressive(rho, 0.02, 400, n)
    covered = [abs(np.median(samples) - 1) <= median_half_width(samples) * np.median(samples) for samples in series]
    assert np.mean(covered) >= least


def converged_at(samples: NDArray[np.float64]) -> int | None:
    """Number of samples at which the quick preset converges, if one iteration of 40 ms is taken at a time."""
    rule = StopRule(Sampling.from_preset("quick"))
    for n in range(1, len(samples) + 1):
        reason = rule.decide(samples[:n], n * 40 * MS)
        if reason:
            return n if reason is StopReason.CONVERGED else None
    return None


def test_few_samples_that_follow_each_other_seldom_converge_off_target() -> None:
    series = autoregressive(0.9, 0.02, 400, 20)
    stops = [converged_at(samples) for samples in series]
    off = [n is not None and abs(np.median(samples[:n]) - 1) > 0.02 for samples, n in zip(series, stops, strict=True)]
    assert np.mean(off) < 0.1


def test_independent_samples_converge_soon() -> None:
    stops = [converged_at(samples) for samples in autoregressive(0, 0.01, 400, 20)]
    converged = [n for n in stops if n is not None]
    assert len(converged) >= 0.97 * len(stops)
    assert np.mean(converged) < 12
    assert stops.count(10) >= 0.5 * len(stops)


def test_a_coarse_clock_makes_no_correlation() -> None:
    """Ties have no order: ranked by arrival, they would look like a drift, and the interval would reach a tick on."""
    ticks = np.random.default_rng(1).permutation(np.repeat([100.0, 101.0], [120, 80]))
    assert median_half_width(ticks) == 0


def test_too_few_samples_have_no_interval() -> None:
    assert median_half_width(np.ones(5)) == float("inf")
    assert median_half_width(np.zeros(50)) == float("inf")
    assert median_half_width(np.empty(0)) == float("inf")
    drifting: NDArray[np.float64] = np.linspace(1, 1.001, 50)
    assert median_half_width(drifting) == float("inf")


def test_sampling_times_the_run_alone() -> None:
    calls = {"run": 0, "prepare": 0}

    def run() -> None:
        calls["run"] += 1
        time.sleep(0.002)

    def prepare() -> None:
        calls["prepare"] += 1
        time.sleep(0.01)

    sampling = Sampling(min_time_ns=20 * MS, max_time_ns=60 * MS, warmup_time_ns=MS)
    timing = sample(run, prepare, sampling, RankGroup())
    assert 0.002 <= np.median(timing.slowest) < 0.01
    assert calls["run"] == calls["prepare"] == timing.warmup + timing.seconds.shape[1]
    assert timing.seconds.shape == timing.entry_ns.shape
    assert (np.diff(timing.entry_ns[0]) > 0).all()
    assert timing.entry_skew_us == 0


def test_a_baseline_takes_turns_with_the_run() -> None:
    calls: list[str] = []

    def run() -> None:
        calls.append("run")
        time.sleep(0.001)

    def baseline() -> None:
        calls.append("baseline")
        time.sleep(0.004)

    sampling = Sampling(min_time_ns=20 * MS, max_time_ns=60 * MS, warmup_time_ns=1)
    timing = sample(run, lambda: calls.append("prepare"), sampling, RankGroup(), baseline=baseline)
    assert timing.baseline_seconds is not None
    assert timing.seconds.shape == timing.baseline_seconds.shape == timing.entry_ns.shape
    assert calls[0::2] == ["prepare"] * (len(calls) // 2)
    # Whatever the lengths of the batches, the one that went second goes first in the next iteration.
    first_sample = 4 * timing.warmup
    sampled = calls[first_sample + 1 :: 2]
    assert sampled == (["run", "baseline", "baseline", "run"] * len(sampled))[: len(sampled)]
    assert len(sampled) == 2 * timing.seconds.shape[1]
    assert timing.seconds.min() >= 0.001
    assert np.median(timing.seconds) < 0.004 <= timing.baseline_seconds.min()
    assert (np.diff(timing.entry_ns[0]) > 0).all()


def test_without_a_baseline_there_are_no_baseline_samples() -> None:
    sampling = Sampling(min_time_ns=1, max_time_ns=MS, warmup_time_ns=1)
    assert sample(lambda: None, lambda: None, sampling, RankGroup()).baseline_seconds is None


def test_the_slowest_rank_counts_in_each_iteration() -> None:
    seconds = np.array([[1.0, 5.0, 1.0], [2.0, 2.0, 2.0]])
    entries = np.array([[0.0, 1000.0, 4000.0], [500.0, 1500.0, 1000.0]])
    timing = Timing(seconds, entries, 3, StopReason.CONVERGED)
    assert timing.slowest.tolist() == [2.0, 5.0, 2.0]
    assert timing.rank_medians.tolist() == [1.0, 2.0]
    assert timing.entry_skew_us == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_time_ns": 0},
        {"min_time_ns": 2 * MS, "max_time_ns": MS},
        {"min_samples": 0},
        {"target": 0.0},
        {"warmup_samples": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_presets_rise_in_effort() -> None:
    quick, standard, full = (Sampling.from_preset(preset) for preset in ("quick", "standard", "full"))
    assert quick.max_time_ns < standard.max_time_ns < full.max_time_ns
    assert quick.target > standard.target > full.target
    assert quick.with_max_time(0.01).max_time_ns == 10 * MS >= quick.with_max_time(0.01).min_time_ns
