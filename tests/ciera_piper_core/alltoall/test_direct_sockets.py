"""Sockets between ranks: small and large messages, two sets at once, ranks that disagree, are late or gone."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall.direct_sockets import MOST_PIECES, DirectSockets, Watch
from ciera_piper_core.alltoall.host_blocks import pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KINDS = ("local", "tcp")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def connected(
    ranks: int, timeout_s: float = 20.0, kind: str = "local", watches: Sequence[Watch | None] | None = None
) -> list[DirectSockets]:
    """The ends of every rank, all in this process."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one in range(ranks):
        for other in range(one):
            ends[one][other], ends[other][one] = socket.socketpair() if kind == "local" else tcp_pair()
    return [
        DirectSockets(sockets, own, range(10, 10 + ranks), timedelta(seconds=timeout_s), watch)
        for own, (sockets, watch) in enumerate(zip(ends, watches or [None] * ranks, strict=True))
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 200_000], ids=["small", "beyond the sockets' buffers"])
def test_equal_shares(ranks: int, rows: int, kind: str) -> None:
    ends = connected(ranks, kind=kind)
    sent = [torch.randint(0, 1 << 30, (ranks * rows, 3)) for _ in range(ranks)]
    outs = [torch.full((ranks * rows, 3), -1) for _ in range(ranks)]

    def exchange(rank: int) -> None:
        for _ in range(3):
            outs[rank].fill_(-1)
            ends[rank].exchange(outs[rank], sent[rank])

    assert together(*(lambda rank=rank: exchange(rank) for rank in range(ranks))) == []  # type: ignore[misc]
    for rank in range(ranks):
        share = slice(rank * rows, (rank + 1) * rows)
        assert torch.equal(outs[rank], torch.cat([sent[peer][share] for peer in range(ranks)]))


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_and_empty_shares_in_turn(kind: str) -> None:
    ends = connected(3, kind=kind)
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


def test_a_message_that_comes_in_pieces() -> None:
    theirs, ours = socket.socketpair()
    end = DirectSockets({1: ours}, 0, (10, 11), timedelta(seconds=20))
    message = (16).to_bytes(8, "little") + bytes(range(16))

    def trickle() -> None:
        for byte in message:
            theirs.send(bytes([byte]))
            time.sleep(0.002)

    out = torch.zeros(32, 1, dtype=torch.uint8)
    assert together(lambda: end.exchange(out, torch.zeros(32, 1, dtype=torch.uint8)), trickle) == []
    assert out.flatten().tolist() == [0] * 16 + list(range(16))


def test_a_message_of_more_pieces_than_a_call_takes() -> None:
    ends, count = connected(2), 2 * MOST_PIECES + 3
    sent = [torch.arange(count) + 10_000 * rank for rank in range(2)]
    outs = [torch.zeros(2 * count, dtype=torch.int64) for _ in range(2)]

    def exchange(rank: int) -> None:
        # Backwards, so that order shows.
        pieces, places = pieces_of(sent[rank], None, count)[::-1], pieces_of(outs[rank], None, 2 * count)
        ends[rank].start_pieces([pieces, pieces], [places[:count], places[count:]]).wait()

    assert together(lambda: exchange(0), lambda: exchange(1)) == []
    for out in outs:
        assert torch.equal(out, torch.cat([each.flip(0) for each in sent]))


@pytest.mark.parametrize("rows", [1, 400_000], ids=["small", "beyond the sockets' buffers"])
def test_one_set_moves_while_another_is_waited_for(rows: int) -> None:
    """Rank 0 waits for its slow neighbour; what it sends along the rail must not wait for that."""
    watch = Watch()
    rail = connected(2, kind="tcp", watches=[watch, None])
    node = connected(2, watches=[watch, None])
    sent = torch.arange(2 * rows)[:, None]
    outs = [torch.zeros_like(sent) for _ in range(4)]
    arrived = threading.Event()

    def first() -> None:
        under_way = rail[0].start(outs[0], sent)
        node[0].exchange(outs[1], sent)
        under_way.wait()

    def far() -> None:
        rail[1].exchange(outs[2], sent)
        arrived.set()

    def neighbour() -> None:
        assert arrived.wait(20), "the rail waits for the node"
        node[1].exchange(outs[3], sent)

    assert together(first, far, neighbour) == []
    for place, out in enumerate(outs):
        own = sent[rows * (place // 2) :][:rows]
        assert torch.equal(out, torch.cat([own, own]))


def test_ranks_that_disagree_on_a_message_are_named() -> None:
    first, second = connected(2)
    send, short, long = torch.zeros(2, 1), torch.zeros(3, 1), torch.zeros(4, 1)
    errors = together(
        lambda: first.exchange(short, send, [1, 2], [1, 1]),
        lambda: second.exchange(long[:2], send, [1, 1], [1, 1]),
    )
    assert [str(error) for error in errors] == [
        "rank 11 sends 4 bytes to rank 10, which expects 8: splits disagree (check_splits finds which)"
    ]
    assert isinstance(errors[0], RuntimeError)
    with pytest.raises(RuntimeError, match="rank 10 sends 4 bytes to itself, but expects 8"):
        first.exchange(short, send, [2, 1], [1, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_gone_ends_the_wait(kind: str) -> None:
    first, second = connected(2, kind=kind)
    second.close()
    with pytest.raises(RuntimeError, match="lost rank 11"):
        first.exchange(torch.zeros(2, 1), torch.zeros(2, 1))
    first, second = connected(2, kind=kind)
    timer = threading.Timer(0.1, second.close)
    timer.start()
    with pytest.raises(RuntimeError, match="lost rank 11"):
        first.exchange(torch.zeros(2, 1), torch.zeros(2, 1))
    timer.join()


def test_a_rank_that_leaves_within_a_large_message_is_named() -> None:
    first, second = connected(2, kind="tcp")
    timer = threading.Timer(0.1, second.close)
    timer.start()
    rows = 2 * (1 << 22)
    with pytest.raises(RuntimeError, match="lost rank 11"):
        first.exchange(torch.zeros(rows, 1), torch.zeros(rows, 1))
    timer.join()


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    first, _second, _third = connected(3, timeout_s=0.2)
    with pytest.raises(RuntimeError, match=r"rank\(s\) 11, 12 did not take part within 0.2 s"):
        first.exchange(torch.zeros(3, 1), torch.zeros(3, 1))
