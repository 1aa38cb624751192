"""Tests of the least squares that calibration rests on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.simulate.fitting import UNSEEN, fit
from ciera_piper_core.simulate.parameters import Parameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def number(name: str, *, low: float = 0.0, high: float = math.inf, cost: bool = False) -> Parameter:
    return Parameter(name, "terms", float, float, 1e-6, low, high, cost=cost)


def linear(columns: Floats) -> Callable[[Floats], Floats]:
    return lambda numbers: np.asarray(columns @ numbers)


SIZES = np.arange(1.0, 21.0)
LINE = np.column_stack([np.ones(20), SIZES])
TWO = [number("fixed"), number("each")]


@settings(deadline=None, max_examples=50)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_line_is_found_from_anywhere(share: float, each: float, first: float, second: float) -> None:
    fixed = share * each
    found = fit(TWO, np.array([first, second]), linear(LINE), LINE @ [fixed, each])
    np.testing.assert_allclose(found.numbers, [fixed, each], rtol=1e-4)
    assert found.fitted == (0, 1)
    assert found.left == {}


def test_what_is_less_than_the_scatter_of_times_is_not_told() -> None:
    # A hundredth of the smallest time, and less of the others, which may all be off by half a hundredth.
    found = fit(TWO, np.array([1.0, 1.0]), linear(LINE), LINE @ [0.1, 10.0])
    assert found.fitted == (1,)
    assert found.left == {0: "no more than what noise makes"}


def test_what_the_data_does_not_need_is_nought() -> None:
    found = fit(TWO, np.array([3.0, 3.0]), linear(LINE), 2 * SIZES)
    assert found.numbers[0] == pytest.approx(0, abs=1e-9)
    assert found.numbers[1] == pytest.approx(2)


def test_bounds_hold() -> None:
    tight = [number("fixed"), number("each", high=1.5)]
    found = fit(tight, np.array([1.0, 1.0]), linear(LINE), 2 * SIZES)
    assert found.numbers[1] == 1.5


def test_a_rate_that_is_pushed_to_the_end_of_its_range_is_left_as_it_was() -> None:
    tight = [number("fixed"), number("each", low=2.5, high=4)]
    found = fit(tight, np.array([1.0, 3.0]), linear(LINE), 2 * SIZES)
    assert found.numbers[1] == 3
    assert 1 in found.left


def test_a_number_without_effect_is_left_as_it_was() -> None:
    columns = np.column_stack([LINE, np.zeros(20)])
    found = fit([*TWO, number("idle")], np.array([1.0, 1.0, 7.0]), linear(columns), 2 + SIZES)
    assert found.numbers[2] == 7
    assert found.left == {2: UNSEEN}
    assert found.fitted == (0, 1)


@pytest.mark.parametrize(("cost", "kept"), [(True, 0.0), (False, 0.5)])
def test_of_two_alike_the_first_is_fitted(cost: bool, kept: float) -> None:
    columns = np.column_stack([LINE, 3 * LINE[:, 0]])
    found = fit([*TWO, number("alike", cost=cost)], np.array([1.0, 1.0, 0.5]), linear(columns), columns @ [2, 1, 0.5])
    assert found.numbers[2] == kept
    assert found.numbers[0] == pytest.approx(2 + 3 * (0.5 - kept))
    assert found.left == {2: "the cells cannot tell it from fixed"}


def test_a_cell_that_went_wrong_hardly_moves_the_fit() -> None:
    measured = 2 + SIZES
    measured[7] *= 5
    found = fit(TWO, np.array([1.0, 1.0]), linear(LINE), measured)
    np.testing.assert_allclose(found.numbers, [2, 1], rtol=0.05)


def test_a_number_that_noise_hides_is_left_at_nought() -> None:
    noise = 1 + 0.1 * np.random.default_rng(0).standard_normal(20)
    columns = np.column_stack([SIZES, 0.02 * np.sqrt(SIZES)])
    found = fit([number("each"), number("root", cost=True)], np.array([1.0, 0.0]), linear(columns), SIZES * noise)
    assert found.numbers[1] == 0
    assert found.numbers[0] == pytest.approx(1, rel=0.1)


def test_the_larger_of_two_is_taken_apart_even_where_the_other_hides_it() -> None:
    def slower(numbers: Floats) -> Floats:
        return np.maximum(numbers[0] * SIZES, numbers[1] * np.full(20, 8.0)) + numbers[2]

    three = [number("each"), number("flat"), number("fixed")]
    found = fit(three, np.array([0.2, 3.0, 0.0]), slower, slower(np.array([2.0, 1.5, 1.0])))
    np.testing.assert_allclose(found.numbers, [2.0, 1.5, 1.0], rtol=1e-3)


def test_errors_grow_with_the_scatter() -> None:
    random = np.random.default_rng(1)
    errors = []
    for scatter in (0.01, 0.1):
        measured = (2 + SIZES) * (1 + scatter * random.standard_normal(20))
        errors.append(fit(TWO, np.array([1.0, 1.0]), linear(LINE), measured).errors[1])
    assert 0.001 < errors[0] < errors[1] / 3
