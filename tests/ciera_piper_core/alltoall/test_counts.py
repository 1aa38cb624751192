"""Counts before rows: learnt from the senders, and checked on both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.counts import checked_splits, exchange_counts, exchange_vectors, verify_splits
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.ranges import recording
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_ranks_learn_what_they_will_receive(tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        assert context.group.data is not None
        with recording() as spans:
            counts = exchange_counts(context.group.data, [10 * context.group.rank + peer for peer in range(3)])
        assert [span.name for span in spans] == ["alltoall.counts"]
        vectors = torch.tensor([[context.group.rank, peer] for peer in range(3)])

        def exchange(out: torch.Tensor, send: torch.Tensor) -> None:
            dist.all_to_all_single(out, send, group=context.group.data)

        received = exchange_vectors(context.group.data, vectors, exchange)
        assert received.tolist() == [[p, context.group.rank] for p in range(3)]
        return counts

    assert run_world(3, body, tmp_path) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]


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


@pytest.mark.parametrize("name", ["flat", "two_phase", "halo_v0", "halo_v1", "halo_v2"])
def test_algorithms_check_when_asked_to_and_go_on_afterwards(name: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group, rank = context.group.data, context.group.rank
        assert group is not None
        algorithm = make_all_to_all(name, group, even_placement(4, 2), check_splits=True)
        wrong = [1, 1, 1, 2] if rank == 0 else [1, 1, 1, 1]
        send = torch.full((sum(wrong), 1), rank)
        with pytest.raises(ValueError, match="rank 0 sends 2 rows to rank 3, which expects 1"):
            algorithm.exchange(send, wrong, [1] * 4, torch.zeros(4, 1, dtype=torch.int64))
        with pytest.raises(ValueError, match="rank 0 sends 2 rows to rank 3, which expects 1"):
            algorithm.start(send, wrong, [1] * 4, torch.zeros(4, 1, dtype=torch.int64)).wait()
        out = torch.zeros(4, 1, dtype=torch.int64)
        algorithm.exchange(send[:4], [1] * 4, [1] * 4, out)
        assert out.flatten().tolist() == [0, 1, 2, 3]

    run_world(4, body, tmp_path)


def test_splits_for_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        with pytest.raises(ValueError, match="1 send and 2 receive splits for 2 ranks"):
            verify_splits(context.group.data, [4], [2, 2])

    run_world(2, body, tmp_path)


@pytest.mark.parametrize(
    ("send", "recv", "message"),
    [
        ([1, 2], None, "both given, or both None"),
        ([1, 2, 3], [1, 2], "3 send splits for 2 ranks"),
        ([1, 2], [1], "1 receive splits for 2 ranks"),
        ([1, -2], [1, 2], "send splits ask for -2 rows with rank 1"),
    ],
)
def test_splits_that_make_no_sense_are_refused(send: list[int], recv: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_splits(send, recv, 2)


def test_splits_become_tuples() -> None:
    assert checked_splits([1, 2], (3, 4), 2) == ((1, 2), (3, 4))
    assert checked_splits(None, None, 2) == (None, None)
