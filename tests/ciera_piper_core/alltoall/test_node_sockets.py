"""Local sockets between the ranks of a node: small and large messages, ranks that disagree, are late or gone."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall import node_sockets
from ciera_piper_core.alltoall.node_sockets import NodeSockets, connect_node
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.suite import Context


def connected(ranks: int, timeout_s: float = 20.0) -> list[NodeSockets]:
    """The ends of every rank, all in this process."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one in range(ranks):
        for other in range(one):
            ends[one][other], ends[other][one] = socket.socketpair()
    return [
        NodeSockets(sockets, local, range(10, 10 + ranks), timedelta(seconds=timeout_s))
        for local, sockets in enumerate(ends)
    ]


def together(*bodies: Callable[[], None]) -> list[Exception]:
    """Run each in a thread of its own; what they raised."""
    errors: list[Exception] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 40_000], ids=["small", "beyond the sockets' buffers"])
def test_equal_shares(ranks: int, rows: int) -> None:
    ends = connected(ranks)
    sent = [torch.randint(0, 1 << 30, (ranks * rows, 3)) for _ in range(ranks)]
    outs = [torch.full((ranks * rows, 3), -1) for _ in range(ranks)]

    def exchange(rank: int) -> None:
        for _ in range(3):
            outs[rank].fill_(-1)
            ends[rank].exchange(outs[rank], sent[rank], None, None)

    assert together(*(lambda rank=rank: exchange(rank) for rank in range(ranks))) == []  # type: ignore[misc]
    for rank in range(ranks):
        share = slice(rank * rows, (rank + 1) * rows)
        assert torch.equal(outs[rank], torch.cat([sent[peer][share] for peer in range(ranks)]))


def test_uneven_and_empty_shares_in_turn() -> None:
    ends = connected(3)
    counts = [[0, 2, 1], [0, 0, 0], [50_000, 0, 3]]

    def exchange(rank: int) -> None:
        for step in range(3):
            send_splits = counts[(rank + step) % 3]
            recv_splits = [counts[(peer + step) % 3][rank] for peer in range(3)]
            send = torch.full((sum(send_splits), 2), 10 * rank + step, dtype=torch.int32)
            out = torch.full((sum(recv_splits), 2), -1, dtype=torch.int32)
            ends[rank].exchange(out, send, recv_splits, send_splits)
            assert out[:, 1].tolist() == [10 * peer + step for peer in range(3) for _ in range(recv_splits[peer])]

    assert together(*(lambda rank=rank: exchange(rank) for rank in range(3))) == []  # type: ignore[misc]


def test_ranks_that_disagree_on_a_message_are_named() -> None:
    first, second = connected(2)
    send, short, long = torch.zeros(2, 1), torch.zeros(3, 1), torch.zeros(4, 1)
    errors = together(
        lambda: first.exchange(short, send, [1, 2], [1, 1]),
        lambda: second.exchange(long[:2], send, [1, 1], [1, 1]),
    )
    assert [str(error) for error in errors] == [
        "rank 11 sends 4 bytes to rank 10 of its node, which expects 8: splits disagree (check_splits finds which)"
    ]
    assert isinstance(errors[0], RuntimeError)
    with pytest.raises(RuntimeError, match="rank 10 sends 4 bytes to itself, but expects 8"):
        first.exchange(short, send, [2, 1], [1, 1])


def test_a_rank_that_is_gone_ends_the_wait() -> None:
    first, second = connected(2)
    second.close()
    with pytest.raises(RuntimeError, match="lost rank 11 of this node"):
        first.exchange(torch.zeros(2, 1), torch.zeros(2, 1), None, None)
    first, second = connected(2)
    timer = threading.Timer(0.1, second.close)
    timer.start()
    with pytest.raises(RuntimeError, match="lost rank 11 of this node"):
        first.exchange(torch.zeros(2, 1), torch.zeros(2, 1), None, None)
    timer.join()


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    first, _second, _third = connected(3, timeout_s=0.2)
    with pytest.raises(RuntimeError, match=r"rank\(s\) 11, 12 of this node did not take part within 0.2 s"):
        first.exchange(torch.zeros(3, 1), torch.zeros(3, 1), None, None)


def test_ranks_of_a_world_find_each_other(tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        assert context.group.data is not None
        sockets = connect_node(context.group.data, f"test-{os.getppid()}", range(4), timedelta(seconds=20))
        assert sockets is not None
        out = torch.zeros(4, dtype=torch.int64)[:, None]
        sockets.exchange(out, torch.arange(4)[:, None] + 10 * context.group.rank, None, None)
        sockets.close()
        numbers: list[int] = out.flatten().tolist()
        return numbers

    assert run_world(4, body, tmp_path) == [[rank, 10 + rank, 20 + rank, 30 + rank] for rank in range(4)]


@pytest.mark.parametrize("fault", ["no such sockets", "another host", "another user"])
def test_all_do_without_where_one_cannot(fault: str, tmp_path: Path) -> None:
    def body(context: Context) -> bool:
        assert context.group.data is not None
        if context.group.rank == 1:
            if fault == "no such sockets":
                node_sockets.sys = type("System", (), {"platform": "plan9"})  # type: ignore[assignment]
            elif fault == "another host":
                node_sockets._address = lambda name, rank: f"\0elsewhere/{name}/{rank}".encode()
            else:
                node_sockets._same_user = lambda connection: False
        limit = timedelta(seconds=20)
        return connect_node(context.group.data, f"test-{fault}-{os.getppid()}", range(3), limit) is None

    assert run_world(3, body, tmp_path) == [True] * 3
