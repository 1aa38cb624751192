"""Blocks of rows as pieces of host memory: sent from where they lie, and received where they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Pieces = list[memoryview]
    """One after the other they are a message."""

NOTHING = memoryview(bytearray())


def pieces_of(tensor: torch.Tensor, splits: Sequence[int] | None, parts: int) -> Pieces:
    """The memory of ``parts`` runs of rows.

    Args:
        tensor: contiguous, in host memory.
        splits: rows of each; None for equal shares.
    """
    rows = tensor.shape[0]
    if rows == 0:
        return [NOTHING] * parts
    array: Any = tensor.numpy()
    memory = memoryview(array).cast("B")
    if splits is None:
        share = len(memory) // parts
        return [memory[share * place : share * (place + 1)] for place in range(parts)]
    row = len(memory) // rows
    pieces, first = [], 0
    for count in splits:
        last = first + count * row
        pieces.append(memory[first:last])
        first = last
    return pieces


def blocks_of(tensor: torch.Tensor, counts: Sequence[Sequence[int]] | None, shape: tuple[int, int]) -> list[Pieces]:
    """The memory of a matrix of blocks, which lie one after the other, row of blocks by row of blocks.

    Args:
        tensor: contiguous, in host memory.
        counts: rows of each block, of the matrix's shape; None for blocks of one size.
    """
    high, wide = shape
    pieces = pieces_of(tensor, None if counts is None else [count for row in counts for count in row], high * wide)
    return [pieces[wide * place : wide * (place + 1)] for place in range(high)]


def columns_of(blocks: Sequence[Pieces]) -> list[Pieces]:
    """The transpose."""
    return [list(column) for column in zip(*blocks, strict=True)]
