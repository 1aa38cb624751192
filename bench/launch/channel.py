"""The line between supervisor and worker: JSON messages over an inherited socket pair.

It needs no port and no address, so it works across network namespaces, and its end tells either
side that the other is gone.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

Message = dict[str, Any]
RECEIVE_BYTES = 1 << 16


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end of the line. ``send`` may be called from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._send_lock = threading.Lock()
        self._buffer = b""

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """The worker's end, from the file descriptor that it inherited."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message whole.

        Raises:
            ChannelClosedError: nobody is there to read it.
        """
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._send_lock:
                self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> list[Message]:
        """All whole messages after one blocking read; call when readable, or to wait.

        Raises:
            ChannelClosedError: the other side closed and everything before was returned.
        """
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not data:
            raise ChannelClosedError("closed by the other side")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()


def channel_pair() -> tuple[Channel, socket.socket]:
    """The supervisor's end, and the socket whose descriptor the worker inherits."""
    ours, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    return Channel(ours), theirs
