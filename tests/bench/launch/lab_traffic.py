"""TCP transfers between nodes of a lab, timed until the receiver has every byte.

As a script: ``receive ADDRESS`` prints its port, then takes messages until the connection closes;
``send ADDRESS PORT BYTES...`` waits for a line on stdin, sends each message and prints when.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.launch.lab import Lab

HEADER_BYTES = 8
CHUNK_BYTES = 2**20


class Transfer(NamedTuple):
    """When a message was sent and the answer to its last byte was there; one clock for all nodes."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def transfers(lab: Lab, routes: list[tuple[int, int]], sizes: list[int]) -> list[list[Transfer]]:
    """Each message on each route from node to node; all routes send at about the same time."""
    processes = []
    senders = []
    try:
        for source, target in routes:
            address = lab.node_address(target)
            receiver = _start(lab, target, ["receive", address])
            processes.append(receiver)
            port = receiver.stdout.readline().strip()
            sender = _start(lab, source, ["send", address, port, *map(str, sizes)])
            processes.append(sender)
            assert sender.stdout.readline() == "ready\n"
            senders.append(sender)
        for sender in senders:
            sender.stdin.write("go\n")
            sender.stdin.flush()
        return [[Transfer(*times) for times in json.loads(sender.communicate(timeout=60)[0])] for sender in senders]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def sent_bytes(lab: Lab, node: int, interface: str) -> int:
    """Bytes that an interface of a node has sent so far."""
    command = lab.node_command(node, ["cat", "/proc/net/dev"])
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise AssertionError(f"node {node} has no interface {interface}")


def _start(lab: Lab, node: int, arguments: list[str]) -> subprocess.Popen[str]:
    command = lab.node_command(node, [sys.executable, __file__, *arguments])
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _receive(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection = server.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    chunk = bytearray(CHUNK_BYTES)
    while header := connection.recv(HEADER_BYTES, socket.MSG_WAITALL):
        left = int.from_bytes(header, "little")
        while left:
            left -= connection.recv_into(chunk, min(left, CHUNK_BYTES))
        connection.sendall(b"k")


def _send(address: str, port: int, sizes: list[int]) -> None:
    connection = socket.create_connection((address, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    times = []
    for size in sizes:
        message = size.to_bytes(HEADER_BYTES, "little") + bytes(size)
        start = time.monotonic()
        connection.sendall(message)
        connection.recv(1)
        times.append((start, time.monotonic()))
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        _receive(sys.argv[2])
    else:
        _send(sys.argv[2], int(sys.argv[3]), [int(size) for size in sys.argv[4:]])
