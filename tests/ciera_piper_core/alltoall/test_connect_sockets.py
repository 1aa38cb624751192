"""How ranks find each other's sockets: through the interface of gloo, past strangers, or not at all."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall import connect_sockets
from ciera_piper_core.alltoall.connect_sockets import connect_node, connect_rail
from ciera_piper_core.alltoall.direct_sockets import Watch
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.suite import Context

LIMIT = timedelta(seconds=20)
WAYS = {"node": connect_node, "rail": connect_rail}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_of_a_world_find_each_other(way: str, tmp_path: Path) -> None:
    def body(context: Context) -> list[int]:
        assert context.group.data is not None
        sockets = WAYS[way](context.group.data, range(4), LIMIT, Watch())
        assert sockets is not None
        out = torch.zeros(4, dtype=torch.int64)[:, None]
        sockets.exchange(out, torch.arange(4)[:, None] + 10 * context.group.rank)
        sockets.close()
        numbers: list[int] = out.flatten().tolist()
        return numbers

    assert run_world(4, body, tmp_path) == [[rank, 10 + rank, 20 + rank, 30 + rank] for rank in range(4)]


def no_sockets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connect_sockets.sys, "platform", "plan9")


def no_interface(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")


def encrypted(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS")


def out_of_reach(patch: pytest.MonkeyPatch) -> None:
    """It listens where nobody can connect any more."""
    listening = connect_sockets._listening

    def closed(family: int, address: connect_sockets.Address) -> socket.socket | None:
        listener = listening(family, address)
        assert listener is not None
        listener.shutdown(socket.SHUT_RDWR)
        return listener

    patch.setattr(connect_sockets, "_listening", closed)


def another_secret(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connect_sockets, "CONNECT_SECONDS", 1.0)
    meeting = connect_sockets._Meeting
    patch.setattr(connect_sockets, "_Meeting", lambda place, secret: meeting(place, secret[::-1]))


@pytest.mark.parametrize(
    ("way", "fault"),
    [
        ("node", no_sockets),
        ("node", another_secret),
        ("rail", no_interface),
        ("rail", encrypted),
        ("rail", out_of_reach),
        ("rail", another_secret),
    ],
)
def test_all_do_without_where_one_cannot(way: str, fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    def body(context: Context) -> bool:
        assert context.group.data is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connect_sockets, "CONNECT_SECONDS", 3.0)
            if context.group.rank == 1:
                fault(patch)
            return WAYS[way](context.group.data, range(3), LIMIT, Watch()) is None

    assert run_world(3, body, tmp_path) == [True] * 3


def test_strangers_are_sent_away_and_ranks_still_meet(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[bool, int]:
        assert context.group.data is not None
        turned_away = []
        with pytest.MonkeyPatch.context() as patch:
            if context.group.rank == 0:
                listening = connect_sockets._listening
                patch.setattr(connect_sockets, "GREETING_SECONDS", 0.2)

                def visited(family: int, address: connect_sockets.Address) -> socket.socket | None:
                    listener = listening(family, address)
                    assert listener is not None
                    # They are first in the queue: one says nothing, one talks, one hangs up, one claims to be rank 1.
                    for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n" * 4, None, (1).to_bytes(8, "little") + bytes(32)):
                        stranger = socket.create_connection(listener.getsockname())
                        if greeting is None:
                            stranger.close()
                            continue
                        stranger.sendall(greeting)
                        thread = threading.Thread(target=lambda end=stranger: turned_away.append(_hears(end)))
                        thread.start()
                    return listener

                patch.setattr(connect_sockets, "_listening", visited)
            sockets = connect_rail(context.group.data, range(2), LIMIT, Watch())
        if sockets is None:
            return False, 0
        out = torch.zeros(2, 1, dtype=torch.int64)
        sockets.exchange(out, torch.full((2, 1), context.group.rank))
        sockets.close()
        deadline = time.monotonic() + 10
        while context.group.rank == 0 and len(turned_away) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        return out.flatten().tolist() == [0, 1], sum(not heard for heard in turned_away)

    assert run_world(2, body, tmp_path) == [(True, 3), (True, 0)]


def _hears(end: socket.socket) -> bytes:
    """All that is said to this end until it is hung up."""
    with end:
        end.settimeout(10)
        try:
            return end.recv(100)
        except ConnectionError:
            return b""
