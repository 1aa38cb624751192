"""Distinct rows of columns: every row is found again, and work is done once for each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.planner.unique import Unique, by_value


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000), st.integers(0, 1)), min_size=1, max_size=60))
def test_rows_are_their_distinct_rows(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    found = Unique(*columns)
    assert [found.keys[place] for place in found.places] == rows
    assert found.keys == sorted(set(rows))
    for column in columns:
        assert (column[found.first][found.places] == column).all()


def test_each_value_is_made_once() -> None:
    calls = []

    def make(left: int, right: int) -> list[float]:
        calls.append((left, right))
        return [left, right + 0.5]

    found = by_value(make, np.array([1, 2, 1]), np.array([7, 7, 7]))
    assert found.tolist() == [[1, 7.5], [2, 7.5], [1, 7.5]]
    assert calls == [(1, 7), (2, 7)]


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(ValueError, match="too many combinations"):
        Unique(np.array([2**40]), np.array([2**40]))
