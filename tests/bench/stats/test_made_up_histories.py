"""Made-up histories: the same for a seed, and with the changes, gaps and noise that they promise."""

from __future__ import annotations

import numpy as np
import pytest

from bench.errors import UsageError
from bench.stats.made_up_histories import (
    ANNOTATED_POINTS,
    LEAST_DISTANCE,
    STEP_AT,
    make_histories,
)
from bench.stats.proof_scenarios import ANNOTATED, HISTORY_SCENARIOS, UNCHANGED


@pytest.mark.parametrize("scenario", HISTORY_SCENARIOS)
def test_a_seed_makes_the_same_series(scenario: str) -> None:
    one, same, other = (make_histories(scenario, 0.05, 0.02, seed, 6) for seed in (1, 1, 2))
    assert np.array_equal(one.values, same.values, equal_nan=True)
    assert one.changes == same.changes
    assert not np.array_equal(one.values, other.values, equal_nan=True)
    assert all(bool(places) == (scenario not in UNCHANGED) for places in one.changes)


def test_noise_has_the_variation_asked_for() -> None:
    values = make_histories("steady", 0.0, 0.02, 0, 500).values
    assert (values.std() / values.mean()) == pytest.approx(0.02, rel=0.05)


def test_a_step_has_the_size_asked_for() -> None:
    values = make_histories("step", 0.05, 0.001, 0, 50).values
    assert values[:, STEP_AT:].mean() / values[:, :STEP_AT].mean() == pytest.approx(1.05, abs=0.001)


@pytest.mark.parametrize("scenario", ANNOTATED)
def test_changes_keep_their_distance(scenario: str) -> None:
    for places in make_histories(scenario, 0.05, 0.02, 3, 200).changes:
        assert 1 <= len(places) <= 4
        if scenario == "several":
            assert np.diff([0, *places, ANNOTATED_POINTS]).min() >= LEAST_DISTANCE


def test_changes_of_series_with_gaps_are_at_measured_points() -> None:
    made = make_histories("step_gaps", 0.05, 0.02, 0, 200)
    assert np.isnan(made.values).any()
    assert all(np.isfinite(values[places]).all() for values, places in zip(made.values, made.changes, strict=True))


def test_unknown_scenarios_are_named() -> None:
    with pytest.raises(UsageError, match="did you mean step"):
        make_histories("steps", 0.0, 0.02, 0, 1)
