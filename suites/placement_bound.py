"""How fast a placement of ranks could exchange data at best: least bytes over each kind of link, and their capacity.

Three things limit an exchange. A rank's port, where it has one of its own (a GPU). A node's link to
the other nodes, in each direction. And all together: every byte from one rank to another travels
inside a node or over a node's link, and no faster than with all of them busy. The bound is the
largest of the three times. It charges no latency, and assumes that no switch reduces on the way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.definitions import Ceiling, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

MEASURED_MARGIN = 4.0
"""How much faster than a measured capacity is impossible. Raw transfers and the exchange are measured
at different moments of a noisy machine, but a value from an unfinished kernel is beyond by far more."""

DECLARED_MARGIN = 1.05
"""How much faster than a declared link rate is impossible."""

LINK_BURST_BYTES, LINK_BURST_S = 1 << 20, 850e-6
"""What a shaped link may let through at once, beyond its rate (the larger of the two, the time at the link's rate):
left out of the impossible, not of the bound."""


@dataclass(frozen=True)
class LeastBytes:
    """What an operation must move at least, whatever the algorithm.

    Attributes:
        total: from one rank to another, over all ranks.
        node_link: over the link of the node that has most to carry, in its busier direction.
        rank: in or out of the rank that has most to carry, in its busier direction.
    """

    total: float
    node_link: float
    rank: float


@dataclass(frozen=True)
class Capacity:
    """What the links carry at best, bytes a second.

    Attributes:
        fabrics: inside of all nodes together, every rank sending and receiving at once.
        node_link: of one node's link in one direction; None where all ranks share a node.
        nodes: in the group.
        rank_port: of one rank in one direction; None where ranks have no port of their own (CPU).
        declared: ``node_link`` is the rate of a shaped link, not measured.
    """

    fabrics: float
    node_link: float | None = None
    nodes: int = 1
    rank_port: float | None = None
    declared: bool = False


def least_bytes(op: str, size: int, node_of_rank: Sequence[int]) -> LeastBytes:
    """The least bytes of a collective operation.

    Args:
        op: a name of ``bench.definitions.BUSBW_FACTORS``; ``send_recv`` is a ring in order of rank.
        size: S of the bandwidth definitions, bytes.
        node_of_rank: for each rank, the node that it is on.

    Raises:
        ValueError: an unknown operation.
    """
    ranks, on_node = len(node_of_rank), Counter(node_of_rank)
    nodes = len(on_node)
    share = size / ranks
    if op in ("all_gather", "reduce_scatter"):
        # A node takes in every share that it lacks (reduce_scatter: gives out its part of each that is not its own).
        crossing = max(ranks - here for here in on_node.values())
        return LeastBytes(ranks * (ranks - 1) * share, crossing * share, (ranks - 1) * share)
    if op == "all_reduce":
        return LeastBytes(2 * (ranks - 1) * size, 2 * size * (nodes - 1) / nodes, 2 * (ranks - 1) * share)
    if op == "all_to_all":
        crossing = max(here * (ranks - here) for here in on_node.values())
        return LeastBytes(ranks * (ranks - 1) * share, crossing * share, (ranks - 1) * share)
    if op == "broadcast":
        return LeastBytes((ranks - 1) * size, size if nodes > 1 else 0, size)
    if op == "send_recv":
        out = Counter(here for rank, here in enumerate(node_of_rank) if node_of_rank[(rank + 1) % ranks] != here)
        # In a ring, a node is entered as often as it is left.
        return LeastBytes(ranks * size, max(out.values(), default=0) * size, size)
    raise ValueError(f"no bound is known for {op!r}")


def least_bytes_of_traffic(matrix: Any, node_of_rank: Sequence[int]) -> LeastBytes:
    """The least bytes of an all-to-all.

    Args:
        matrix: bytes from each rank to each, shape ``(ranks, ranks)``, sender by receiver (a numpy
            array); what a rank keeps for itself crosses nothing.
        node_of_rank: for each rank, the node that it is on.
    """
    import numpy as np

    node = np.asarray(node_of_rank)
    between_ranks = matrix * ~np.eye(len(node), dtype=bool)
    between_nodes = matrix * (node[:, np.newaxis] != node)
    links = [
        max(int(between_nodes[node == here].sum()), int(between_nodes[:, node == here].sum()))
        for here in np.unique(node)
    ]
    rank = max(int(between_ranks.sum(axis=0).max()), int(between_ranks.sum(axis=1).max()))
    return LeastBytes(int(between_ranks.sum()), max(links), rank)


def bound_seconds(least: LeastBytes, capacity: Capacity) -> float:
    """The least time that the placement allows."""
    return max(_seconds(least, capacity))


def bounded_work(size: int, busbw_factor: float, least: LeastBytes, capacity: Capacity) -> Work:
    """The work of an exchange with its bound, and ceilings beyond which a result is nonsense.

    Args:
        size: S of the bandwidth definitions, bytes.
        busbw_factor: from algbw to busbw.
    """
    port, link, together = _seconds(least, capacity)
    impossible = max(port, together) / MEASURED_MARGIN
    source = f"{MEASURED_MARGIN:g} times what raw transfers between these ranks reached"
    if capacity.declared and capacity.node_link is not None:
        burst = max(LINK_BURST_BYTES, LINK_BURST_S * capacity.node_link)
        beyond_burst = max(0.0, least.node_link - burst) / capacity.node_link / DECLARED_MARGIN
        if beyond_burst > impossible:
            impossible, source = beyond_burst, f"the declared link rate + {DECLARED_MARGIN - 1:.0%}"
    else:
        impossible = max(impossible, link / MEASURED_MARGIN)
    bound = bound_seconds(least, capacity)
    ceilings = {}
    if impossible > 0:
        ceilings = {
            "algbw": Ceiling(size / impossible / 1e9, source),
            "busbw": Ceiling(size / impossible / 1e9 * busbw_factor, source),
            "share_of_bound": Ceiling(bound / impossible, source),
        }
    return Work(bytes=size, busbw_factor=busbw_factor, bound_seconds=bound, ceilings=ceilings)


def _seconds(least: LeastBytes, capacity: Capacity) -> tuple[float, float, float]:
    """Least time for the rank with most to carry, for the node with most, and for all bytes together."""
    link = capacity.node_link or 0.0
    # What a rank exchanges with other nodes need not pass its port in the fabric.
    port = least.rank / (capacity.rank_port + link) if capacity.rank_port else 0.0
    together = least.total / (capacity.fabrics + capacity.nodes * link)
    return port, least.node_link / link if link else 0.0, together
