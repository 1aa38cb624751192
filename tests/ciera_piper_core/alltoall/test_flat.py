"""The flat all-to-all in real gloo worlds, with even, uneven and empty splits, and splits that disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ciera_piper_core.alltoall.flat import FlatAllToAll, verify_splits
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def matrices(world: int) -> list[list[list[int]]]:
    """Traffic with all kinds of holes: a silent sender, a deaf receiver, one pair only, nothing at all."""
    rng = np.random.default_rng(world)
    ragged = rng.integers(0, 7, size=(world, world))
    silent, deaf, lone = ragged.copy(), ragged.copy(), np.zeros_like(ragged)
    silent[0], deaf[:, 0], lone[world - 1, 0] = 0, 0, 5
    return [matrix.tolist() for matrix in (ragged, silent, deaf, lone, np.zeros_like(ragged))]


def rows_between(sender: int, receiver: int, count: int) -> torch.Tensor:
    """Rows of three elements that say where they come from and where they belong."""
    return torch.tensor([[sender, receiver, number] for number in range(count)], dtype=torch.int32).view(count, 3)


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_rows_arrive_in_order_of_the_sender(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group, rank = context.group.data, context.group.rank
        assert group is not None
        flat = FlatAllToAll(group)
        for matrix in matrices(world):
            send_splits, recv_splits = matrix[rank], [row[rank] for row in matrix]
            verify_splits(group, send_splits, recv_splits)
            send = torch.cat([rows_between(rank, peer, count) for peer, count in enumerate(send_splits)])
            out = torch.full((sum(recv_splits), 3), -1, dtype=torch.int32)
            flat.exchange(send, send_splits, recv_splits, out)
            expected = torch.cat([rows_between(peer, rank, count) for peer, count in enumerate(recv_splits)])
            assert torch.equal(out, expected)

    run_world(world, body, tmp_path)


def test_equal_shares_need_no_splits(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group, rank = context.group.data, context.group.rank
        assert group is not None
        send = torch.cat([rows_between(rank, peer, 4) for peer in range(3)])
        out = torch.empty_like(send)
        FlatAllToAll(group).exchange(send, None, None, out)
        assert torch.equal(out, torch.cat([rows_between(peer, rank, 4) for peer in range(3)]))

    run_world(3, body, tmp_path)


def test_every_rank_learns_of_counts_that_disagree(tmp_path: Path) -> None:
    def body(context: Context) -> str:
        group, rank = context.group.data, context.group.rank
        assert group is not None
        send_splits, recv_splits = [2, 2, 2], [2, 2, 2]
        if rank == 0:
            recv_splits[1] = 3
        if rank == 2:
            send_splits[1] = 0
        with pytest.raises(ValueError, match="rows") as error:
            verify_splits(group, send_splits, recv_splits)
        return str(error.value)

    message = "rank 1 sends 2 rows to rank 0, which expects 3; rank 2 sends 0 rows to rank 1, which expects 2"
    assert run_world(3, body, tmp_path) == [message] * 3


def test_splits_for_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        with pytest.raises(ValueError, match="1 send and 2 receive splits for 2 ranks"):
            verify_splits(context.group.data, [4], [2, 2])

    run_world(2, body, tmp_path)
