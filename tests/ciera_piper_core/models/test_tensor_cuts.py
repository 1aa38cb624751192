"""Cuts of parameters: parts make the whole again, copies count once, and holes are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.tensor_cuts import Cut, attention_cuts, even_cut, feed_forward_cuts, share_cut


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.sampled_from([-1, -2]))
def test_parts_make_the_whole(shares: list[int], dim: int) -> None:
    cut = share_cut(dim, shares)
    whole = torch.arange(3 * cut.size**2).view(3, cut.size, cut.size)
    parts = [cut.part(whole, rank) for rank in range(len(shares))]
    assert [part.shape[dim] for part in parts] == shares
    assert torch.equal(cut.whole(parts), whole)
    assert not cut.copied or 0 in shares


def test_key_heads_fewer_than_ranks_are_copied_and_count_once() -> None:
    # 4 query heads and 2 key/value heads of width 2, on 4 ranks: rows are numbered.
    cut = attention_cuts(AttentionShape(hidden=1, heads=4, kv_heads=2, qk_dim=2, v_dim=2), 4)["qkv"]
    rows = torch.arange(16)[:, None]
    parts = [cut.part(rows, rank) for rank in range(4)]
    assert [part.flatten().tolist() for part in parts] == [
        [0, 1, 8, 9, 12, 13],
        [2, 3, 8, 9, 12, 13],
        [4, 5, 10, 11, 14, 15],
        [6, 7, 10, 11, 14, 15],
    ]
    assert cut.copied
    assert torch.equal(cut.whole(parts), rows)
    counted = [int(view) for rank, part in enumerate(parts) for piece in cut.counted(part, rank) for view in piece]
    assert sorted(counted) == list(range(16))


def test_experts_are_cut_by_their_inner_width() -> None:
    cuts = feed_forward_cuts((8, 4), ("up", "down"))
    assert cuts["up"].part(torch.zeros(3, 12, 5), 1).shape == (3, 4, 5)
    assert cuts["down"].part(torch.zeros(3, 5, 12), 0).shape == (3, 5, 8)
    # The same cut holds for one expert of the stack.
    assert cuts["up"].part(torch.zeros(12, 5), 1).shape == (4, 5)


def test_what_is_no_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves indices 2 to 3 to no rank"):
        Cut(-1, ((range(2),), (range(4, 5),)))
    with pytest.raises(ValueError, match="counts its dimension from the last"):
        Cut(0, ((range(2),),))
    with pytest.raises(ValueError, match="7 does not divide over 2 ranks"):
        even_cut(-1, 7, 2)
    with pytest.raises(ValueError, match="a dimension of 4, the parameter has"):
        even_cut(-1, 4, 2).part(torch.zeros(6), 0)
