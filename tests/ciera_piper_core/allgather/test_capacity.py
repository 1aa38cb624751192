"""The room for variable areas: periods of a training step are learned, and every rank computes the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.allgather.capacity import ALIGNMENT, COLD_SHARE, LONGEST_PERIOD, CapacityPredictor

MOST = 1 << 20


def overflows(predictor: CapacityPredictor, sizes: list[int]) -> list[int]:
    """Which gathers had not enough room."""
    short = []
    for index, size in enumerate(sizes):
        if size > predictor.capacity():
            short.append(index)
        predictor.record(size)
    return short


def test_before_anything_is_known_there_is_a_share_of_the_most() -> None:
    assert MOST // COLD_SHARE <= CapacityPredictor(MOST).capacity() < MOST // COLD_SHARE * 1.2
    assert CapacityPredictor(0).capacity() == 0


def test_a_negative_most_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot have -1 bytes"):
        CapacityPredictor(-1)


@pytest.mark.parametrize("period", [2, 3, 4, 8, 16, LONGEST_PERIOD])
def test_unchanged_gathers_of_a_step_get_next_to_no_room_once_their_period_is_known(period: int) -> None:
    predictor = CapacityPredictor(MOST)
    steps = [[300_000 + 3_000 * (step % 5)] + [0] * (period - 1) for step in range(11)]
    learning = [size for step in steps[:6] for size in step]
    assert len(overflows(predictor, learning)) <= 5
    for step in steps[6:]:
        for size in step:
            room = predictor.capacity()
            assert size <= room <= 1.2 * size + 2_000
            predictor.record(size)


def test_a_longer_step_is_learned_anew() -> None:
    predictor = CapacityPredictor(MOST)
    overflows(predictor, [300_000, 0] * 30)
    sizes = [300_000, 0, 0, 0] * 20
    assert len(overflows(predictor, sizes)) <= 4
    assert overflows(predictor, [300_000, 0, 0, 0] * 10) == []
    assert predictor.capacity() < 400_000
    predictor.record(300_000)
    assert predictor.capacity() < 1_000


def test_where_a_second_collective_costs_more_than_empty_room_the_room_stays() -> None:
    predictor = CapacityPredictor(4_000)
    # No period in it: a small layer of which something changes now and then.
    sizes = [3_000 if index in {3, 10, 12, 25, 31, 44, 60} else 0 for index in range(64)]
    assert len(overflows(predictor, sizes)) <= 2
    assert predictor.capacity() >= 3_000


def test_without_a_period_the_largest_of_the_window_fits() -> None:
    predictor = CapacityPredictor(MOST)
    sizes = [5_000, 90_000, 100, 42_000, 7, 88_000, 3]
    overflows(predictor, sizes)
    assert predictor.capacity() >= max(sizes)


def test_a_tenth_more_than_the_step_before_fits() -> None:
    predictor = CapacityPredictor(MOST)
    sizes = [10_000, 0, 10_000, 0, 11_000, 0, 12_000, 0, 13_200, 0]
    assert overflows(predictor, sizes) == []


def test_a_large_size_long_ago_is_forgotten() -> None:
    predictor = CapacityPredictor(MOST)
    overflows(predictor, [900_000] + [3, 1, 2] * 40)
    assert predictor.capacity() < 1_000


@given(st.lists(st.integers(0, MOST), max_size=120), st.integers(0, MOST))
def test_room_is_aligned_enough_for_the_last_maximum_and_never_more_than_the_most(sizes: list[int], most: int) -> None:
    predictor, twin = CapacityPredictor(most), CapacityPredictor(most)
    for size in sizes:
        predictor.record(min(size, most))
        twin.record(min(size, most))
    room = predictor.capacity()
    assert room == twin.capacity()
    assert room % ALIGNMENT == 0
    assert room <= most + ALIGNMENT
    if sizes and min(sizes) == max(sizes):
        assert room >= min(sizes[0], most)
