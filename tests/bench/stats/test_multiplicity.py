"""Corrections for many tests: against scipy, and what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import combine_pvalues, false_discovery_control

from bench.stats.multiplicity import adjusted_p_values, joint_p_value

P_VALUES = st.floats(0, 1, allow_nan=False)


@given(st.lists(P_VALUES, min_size=1, max_size=40))
def test_adjusted_values_are_those_of_scipy(values: list[float]) -> None:
    found = adjusted_p_values(np.array(values))
    np.testing.assert_allclose(found, false_discovery_control(values), rtol=1e-12, atol=0)


def test_a_case_without_a_test_counts_for_nothing() -> None:
    found = adjusted_p_values(np.array([0.01, np.nan, 0.04]))
    assert found[[0, 2]].tolist() == adjusted_p_values(np.array([0.01, 0.04])).tolist()
    assert np.isnan(found[1])


def test_no_tests_at_all() -> None:
    assert adjusted_p_values(np.array([])).size == 0
    assert np.isnan(adjusted_p_values(np.array([np.nan]))).all()


def test_what_is_no_p_value_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjusted_p_values(np.array([1.5]))


@given(st.floats(1e-100, 1), st.floats(1e-100, 1))
def test_the_joint_value_is_fishers(one: float, other: float) -> None:
    expected = combine_pvalues([one, other], method="fisher").pvalue
    assert joint_p_value(one, other) == pytest.approx(expected, rel=1e-6, abs=1e-290)


def test_zeros_stay_numbers() -> None:
    assert joint_p_value(0.0, 0.5) < 1e-290
    assert 0 <= joint_p_value(0.0, 0.0) < 1e-290
