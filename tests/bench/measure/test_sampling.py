"""The stop rule, the confidence interval of the median, and timing in one process."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bench.errors import UsageError
from bench.measure.group import RankGroup
from bench.measure.sampling import Sampling, StopReason, StopRule, Timing, median_half_width, sample

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


def test_noise_that_stopped_falling_ends_the_sampling() -> None:
    rng = np.random.default_rng(1)
    rule = StopRule(Sampling(min_time_ns=MS, max_time_ns=10**12, max_samples=10**6, target=0.0004))
    samples = 1 + 0.05 * rng.standard_normal(12_000)
    reasons = [rule.decide(samples[:n], 2 * MS) for n in (1000, 2000, 4000, 8000, 9000, 10_000)]
    assert reasons[0] is None
    assert StopReason.NOISE_STABLE in reasons


def test_interval_of_the_median_covers_what_it_claims() -> None:
    """95 % of intervals hold the true median, for independent samples of a skewed distribution."""
    rng = np.random.default_rng(0)
    covered = 0
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


def test_too_few_samples_have_no_interval() -> None:
    assert median_half_width(np.ones(5)) == float("inf")
    assert median_half_width(np.zeros(50)) == float("inf")


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
