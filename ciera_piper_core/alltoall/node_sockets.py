"""Exchanges between the ranks of a node through local sockets, for tensors in host memory.

A library such as gloo talks to a neighbour as it does to a rank far away: over TCP, in several
packets and through threads of its own. Neighbours share a kernel, whose local sockets take a
message in one call and wake nobody but its receiver.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

HEADER = struct.Struct("<q")
"""Before each message: its bytes. Ranks that disagree on splits learn of it, and take no message for another."""

CONNECT_SECONDS = 30.0

_CREDENTIALS = struct.Struct("3i")


class NodeSockets:
    """A socket to each neighbour, over which exchanges follow each other in the same order on both ends."""

    def __init__(self, sockets: dict[int, socket.socket], local: int, ranks: Sequence[int], timeout: timedelta) -> None:
        """
        Args:
            sockets: to each neighbour, by its local index.
            local: this rank's own index.
            ranks: what errors call the ranks, by local index.
            timeout: of an exchange.
        """
        self._sockets, self._local, self._ranks = sockets, local, tuple(ranks)
        self._timeout_s = timeout.total_seconds()
        self._peers = [(local + step) % (len(sockets) + 1) for step in range(1, len(sockets) + 1)]
        for connection in sockets.values():
            connection.setblocking(False)

    def exchange(
        self, out: torch.Tensor, send: torch.Tensor, recv_splits: list[int] | None, send_splits: list[int] | None
    ) -> None:
        """As ``torch.distributed.all_to_all_single`` in the node's group; ``out`` is complete on return.

        Raises:
            RuntimeError: a neighbour is lost or late, or sends another number of bytes than expected.
        """
        sources, targets = self._pieces(send, send_splits), self._pieces(out, recv_splits)
        if len(sources[self._local]) != len(targets[self._local]):
            raise RuntimeError(
                f"rank {self._ranks[self._local]} sends {len(sources[self._local])} bytes to itself, "
                f"but expects {len(targets[self._local])}"
            )
        leaving = {peer: [memoryview(HEADER.pack(len(sources[peer]))), sources[peer]] for peer in self._peers}
        headers = {peer: bytearray(HEADER.size) for peer in self._peers}
        coming = {peer: [memoryview(headers[peer]), targets[peer]] for peer in self._peers}
        for peer in self._peers:
            self._send(peer, leaving)
        targets[self._local][:] = sources[self._local]
        deadline = time.monotonic() + self._timeout_s
        while leaving or coming:
            moved = False
            for peer in list(leaving):
                moved |= self._send(peer, leaving)
            for peer in list(coming):
                moved |= self._receive(peer, coming, headers[peer], len(targets[peer]))
            if not moved:
                self._wait(leaving.keys(), coming.keys(), deadline)

    def close(self) -> None:
        """Hang up; neighbours that wait get an error."""
        for connection in self._sockets.values():
            connection.close()

    def _pieces(self, tensor: torch.Tensor, splits: list[int] | None) -> list[memoryview]:
        """The memory for or from each neighbour, by local index."""
        rows, ranks = tensor.shape[0], len(self._sockets) + 1
        if rows == 0:
            return [memoryview(bytearray())] * ranks
        array: Any = tensor.numpy()
        memory = memoryview(array).cast("B")
        row = len(memory) // rows
        if splits is None:
            share = len(memory) // ranks
            return [memory[share * place : share * (place + 1)] for place in range(ranks)]
        pieces, first = [], 0
        for count in splits:
            pieces.append(memory[first : first + count * row])
            first += count * row
        return pieces

    def _send(self, peer: int, leaving: dict[int, list[memoryview]]) -> bool:
        """Send what the socket takes; True if that was something."""
        try:
            count = self._sockets[peer].sendmsg(leaving[peer])
        except BlockingIOError:
            return False
        except OSError as error:
            raise RuntimeError(f"lost rank {self._ranks[peer]} of this node while sending to it: {error}") from error
        if not _left(leaving[peer], count):
            del leaving[peer]
        return True

    def _receive(self, peer: int, coming: dict[int, list[memoryview]], header: bytearray, expected: int) -> bool:
        """Take what has come; True if that was something."""
        try:
            count = self._sockets[peer].recvmsg_into(coming[peer])[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise RuntimeError(
                f"lost rank {self._ranks[peer]} of this node while receiving from it: {error}"
            ) from error
        if count == 0:
            raise RuntimeError(f"lost rank {self._ranks[peer]} of this node: it closed its connection")
        within_header = len(coming[peer]) == 2
        done = not _left(coming[peer], count)
        if within_header and len(coming[peer]) < 2 and (announced := HEADER.unpack(header)[0]) != expected:
            raise RuntimeError(
                f"rank {self._ranks[peer]} sends {announced} bytes to rank {self._ranks[self._local]} of its node, "
                f"which expects {expected}: splits disagree (check_splits finds which)"
            )
        if done:
            del coming[peer]
        return True

    def _wait(self, leaving: Iterable[int], coming: Iterable[int], deadline: float) -> None:
        """Until a socket takes or has something."""
        poller = select.poll()
        events = dict.fromkeys(coming, select.POLLIN)
        for peer in leaving:
            events[peer] = events.get(peer, 0) | select.POLLOUT
        for peer, event in events.items():
            poller.register(self._sockets[peer], event)
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            late = ", ".join(str(self._ranks[peer]) for peer in sorted(events))
            raise RuntimeError(f"rank(s) {late} of this node did not take part within {self._timeout_s:g} s")


def connect_node(group: dist.ProcessGroup, name: str, ranks: Sequence[int], timeout: timedelta) -> NodeSockets | None:
    """Sockets between the ranks of ``group``, if all of them can be reached so; else None on all (collective).

    Args:
        group: the ranks of a node, over gloo.
        name: unique to them.
        ranks: what errors call them, in order.
        timeout: of an exchange.
    """
    rank, size = group.rank(), group.size()
    sockets: dict[int, socket.socket] = {}
    listener = None
    # Names in the abstract namespace leave nothing behind. Other systems have none.
    if sys.platform == "linux":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.settimeout(CONNECT_SECONDS)
        try:
            listener.bind(_address(name, rank))
            listener.listen(size)
        except OSError:
            listener.close()
            listener = None
    if not _all(group, listener is not None):
        if listener is not None:
            listener.close()
        return None
    assert listener is not None, "all ranks listen"
    with listener:
        reached = _connect_lower(sockets, name, rank)
        # Only now is it known whether anybody will connect here.
        if _all(group, reached) and _all(group, _accept_higher(sockets, listener, size - 1 - rank)):
            return NodeSockets(sockets, rank, ranks, timeout)
    for connection in sockets.values():
        connection.close()
    return None


def _address(name: str, rank: int) -> bytes:
    return f"\0ciera-piper/{name}/{rank}".encode()


def _connect_lower(sockets: dict[int, socket.socket], name: str, rank: int) -> bool:
    """Connect to the neighbours with a lower index; they listen, so it does not take their attention."""
    try:
        for peer in range(rank):
            connection = sockets[peer] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(_address(name, peer))
            connection.sendall(HEADER.pack(rank))
            if not _same_user(connection):
                return False
    except OSError:
        return False
    return True


def _accept_higher(sockets: dict[int, socket.socket], listener: socket.socket, count: int) -> bool:
    try:
        for _ in range(count):
            connection, _ = listener.accept()
            connection.settimeout(CONNECT_SECONDS)
            greeting = connection.recv(HEADER.size, socket.MSG_WAITALL) if _same_user(connection) else b""
            if len(greeting) != HEADER.size:
                connection.close()
                return False
            sockets[HEADER.unpack(greeting)[0]] = connection
    except OSError:
        return False
    return True


def _same_user(connection: socket.socket) -> bool:
    """False for another user's process, which has no business here."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _all(group: dist.ProcessGroup, mine: bool) -> bool:
    """True if it is on all ranks (collective)."""
    votes = torch.tensor([int(mine)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    return bool(votes.item())


def _left(pieces: list[memoryview], count: int) -> bool:
    """Take ``count`` bytes off the front of ``pieces``; True if any are left."""
    while pieces and count >= len(pieces[0]):
        count -= len(pieces.pop(0))
    if pieces and count:
        pieces[0] = pieces[0][count:]
    return bool(pieces)
