"""Bitmaps: one bit a block, in order, and nothing behind the last."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.exponents.bitmap import bitmap_bytes, read_bitmap, write_bitmap
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.reference import pack


@given(st.lists(st.booleans(), max_size=100))
def test_flags_come_back_and_are_counted(flags: list[bool]) -> None:
    changed = torch.tensor(flags, dtype=torch.uint8)
    bitmap = torch.full((bitmap_bytes(len(flags)),), 255, dtype=torch.uint8)
    assert write_bitmap(changed, bitmap) == sum(flags)
    assert torch.equal(bitmap, pack(changed, 1))
    found = torch.full_like(changed, 9)
    assert read_bitmap(bitmap, found) == sum(flags)
    assert torch.equal(found, changed)


@pytest.mark.parametrize("blocks", [1, 7, 9, 15])
def test_a_bit_of_no_block_is_an_error(blocks: int) -> None:
    bitmap = torch.zeros(bitmap_bytes(blocks), dtype=torch.uint8)
    bitmap[-1] = 1 << blocks % 8
    with pytest.raises(CodedDataError, match=f"there are {blocks}"):
        read_bitmap(bitmap, torch.empty(blocks, dtype=torch.uint8))
