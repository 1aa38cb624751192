"""Sets of intervals, against sets of whole numbers that are counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.trace.intervals import EMPTY, complement, difference, intersection, length, merged, shared_out, union

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {point for start, end in intervals for point in range(start, end)}


def covered(intervals: np.ndarray) -> set[int]:
    return points([(int(start), int(end)) for start, end in intervals])


@given(pairs, pairs)
def test_sets_are_as_counted(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = merged(one), merged(other)
    assert covered(a) == points(one)
    assert covered(union(a, b)) == points(one) | points(other)
    assert covered(intersection(a, b)) == points(one) & points(other)
    assert covered(difference(a, b)) == points(one) - points(other)
    assert length(a) == len(points(one))
    assert (np.diff(a.ravel()) > 0).all(), "sorted, disjoint, and no two that touch"


@given(st.lists(pairs, min_size=1, max_size=4), pairs)
def test_shares_add_up_and_are_even(held: list[list[tuple[int, int]]], within: list[tuple[int, int]]) -> None:
    shares = shared_out({str(i): merged(one) for i, one in enumerate(held)}, merged(within))
    for i, one in enumerate(held):
        mine = points(one) & points(within)
        expected = sum(1 / sum(point in points(each) for each in held) for point in mine)
        assert shares[str(i)] == pytest.approx(expected)
    assert sum(shares.values()) == pytest.approx(len(set.union(*map(points, held)) & points(within)))


def test_nothing() -> None:
    assert len(merged([])) == len(merged([(3, 3), (5, 2)])) == 0
    assert length(EMPTY) == 0
    assert intersection(EMPTY, merged([(0, 1)])).shape == (0, 2)
    assert shared_out({"a": EMPTY}, merged([(0, 1)])) == {"a": 0.0}
    assert union().shape == (0, 2)
    assert complement(EMPTY).tolist() == [[-np.inf, np.inf]]
