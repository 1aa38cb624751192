"""Distinct pairs of slot and item against sets."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.alltoall.dedup_pairs import absolute, distinct_pairs, starts

choice_lists = st.integers(1, 4).flatmap(
    lambda slots: st.integers(0, 6).flatmap(
        lambda items: st.tuples(
            st.just(slots),
            st.just(items),
            st.lists(
                st.tuples(st.integers(0, slots - 1), st.integers(0, max(items - 1, 0))), max_size=20 * bool(items)
            ),
        )
    )
)


@given(choice_lists)
def test_pairs_are_the_sorted_set_of_choices(drawn: tuple[int, int, list[tuple[int, int]]]) -> None:
    slots, items, choices = drawn
    table = torch.tensor(choices, dtype=torch.int64).reshape(len(choices), 2)
    pairs = distinct_pairs(table[:, 0], table[:, 1], slots, items)
    expected = sorted(set(choices))
    assert pairs.items.tolist() == [item for _, item in expected]
    assert pairs.per_slot == tuple(sum(slot == one for slot, _ in expected) for one in range(slots))
    assert [expected[pair] for pair in pairs.pair_of_choice.tolist()] == choices
    assert pairs.order.tolist() == sorted(range(len(choices)), key=lambda choice: (choices[choice], choice))
    assert pairs.choices_per_slot == tuple(sum(slot == one for slot, _ in choices) for one in range(slots))
    begin = starts(pairs.per_slot)
    for choice, place in zip(pairs.order.tolist(), pairs.place_in_slot.tolist(), strict=True):
        assert expected[begin[choices[choice][0]] + place] == choices[choice]


def test_places_within_parts_become_places_in_all() -> None:
    assert absolute(torch.tensor([0, 2, 1, 0]), (2, 0, 2), (3, 5, 4)).tolist() == [0, 2, 9, 8]
