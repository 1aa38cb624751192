"""Speedups: the ratio, its interval, drift that both sides meet, and too few turns."""

from __future__ import annotations

import numpy as np
import pytest

from bench.comparison.speedup import LEAST_TURNS, speedup_of


def turns(seconds: float, count: int, seed: int, noise: float = 0.02, drift: float = 0.0) -> list[list[float]]:
    random = np.random.default_rng(seed)
    return [
        (seconds * (1 + drift * place / count) * (1 + noise * random.standard_normal(3))).tolist()
        for place in range(count)
    ]


def test_a_speedup_is_the_ratio_of_the_two_times_with_an_interval_around_it() -> None:
    found = speedup_of(turns(0.3, 8, 0), turns(0.2, 8, 1), by_turns=True)
    assert found is not None
    assert found.value == pytest.approx(1.5, rel=0.03)
    assert found.low < 1.5 < found.high
    assert found.high - found.low < 0.1
    assert len(found.ratios) == 8


def test_drift_that_both_sides_meet_is_not_in_the_interval() -> None:
    sides = turns(0.3, 8, 0, 0.005, drift=1.0), turns(0.2, 8, 1, 0.005, drift=1.0)
    tight, wide = speedup_of(*sides, by_turns=True), speedup_of(*sides, by_turns=False)
    assert tight is not None
    assert wide is not None
    assert tight.low < 1.5 < tight.high
    assert tight.high - tight.low < (wide.high - wide.low) / 5


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(400):
        found = speedup_of(turns(0.2, 8, 2 * seed), turns(0.2, 8, 2 * seed + 1), by_turns=True)
        assert found is not None
        held += found.low <= 1 <= found.high
    # Signed ranks of eight pairs give 94.5 or 96.1 %; five standard errors of 400 tries are 5 %.
    assert held / 400 > 0.90
    assert held < 400


def test_few_turns_are_compared_by_their_iterations() -> None:
    found = speedup_of(turns(0.3, LEAST_TURNS - 1, 0), turns(0.2, LEAST_TURNS - 1, 1), by_turns=True)
    assert found is not None
    assert 0 < found.low < 1.5 < found.high < np.inf


def test_no_turns_and_no_time_have_no_speedup() -> None:
    assert speedup_of([], [], by_turns=True) is None
    assert speedup_of([[0.1]], [[0.0]], by_turns=True) is None
