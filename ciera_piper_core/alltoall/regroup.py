"""Puts blocks of rows into another order, on the way between the phases of an exchange.

Blocks form a matrix, ``counts[i][j]`` rows in block (i, j), and lie one after the other, row of
blocks by row of blocks. Where all are of one size a strided copy does it; else the pieces are
strung together, which is one call too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    Matrix = Sequence[Sequence[int]]


def transpose_equal(source: torch.Tensor, rows: int, columns: int, out: torch.Tensor) -> None:
    """Blocks of one size in column order.

    Args:
        source: shape ``(rows * columns * block, width)``.
        out: the same shape; gets block (0, 0), (1, 0), ..., (0, 1), ...
    """
    if source.shape[0]:
        block = source.shape[0] // (rows * columns)
        shape = (columns, rows, block, source.shape[1])
        swapped = source.view(rows, columns, block, source.shape[1]).transpose(0, 1)
        out.view(shape).copy_(swapped)


def transpose(source: torch.Tensor, counts: Matrix, out: torch.Tensor) -> None:
    """Blocks of ``counts`` rows in column order: block (0, 0), (1, 0), ..., (0, 1), ..."""
    columns = len(counts[0])
    blocks = split_blocks(source, counts)
    gather([blocks[first] for column in range(columns) for first in range(column, len(blocks), columns)], out)


def split_blocks(source: torch.Tensor, counts: Matrix) -> Sequence[torch.Tensor]:
    """Views of all blocks, in their order."""
    return torch.split_with_sizes(source, [count for row in counts for count in row])


def gather(blocks: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """``blocks`` one after the other into ``out``, which they fill."""
    if out.shape[0]:
        torch.cat(list(blocks), out=out)


def permute_equal(source: torch.Tensor, order: Sequence[int], out: torch.Tensor) -> None:
    """Blocks of one size: ``out`` gets block ``order[0]``, then ``order[1]``, ..."""
    if source.shape[0]:
        shape = (len(order), source.shape[0] // len(order) * source.shape[1])
        index = torch.tensor(order, device=source.device)
        torch.index_select(source.view(shape), 0, index, out=out.view(shape))


def permute(source: torch.Tensor, counts: Sequence[int], order: Sequence[int], out: torch.Tensor) -> None:
    """Blocks of ``counts`` rows: ``out`` gets block ``order[0]``, then ``order[1]``, ..."""
    blocks = split_blocks(source, [counts])
    gather([blocks[block] for block in order], out)
