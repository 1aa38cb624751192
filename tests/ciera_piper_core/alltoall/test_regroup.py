"""Blocks of rows in another order, against a plain list of them; and sizes that no 32-bit index can count."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.alltoall.regroup import permute, permute_equal, split_blocks, transpose, transpose_equal

if TYPE_CHECKING:
    import random


@st.composite
def block_matrices(draw: st.DrawFn) -> list[list[int]]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return [[draw(st.integers(0, 4)) for _ in range(columns)] for _ in range(rows)]


def numbered(counts: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All rows numbered from 0, and the blocks of them."""
    source = torch.arange(2 * sum(counts)).view(-1, 2)
    ends = list(itertools.accumulate(counts, initial=0))
    return source, [source[first:last] for first, last in itertools.pairwise(ends)]


@given(block_matrices())
def test_blocks_of_any_size_come_column_by_column(counts: list[list[int]]) -> None:
    source, blocks = numbered([count for row in counts for count in row])
    out = torch.full_like(source, -1)
    transpose(source, counts, out)
    columns = len(counts[0])
    expected = [blocks[row * columns + column] for column in range(columns) for row in range(len(counts))]
    assert torch.equal(out, torch.cat(expected))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_blocks_of_one_size_do_likewise(rows: int, columns: int, block: int) -> None:
    source, _ = numbered([block] * (rows * columns))
    out, expected = torch.full_like(source, -1), torch.full_like(source, -1)
    transpose_equal(source, rows, columns, out)
    transpose(source, [[block] * columns] * rows, expected)
    assert torch.equal(out, expected)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 3), st.randoms())
def test_blocks_come_in_any_order(counts: list[int], block: int, shuffled: random.Random) -> None:
    order = list(range(len(counts)))
    shuffled.shuffle(order)
    source, blocks = numbered(counts)
    out = torch.full_like(source, -1)
    permute(source, counts, order, out)
    assert torch.equal(out, torch.cat([blocks[place] for place in order]))
    source, blocks = numbered([block] * len(counts))
    out = torch.full_like(source, -1)
    permute_equal(source, order, out)
    assert torch.equal(out, torch.cat([blocks[place] for place in order]))


def test_offsets_beyond_what_32_bits_count() -> None:
    # Rows of 4 KiB, 6 GiB in all, on a device that keeps no data.
    counts = [[3 << 17, 1 << 18], [5, (3 << 18) - 5 - (1 << 17)]]
    total = sum(map(sum, counts))
    source = torch.empty((total, 4096), dtype=torch.uint8, device="meta")
    assert source.numel() > 1 << 32
    blocks = split_blocks(source, counts)
    assert [block.storage_offset() for block in blocks] == [0, 3 << 29, (3 << 29) + (1 << 30), (5 << 29) + 5 * 4096]
    transpose(source, counts, torch.empty_like(source))
    permute(source, [total - 1, 1], [1, 0], torch.empty_like(source))
    equal = torch.empty((6 << 20, 4096), dtype=torch.uint8, device="meta")
    transpose_equal(equal, 2, 3, torch.empty_like(equal))
    assert torch.empty_like(equal).view(3, 2, -1, 4096).stride(0) == 1 << 33
