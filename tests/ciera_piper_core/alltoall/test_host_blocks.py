"""Pieces of host memory: the tensor's own, run by run, of equal shares or any, and none at all."""

from __future__ import annotations

import torch

from ciera_piper_core.alltoall.host_blocks import blocks_of, columns_of, pieces_of


def numbers(pieces: list[memoryview]) -> list[list[int]]:
    return [list(piece.cast("q")) for piece in pieces]


def test_equal_and_uneven_runs_are_the_tensor_s_own_memory() -> None:
    tensor = torch.arange(12).view(6, 2)
    assert numbers(pieces_of(tensor, None, 3)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    uneven = pieces_of(tensor, [1, 0, 5], 3)
    assert numbers(uneven) == [[0, 1], [], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]
    uneven[0].cast("q")[1] = -7
    assert tensor[0].tolist() == [0, -7]


def test_of_no_rows_all_pieces_are_empty() -> None:
    nothing = torch.empty((0, 4), dtype=torch.int64)
    assert [len(piece) for piece in pieces_of(nothing, None, 3)] == [0, 0, 0]
    assert [[len(piece) for piece in row] for row in blocks_of(nothing, [[0, 0], [0, 0]], (2, 2))] == [[0, 0], [0, 0]]


def test_blocks_and_their_columns() -> None:
    tensor = torch.arange(6)[:, None]
    equal = blocks_of(tensor, None, (2, 3))
    assert [numbers(row) for row in equal] == [[[0], [1], [2]], [[3], [4], [5]]]
    assert [numbers(row) for row in columns_of(equal)] == [[[0], [3]], [[1], [4]], [[2], [5]]]
    uneven = blocks_of(tensor, [[2, 0, 1], [1, 1, 1]], (2, 3))
    assert [numbers(row) for row in uneven] == [[[0, 1], [], [2]], [[3], [4], [5]]]
