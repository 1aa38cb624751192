"""Tests for the table of experts and ranks."""

from __future__ import annotations

import pytest

from ciera_piper_core.moe.expert_table import ExpertTable, contiguous_table


def test_a_table_tells_where_each_expert_is() -> None:
    table = ExpertTable(((2, 0), (1, 3)))
    assert [table.rank_of(expert) for expert in range(4)] == [0, 1, 0, 1] == table.ranks_tensor().tolist()
    assert [table.slot_of(expert) for expert in range(4)] == [1, 0, 0, 1] == table.slots_tensor().tolist()
    assert (table.experts, table.ranks, table.even) == (4, 2, True)


def test_a_swap_leaves_every_slot_filled() -> None:
    assert contiguous_table(4, 2).swapped(0, 3).held == ((3, 1), (2, 0))
    assert contiguous_table(4, 2).swapped(0, 1).held == ((1, 0), (2, 3))


def test_neighbours_are_together_and_what_is_left_over_goes_to_the_first() -> None:
    assert contiguous_table(6, 3).held == ((0, 1), (2, 3), (4, 5))
    uneven = contiguous_table(8, 3, uneven=True)
    assert uneven.held == ((0, 1, 2), (3, 4, 5), (6, 7))
    assert not uneven.even
    # What rounds down would leave the last experts on no rank.
    for experts, ranks in ((128, 24), (256, 3)):
        held = contiguous_table(experts, ranks, uneven=True).held
        assert [expert for one in held for expert in one] == list(range(experts))
        assert {len(one) for one in held} == {experts // ranks, experts // ranks + 1}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (((0, 1), ()), r"rank\(s\) \[1\] hold none"),
        (((0, 1), (1,)), "each expert from 0 to 2 once"),
        (((0,), (2,)), "each expert from 0 to 1 once"),
        ((), "hold none"),
    ],
)
def test_a_table_that_is_none_is_refused(held: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpertTable(held)


def test_what_does_not_divide_is_refused_unless_asked_for() -> None:
    with pytest.raises(ValueError, match="8 experts do not divide over 3 ranks"):
        contiguous_table(8, 3)
    with pytest.raises(ValueError, match="2 experts leave some of 3 ranks without one"):
        contiguous_table(2, 3, uneven=True)
