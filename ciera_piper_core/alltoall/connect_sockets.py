"""Sockets between the ranks of a gloo group: local ones within a node, TCP along a rail.

Every rank listens, connects to those with a lower place, and greets them; both prove that they know
what rank 0 of the group has told its ranks, so that nobody else takes part. Where one of them cannot,
all do without.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.direct_sockets import DirectSockets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from ciera_piper_core.alltoall.direct_sockets import Watch

    Address = bytes | tuple[Any, ...]
    """As sockets of its family take it."""

CONNECT_SECONDS = 30.0

GREETING_SECONDS = 2.0
"""For who has connected to say who it is: a stranger may say nothing."""

SECRET_BYTES = 32
_PLACE = struct.Struct("<q")
_PROOF_BYTES = 32

INTERFACE_VARIABLE, TRANSPORT_VARIABLE = "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"


def connect_node(
    group: dist.ProcessGroup, ranks: Sequence[int], timeout: timedelta, watch: Watch
) -> DirectSockets | None:
    """Local sockets between the ranks of ``group``, which share a node; None on all where one cannot (collective).

    Args:
        group: over gloo.
        ranks: what errors call them, in order.
        timeout: of an exchange.
        watch: of this rank's sockets.
    """
    return _connect(group, _listen_locally(), ranks, timeout, watch)


def connect_rail(
    group: dist.ProcessGroup, ranks: Sequence[int], timeout: timedelta, watch: Watch
) -> DirectSockets | None:
    """As ``connect_node``, over TCP and the interface that gloo uses, for ranks on several nodes."""
    return _connect(group, _listen_for_tcp(), ranks, timeout, watch)


def _connect(
    group: dist.ProcessGroup,
    listener: socket.socket | None,
    ranks: Sequence[int],
    timeout: timedelta,
    watch: Watch,
) -> DirectSockets | None:
    place, size = group.rank(), group.size()
    mine = None if listener is None else (listener.family, listener.getsockname(), secrets.token_bytes(SECRET_BYTES))
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, mine, group=group)
    if listener is None or None in everyone:
        if listener is not None:
            listener.close()
        return None
    meeting = _Meeting(place, everyone[0][2])
    with listener:
        reached = meeting.connect([(family, address) for family, address, _ in everyone[:place]])
        # Only now is it known whether anybody will connect here.
        met = _all(group, reached) and _all(group, meeting.accept(listener, size - 1 - place))
        if met and _all(group, meeting.check_answers()):
            return DirectSockets(meeting.sockets, place, ranks, timeout, watch)
    for connection in meeting.sockets.values():
        connection.close()
    return None


class _Meeting:
    """This rank's connections as they come about.

    Attributes:
        sockets: by place.
    """

    def __init__(self, place: int, secret: bytes) -> None:
        self.sockets: dict[int, socket.socket] = {}
        self._place, self._secret = place, secret

    def connect(self, addresses: Sequence[tuple[int, Address]]) -> bool:
        """Greet the ranks with a lower place; they listen, so it does not take their attention."""
        try:
            for peer, (family, address) in enumerate(addresses):
                connection = self.sockets[peer] = socket.socket(family, socket.SOCK_STREAM)
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(address)
                _at_once(connection)
                connection.sendall(_PLACE.pack(self._place) + self._proof(self._place, peer))
        except OSError:
            return False
        return True

    def accept(self, listener: socket.socket, count: int) -> bool:
        """Take in so many ranks with a higher place, and answer them; who is none of them is sent away."""
        deadline = time.monotonic() + CONNECT_SECONDS
        expected = set(range(self._place + 1, self._place + 1 + count))
        try:
            while expected:
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                connection, _ = listener.accept()
                peer = self._greeted_by(connection)
                if peer not in expected:
                    connection.close()
                    continue
                expected.remove(peer)
                self.sockets[peer] = connection
                _at_once(connection)
                connection.sendall(self._proof(self._place, peer))
        except OSError:
            return False
        return True

    def check_answers(self) -> bool:
        """Whether those that were greeted are who they seem to be."""
        try:
            return all(
                hmac.compare_digest(_received(self.sockets[peer], _PROOF_BYTES), self._proof(peer, self._place))
                for peer in range(self._place)
            )
        except OSError:
            return False

    def _greeted_by(self, connection: socket.socket) -> int | None:
        """The place of who has connected; None for strangers."""
        connection.settimeout(GREETING_SECONDS)
        try:
            greeting = _received(connection, _PLACE.size + _PROOF_BYTES)
        except OSError:
            return None
        connection.settimeout(CONNECT_SECONDS)
        peer: int = _PLACE.unpack(greeting[: _PLACE.size])[0]
        return peer if hmac.compare_digest(greeting[_PLACE.size :], self._proof(peer, self._place)) else None

    def _proof(self, speaker: int, listener: int) -> bytes:
        """That the speaker knows the secret, worth something to this listener only."""
        return hmac.digest(self._secret, b"%d to %d" % (speaker, listener), "sha256")


def _listen_locally() -> socket.socket | None:
    # Names in the abstract namespace leave nothing behind. Other systems have none.
    return _listening(socket.AF_UNIX, f"\0ciera-piper/{secrets.token_hex(16)}".encode()) if _on_linux() else None


def _listen_for_tcp() -> socket.socket | None:
    # What gloo would encrypt is not to be sent in the clear.
    if not _on_linux() or os.environ.get(TRANSPORT_VARIABLE, "TCP").upper() != "TCP":
        return None
    for family, address in _own_addresses():
        if (listener := _listening(family, address)) is not None:
            return listener
    return None


def _on_linux() -> bool:
    return sys.platform == "linux"


def _listening(family: int, address: Address) -> socket.socket | None:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        return None
    return listener


def _own_addresses() -> list[tuple[int, Address]]:
    """Where gloo would listen: on the interface that its variable names, else where the host's name leads."""
    names = os.environ.get(INTERFACE_VARIABLE, "")
    families = (socket.AF_INET, socket.AF_INET6)
    if names:
        import psutil

        found = psutil.net_if_addrs().get(names.split(",")[0], [])
        return [(each.family, (each.address, 0)) for family in families for each in found if each.family == family]
    try:
        named = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in named if family in families]


def _at_once(connection: socket.socket) -> None:
    """Do not keep a short message back to wait for more."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _received(connection: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
        OSError: the other end hung up, or is late.
    """
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise ConnectionError("the other end hung up")
        data += more
    return data


def _all(group: dist.ProcessGroup, mine: bool) -> bool:
    """True if it is on all ranks (collective)."""
    votes = torch.tensor([int(mine)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    return bool(votes.item())
