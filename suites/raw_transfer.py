"""What raw transfers between the ranks reach: the capacity behind the bound of a placement.

All ranks send and receive at once, in a ring, in large pieces, several rounds; the best one counts.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from suites.placement_bound import Capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.suite import Context

ROUNDS = 8
NODE_ROUND_BYTES = 64 << 20
"""Bytes that a CPU node's ranks send in a round, all of them together."""

GPU_ROUND_BYTES = 256 << 20
"""Bytes that each GPU sends in a round."""

CHUNK_BYTES = 1 << 20
SOCKET_TIMEOUT_S = 30.0
CAPACITY, NODES = "placement/capacity", "placement/nodes"
"""Keys in ``Context.scratch``: both stay true as long as the group lives."""


def node_of_rank(context: Context) -> list[int]:
    """For each rank, the node that it is on (collective at first, then remembered)."""
    if NODES not in context.scratch:
        context.scratch[NODES] = context.group.gather_objects(context.site.node)
    nodes: list[int] = context.scratch[NODES]
    return nodes


def placement_capacity(context: Context) -> Capacity:
    """What this placement's links carry (collective at first: under a second; then remembered).

    Inside a node: TCP over its loopback on CPU, the data group's batched sends on CUDA. Between
    nodes: the declared rate where there is one, else the data group's batched sends.
    """
    if CAPACITY not in context.scratch:
        context.scratch[CAPACITY] = _measure(context)
    capacity: Capacity = context.scratch[CAPACITY]
    return capacity


def _measure(context: Context) -> Capacity:
    site, nodes = context.site, node_of_rank(context)
    inside = _neighbours(nodes, site.rank, within_node=True)
    rates = tcp_ring_rates(context, inside) if site.device == "cpu" else data_ring_rates(context, inside)
    fabrics = sum(_sum_by_node(rates, nodes).values())
    rank_port = max(rates) if site.device == "cuda" and fabrics else None
    if len(set(nodes)) == 1:
        return Capacity(fabrics, rank_port=rank_port)
    if site.node_link_bits_per_s is not None:
        link, declared = site.node_link_bits_per_s / 8, True
    else:
        across = data_ring_rates(context, _neighbours(nodes, site.rank, within_node=False))
        link, declared = max(_sum_by_node(across, nodes).values()), False
    return Capacity(fabrics, link, len(set(nodes)), rank_port, declared)


def _neighbours(nodes: Sequence[int], rank: int, within_node: bool) -> tuple[int, int] | None:
    """The ranks that ``rank`` sends to and receives from, in a ring of its node or across nodes.

    Across nodes, a ring joins the ranks that are k-th on their node. None for a rank that would
    be alone in its ring.
    """
    seen: Counter[int] = Counter()
    place_on_node = []
    for here in nodes:
        place_on_node.append(seen[here])
        seen[here] += 1
    group = nodes if within_node else place_on_node
    ring = [r for r, here in enumerate(group) if here == group[rank]]
    if len(ring) == 1:
        return None
    position = ring.index(rank)
    return ring[(position + 1) % len(ring)], ring[position - 1]


def _sum_by_node(rates: Sequence[float], nodes: Sequence[int]) -> dict[int, float]:
    totals = dict.fromkeys(nodes, 0.0)
    for rate, node in zip(rates, nodes, strict=True):
        totals[node] += rate
    return totals


def tcp_ring_rates(context: Context, neighbours: tuple[int, int] | None) -> list[float]:
    """Bytes a second that each rank sends to the next over loopback TCP, in the best round (collective).

    Args:
        neighbours: this rank's next and previous rank, which share its host; None if it takes no part.
    """
    count = max(CHUNK_BYTES, NODE_ROUND_BYTES // context.site.ranks_per_node)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOCKET_TIMEOUT_S)
        ports = context.group.gather_objects(server.getsockname()[1])
        if neighbours is None:
            return _best_round(context, lambda: None, 0)
        outgoing = socket.create_connection(("127.0.0.1", ports[neighbours[0]]), timeout=SOCKET_TIMEOUT_S)
        incoming, _ = server.accept()
    with outgoing, incoming:
        incoming.settimeout(SOCKET_TIMEOUT_S)
        return _best_round(context, lambda: _exchange(outgoing, incoming, count), count)


def _exchange(outgoing: socket.socket, incoming: socket.socket, count: int) -> None:
    """Send ``count`` bytes one way while as many come in the other way."""
    source, sink = bytes(CHUNK_BYTES), memoryview(bytearray(CHUNK_BYTES))

    def send() -> None:
        for start in range(0, count, CHUNK_BYTES):
            outgoing.sendall(source[: count - start])

    sender = threading.Thread(target=send)
    sender.start()
    left = count
    while left:
        received = incoming.recv_into(sink, min(left, CHUNK_BYTES))
        if not received:
            raise ConnectionError("the previous rank closed its connection during the raw transfer")
        left -= received
    sender.join()


def data_ring_rates(context: Context, neighbours: tuple[int, int] | None) -> list[float]:
    """Bytes a second that each rank sends to the next through the data group, in the best round (collective).

    Args:
        neighbours: this rank's next and previous rank; None if it takes no part.
    """
    import torch
    import torch.distributed as dist

    site, group = context.site, context.group
    on_gpu = site.device == "cuda"
    # NCCL wants all ranks in the first call on a group, and a ring may leave some out.
    dist.all_reduce(torch.zeros(1, device=site.device), group=group.data)
    if neighbours is None:
        return _best_round(context, lambda: None, 0)
    count = GPU_ROUND_BYTES if on_gpu else max(CHUNK_BYTES, NODE_ROUND_BYTES // site.ranks_per_node)
    send, received = (torch.zeros(count, dtype=torch.uint8, device=site.device) for _ in range(2))
    operations = [
        dist.P2POp(dist.isend, send, group=group.data, group_peer=neighbours[0]),
        dist.P2POp(dist.irecv, received, group=group.data, group_peer=neighbours[1]),
    ]

    def exchange() -> None:
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        if on_gpu:
            torch.cuda.synchronize()

    return _best_round(context, exchange, count)


def _best_round(context: Context, exchange: Callable[[], None], count: int) -> list[float]:
    """Each rank's share of its node's bytes a second, in the round with most in total (collective).

    A node's time is its slowest rank's: ranks that take turns are not all fast.
    """
    import numpy as np

    durations = np.zeros(ROUNDS)
    for number in range(ROUNDS):
        context.group.barrier()
        start = time.perf_counter()
        exchange()
        durations[number] = time.perf_counter() - start
    by_rank, nodes = context.group.gather(durations), np.asarray(node_of_rank(context))
    for node in set(nodes):
        by_rank[nodes == node] = by_rank[nodes == node].max(axis=0)
    rates = context.group.gather(np.full(1, count, dtype=np.float64)) / by_rank
    return [float(rate) for rate in rates[:, int(rates.sum(axis=0).argmax())]]
