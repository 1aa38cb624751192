"""Exchanges between ranks through sockets of their own, for tensors in host memory.

A library such as gloo hands each message from the thread that wakes for it to the thread that waits
for it, and several packets make one message. With few large messages that is nothing; with small ones
it is most of the time. Here the rank that waits is the one that the kernel wakes, a small message is
one call at each end, and all sockets of a rank are waited for at once: those to its neighbours and
those along its rail, so that what is under way on one set moves while the other is waited for.
"""

from __future__ import annotations

import select
import struct
import time
from typing import TYPE_CHECKING, Any

from ciera_piper_core.alltoall.host_blocks import pieces_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    import torch

    from ciera_piper_core.alltoall.host_blocks import Pieces

HEADER = struct.Struct("<q")
"""Before each message: its bytes. Ranks that disagree on splits learn of it, and take no message for another."""

MOST_PIECES = 1024
"""That the system takes in one call."""


class Watch:
    """One place to wait for all sockets of a rank that something is under way on."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._channels: dict[int, _Channel] = {}

    def add(self, channel: _Channel) -> None:
        """Wait for what the channel waits for, instead of what it waited for before."""
        self._channels[channel.number] = channel
        self._poll.register(channel.number, channel.events)

    def drop(self, channel: _Channel) -> None:
        """Its part is done."""
        if self._channels.pop(channel.number, None) is not None:
            self._poll.unregister(channel.number)

    def serve(self, milliseconds: float) -> bool:
        """Wait until a socket takes or has something, and move it; False if none does in time."""
        ready = self._poll.poll(milliseconds)
        channels = self._channels
        for number, events in ready:
            channels[number].serve(events)
        return bool(ready)


class DirectSockets:
    """A socket to each other rank of a set; exchanges follow each other in the same order on all ends.

    Until an exchange is complete, no other may be started.
    """

    def __init__(
        self,
        sockets: Mapping[int, socket.socket],
        own: int,
        ranks: Sequence[int],
        timeout: timedelta,
        watch: Watch | None = None,
    ) -> None:
        """
        Args:
            sockets: to each other rank, by its place in the set.
            own: this rank's place.
            ranks: what errors call the ranks, by place.
            timeout: of an exchange.
            watch: shared with other sets of this rank; None for one of its own.
        """
        self._own, self._ranks, self._size = own, tuple(ranks), len(sockets) + 1
        self._timeout_s = timeout.total_seconds()
        self._watch = watch or Watch()
        places = [(own + step) % self._size for step in range(1, self._size)]
        self._channels = [
            _Channel(sockets[place], place, (self._ranks[place], self._ranks[own]), self._watch) for place in places
        ]

    def exchange(
        self,
        out: torch.Tensor,
        send: torch.Tensor,
        recv_splits: Sequence[int] | None = None,
        send_splits: Sequence[int] | None = None,
    ) -> None:
        """As ``torch.distributed.all_to_all_single`` among the ranks of the set; ``out`` is complete on return.

        Raises:
            RuntimeError: a rank is lost or late, or sends another number of bytes than expected.
        """
        self.start(out, send, recv_splits, send_splits).wait()

    def start(
        self,
        out: torch.Tensor,
        send: torch.Tensor,
        recv_splits: Sequence[int] | None = None,
        send_splits: Sequence[int] | None = None,
    ) -> Underway:
        """Send what the sockets take at once; the rest moves whenever any set of the same watch waits."""
        sources, targets = pieces_of(send, send_splits, self._size), pieces_of(out, recv_splits, self._size)
        return self.start_pieces([[each] for each in sources], [[each] for each in targets])

    def start_pieces(self, sources: Sequence[Pieces], targets: Sequence[Pieces]) -> Underway:
        """``start`` with messages that lie in pieces of memory, by place: nothing is packed for it, or unpacked.

        Raises:
            RuntimeError: as of ``exchange``.
        """
        for channel in self._channels:
            channel.begin(sources[channel.place], targets[channel.place])
        for mine, own in zip(sources[self._own], targets[self._own], strict=True):
            if len(mine) != len(own):
                name = self._ranks[self._own]
                raise RuntimeError(f"rank {name} sends {len(mine)} bytes to itself, but expects {len(own)}")
            own[:] = mine
        return Underway(self, time.monotonic() + self._timeout_s)

    def finish(self, deadline: float) -> None:
        """Until every message of the exchange has left and come."""
        for channel in self._channels:
            while channel.events:
                left = deadline - time.monotonic()
                if left <= 0 or not self._watch.serve(left * 1000):
                    late = ", ".join(str(each.rank) for each in self._by_place() if each.events)
                    raise RuntimeError(f"rank(s) {late} did not take part within {self._timeout_s:g} s")

    def close(self) -> None:
        """Hang up; ranks that wait for this one get an error."""
        for channel in self._channels:
            channel.close()

    def _by_place(self) -> list[_Channel]:
        return sorted(self._channels, key=lambda channel: channel.place)


class Underway:
    """An exchange that was started."""

    def __init__(self, sockets: DirectSockets, deadline: float) -> None:
        self._sockets, self._deadline = sockets, deadline

    def wait(self) -> None:
        """Return when it is complete; raises as ``DirectSockets.exchange`` does."""
        self._sockets.finish(self._deadline)


class _Channel:
    """One socket, and the message each way that is under way on it."""

    def __init__(self, connection: socket.socket, place: int, ranks: tuple[int, int], watch: Watch) -> None:
        connection.setblocking(False)
        self._socket, self._watch = connection, watch
        (self.rank, self._own_rank), self.place, self.number = ranks, place, connection.fileno()
        self.events = 0
        self._sent_header, self._header = bytearray(HEADER.size), bytearray(HEADER.size)
        self._leaving: list[Any] = []
        self._coming: list[Any] = []
        self._expected, self._header_comes = 0, False

    def begin(self, source: Pieces, target: Pieces) -> None:
        """One message each way."""
        self._expected = sum(map(len, target))
        HEADER.pack_into(self._sent_header, 0, sum(map(len, source)))
        self._leaving, self._coming = [self._sent_header, *source], [self._header, *target]
        self._header_comes = True
        self.events = select.POLLIN
        if not self._send():
            self.events |= select.POLLOUT
        self._watch.add(self)

    def serve(self, events: int) -> None:
        """Move what the socket takes and has."""
        before = self.events
        # A socket that hung up or failed says why when it is used.
        if self._leaving and events & ~select.POLLIN and self._send():
            self.events &= ~select.POLLOUT
        if self._coming and events & ~select.POLLOUT and self._receive():
            self.events &= ~select.POLLIN
        if not self.events:
            self._watch.drop(self)
        elif self.events != before:
            self._watch.add(self)

    def close(self) -> None:
        self._watch.drop(self)
        self.events, self._leaving, self._coming = 0, [], []
        self._socket.close()

    def _send(self) -> bool:
        """True when the whole message has left."""
        try:
            count = self._socket.sendmsg(self._leaving[:MOST_PIECES])
        except BlockingIOError:
            return False
        except OSError as error:
            raise RuntimeError(f"lost rank {self.rank} while sending to it: {error}") from error
        return not _left(self._leaving, count)

    def _receive(self) -> bool:
        """True when the whole message has come."""
        try:
            count = self._socket.recvmsg_into(self._coming[:MOST_PIECES])[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise RuntimeError(f"lost rank {self.rank} while receiving from it: {error}") from error
        if count == 0:
            raise RuntimeError(f"lost rank {self.rank}: it closed its connection")
        pieces = len(self._coming)
        done = not _left(self._coming, count)
        if self._header_comes and len(self._coming) < pieces:
            self._header_comes = False
            if (sent := HEADER.unpack(self._header)[0]) != self._expected:
                raise RuntimeError(
                    f"rank {self.rank} sends {sent} bytes to rank {self._own_rank}, which expects {self._expected}: "
                    "splits disagree (check_splits finds which)"
                )
        return done


def _left(pieces: list[Any], count: int) -> bool:
    """Take ``count`` bytes off the front of ``pieces``; True if any are left."""
    while pieces and count >= len(pieces[0]):
        count -= len(pieces.pop(0))
    if pieces and count:
        pieces[0] = memoryview(pieces[0])[count:]
    return bool(pieces)
