"""How long exchanges take: all-to-all of experts, ring and tree collectives, and sends between stages.

A group of ``ranks`` lies on as few nodes as possible, ``ranks_per_node`` of it on each. All devices
of a node communicate at the same time (other groups do likewise), so each has its share of the
NICs. With bytes ``B`` for all ranks together from one device, ``n`` ranks, ``r`` of them on a node
of ``g`` devices, and ``q = g / NICs``:

- intra-node share: ``B (r-1)/n`` over a device's rate to its node;
- inter-node share: ``B (n-r)/n * q`` over a NIC's rate; what leaves a group of nodes, ``taper`` times that;
- messages: a named cost for each one that is sent after another.

``flat``: one message to each peer; the two shares add up; many peers beyond the switch slow the NIC
(``Platform.congestion``). ``two_phase``: inside the node to the rank with the receiver's place, then
between equal places: ``r-1`` and ``N-1`` messages. ``halo``: (1) inside the node, (2) between equal
places, ``N-1`` messages, (3) inside the node again; 1 runs beside 2, and both shares of 2 and 3 are
packed in memory once.

Where a profile has a curve of exactly these ranks and nodes, the curve is the answer. Else the link
of the operation's largest measured group, or of the specification, goes into the formulas.
Nothing overlaps with computation unless :class:`Overlap` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ciera_piper_core.platforms.platform import Term

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.platforms.collective_curves import CollectiveCurve, Link
    from ciera_piper_core.platforms.platform import Platform

    Array = NDArray[np.float64]

AllToAll = Literal["flat", "two_phase", "halo"]
ALL_TO_ALL: tuple[AllToAll, ...] = get_args(AllToAll)

RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""By operation, how often the data goes around the ring."""


@dataclass(frozen=True)
class Overlap:
    """Share of each communication that hides behind computation, from 0 to 1, declared and not predicted.

    Attributes:
        all_to_all: of the experts. point_to_point: between stages. tensor_parallel: inside layers.
        data_parallel: gradients and weights of replicas and shards.

    Raises:
        ValueError: a share outside of 0 to 1.
    """

    all_to_all: float = 0.0
    point_to_point: float = 0.0
    tensor_parallel: float = 0.0
    data_parallel: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) <= 1:
                raise ValueError(f"the overlap of {field.name} must be from 0 to 1, not {getattr(self, field.name)!r}")

    def describe(self) -> str:
        """One line for reports."""
        shares = ", ".join(f"{field.name} {getattr(self, field.name):.0%}" for field in fields(self))
        return f"hidden behind computation (declared): {shares}"


def exposed_seconds(communication: ArrayLike, computation: ArrayLike, overlap: float) -> Array:
    """What is left of a communication when ``overlap`` of it hides, and no more than the computation beside it."""
    whole = np.asarray(communication, dtype=np.float64)
    return np.asarray(whole - np.minimum(overlap * whole, computation))


def dispatch_bytes(tokens: ArrayLike, top_k: int, hidden: int, element_bytes: int = 2) -> Array:
    """Bytes of the rows that a device routes, to itself and others: ``2 b s k d`` for ``tokens = b s``."""
    return np.asarray(element_bytes * np.asarray(tokens, dtype=np.float64) * top_k * hidden)


def all_to_all_seconds(
    platform: Platform,
    bytes_per_gpu: ArrayLike,
    ranks: ArrayLike,
    algorithm: AllToAll = "flat",
    load_factor: ArrayLike = 1.0,
    *,
    ranks_per_node: ArrayLike | None = None,
) -> Array:
    """One all-to-all (a dispatch, or a combine); 0 for one rank.

    Args:
        platform: whose links count.
        bytes_per_gpu: that each device has for all ranks together, itself included
            (:func:`dispatch_bytes`); ``(n-1)/n`` of it leaves the device.
        ranks: of the group (EP).
        algorithm: one of ``ALL_TO_ALL``.
        load_factor: bytes of the busiest device over the mean.
        ranks_per_node: of the group; as many as the node holds if None.

    Raises:
        ValueError: an unknown algorithm, a number out of range, or nodes are crossed and nothing is
            known of the network between them.
    """
    parts = all_to_all_parts(platform, bytes_per_gpu, ranks, algorithm, load_factor, ranks_per_node=ranks_per_node)
    return np.asarray(sum(parts.values()))


def all_to_all_parts(
    platform: Platform,
    bytes_per_gpu: ArrayLike,
    ranks: ArrayLike,
    algorithm: AllToAll = "flat",
    load_factor: ArrayLike = 1.0,
    *,
    ranks_per_node: ArrayLike | None = None,
) -> dict[str, Array]:
    """The terms of :func:`all_to_all_seconds`, which add up to it.

    Returns:
        ``intra_node``, ``inter_node``, ``messages``, ``packing``; ``overlapped``, not above 0, for
        phases side by side; ``measured`` in place of all others where a curve is the answer.
    """
    if algorithm not in ALL_TO_ALL:
        raise ValueError(f"unknown all-to-all {algorithm!r}; known: {', '.join(ALL_TO_ALL)}")
    load = np.asarray(load_factor, dtype=np.float64)
    if not np.all(load >= 1):
        raise ValueError(f"load_factor must be at least 1, not {load.min():g}")
    group = _Group.place(platform, bytes_per_gpu, ranks, ranks_per_node)
    group = _Group(*np.broadcast_arrays(group.bytes * load, group.ranks, group.per_node))
    inside = platform.link("all_to_all", crosses=False)
    between = _network(platform, "all_to_all", group)
    n, r, data = group.ranks, group.per_node, group.bytes
    nodes = np.ceil(n / r)
    away = data * (n - r) / n
    network = _network_seconds(platform, group, away, between)
    if algorithm == "flat":
        peers = np.maximum(n - platform.single_hop_nodes * r, 0.0)
        terms = {
            "intra_node": data * (r - 1) / n / inside.bytes_s,
            "inter_node": network * platform.congestion.factor(peers),
            "messages": (r - 1) * inside.message_seconds + (n - r) * between.message_seconds,
        }
    elif algorithm == "two_phase":
        terms = {
            "intra_node": data * (r - 1) / r / inside.bytes_s,
            "inter_node": network,
            "messages": (r - 1) * inside.message_seconds + (nodes - 1) * between.message_seconds,
            "packing": platform.rates.memory_seconds(2 * data) * (nodes > 1),
        }
    else:
        terms = _halo(platform, group, inside, between, network)
    return _with_curves(platform, "all_to_all", group, algorithm, terms)


def point_to_point_seconds(
    platform: Platform, bytes_sent: ArrayLike, crosses_node: ArrayLike, *, side_by_side: float | None = None
) -> Array:
    """A device sends to another, while all devices of its node do likewise.

    Args:
        bytes_sent: by one device; ``2 b_mu s d`` between stages.
        crosses_node: whether the other is on another node.
        side_by_side: devices of the node that send at once; all of them if None.
    """
    size = np.asarray(bytes_sent, dtype=np.float64)
    crosses = np.asarray(crosses_node, dtype=bool)
    inside = platform.link("send_recv", crosses=False)
    seconds = inside.message_seconds + size / inside.bytes_s
    if crosses.any():
        between = platform.link("send_recv", crosses=True)
        senders = platform.gpus_per_node if side_by_side is None else side_by_side
        # One sender has one NIC at most.
        share = max(senders / platform.nics_per_node, min(1.0, platform.gpus_per_nic))
        seconds = np.where(crosses, between.message_seconds + size * share / between.bytes_s, seconds)
    return np.asarray(np.broadcast_to(seconds, np.broadcast_shapes(size.shape, crosses.shape)))


def all_reduce_seconds(
    platform: Platform, buffer_bytes: ArrayLike, ranks: ArrayLike, *, ranks_per_node: ArrayLike | None = None
) -> Array:
    """The sum of a buffer over ranks, by ring or tree, whichever is faster; 0 for one rank.

    Args:
        buffer_bytes: of the whole buffer on each device.
        ranks, ranks_per_node: as of :func:`all_to_all_seconds`.
    """
    return _collective(platform, "all_reduce", buffer_bytes, ranks, ranks_per_node)


def all_gather_seconds(
    platform: Platform, total_bytes: ArrayLike, ranks: ArrayLike, *, ranks_per_node: ArrayLike | None = None
) -> Array:
    """Every device gets what all have, by ring or tree; ``total_bytes`` is the total over ranks."""
    return _collective(platform, "all_gather", total_bytes, ranks, ranks_per_node)


def reduce_scatter_seconds(
    platform: Platform, total_bytes: ArrayLike, ranks: ArrayLike, *, ranks_per_node: ArrayLike | None = None
) -> Array:
    """Every device gets its part of the sum; ``total_bytes`` is the whole buffer on each device."""
    return _collective(platform, "reduce_scatter", total_bytes, ranks, ranks_per_node)


def origin(
    platform: Platform,
    op: str,
    size: float,
    ranks: int,
    *,
    algorithm: AllToAll = "flat",
    ranks_per_node: int | None = None,
) -> Term:
    """How the time of one operation of ``size`` bytes is known, as a plan prints it."""
    group = _Group.place(platform, size, ranks, ranks_per_node)
    nodes = int(np.ceil(group.ranks / group.per_node))
    if ranks == 1:
        return Term("specified", "one rank: nothing to exchange")
    if curve := platform.collectives.find(op, ranks, nodes, algorithm):
        return Term("measured", f"{curve.source}{_beyond(curve, size)}")
    term = platform.terms["intra_node" if nodes == 1 else "inter_node"]
    curve = platform.collectives.representative(op, crosses=nodes > 1)
    if curve is None:
        return term
    extrapolated = ranks > curve.ranks or nodes > curve.nodes
    how = "extrapolated from" if extrapolated else "by message cost and rate of"
    return Term("measured", f"{how} {curve.source}{_beyond(curve, size)}")


def _beyond(curve: CollectiveCurve, size: float) -> str:
    return "" if curve.seconds.covers(size).all() else f"; extrapolated: {size:.4g} bytes were not measured"


@dataclass(frozen=True)
class _Group:
    """Bytes, ranks, and ranks on a node; arrays of one shape."""

    bytes: Array
    ranks: Array
    per_node: Array

    @classmethod
    def place(cls, platform: Platform, size: ArrayLike, ranks: ArrayLike, ranks_per_node: ArrayLike | None) -> _Group:
        data, n = np.asarray(size, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
        if not np.all(n >= 1) or not np.all(data >= 0):
            raise ValueError("an exchange needs at least 1 rank, and bytes that are not negative")
        most = np.minimum(n, platform.gpus_per_node)
        r = most if ranks_per_node is None else np.asarray(ranks_per_node, dtype=np.float64)
        if not np.all((r >= 1) & (r <= platform.gpus_per_node)):
            raise ValueError(f"ranks_per_node must be 1 to {platform.gpus_per_node}, the devices of a node")
        return cls(*np.broadcast_arrays(data, n, np.minimum(r, n)))

    @property
    def crosses(self) -> NDArray[np.bool_]:
        return np.asarray(self.ranks > self.per_node)


def _network(platform: Platform, op: str, group: _Group) -> Link:
    """The link between nodes; one that is not crossed may be unknown, then any stands for it."""
    return platform.link(op, crosses=bool(group.crosses.any()))


def _network_seconds(platform: Platform, group: _Group, away: Array, link: Link) -> Array:
    """Seconds that a device's bytes to other nodes take on its share of the NICs, and out of a group of nodes."""
    local_nodes = platform.group_nodes * group.per_node
    beyond = group.bytes * np.maximum(group.ranks - local_nodes, 0.0) / group.ranks
    return np.asarray(np.maximum(away, platform.taper * beyond) * platform.gpus_per_nic / link.bytes_s)


def _halo(platform: Platform, group: _Group, inside: Link, between: Link, network: Array) -> dict[str, Array]:
    """Three phases, of which the first runs beside the second."""
    n, r, data = group.ranks, group.per_node, group.bytes
    nodes = np.ceil(n / r)
    hop = (r - 1) * inside.message_seconds
    first = data * (r - 1) / n / inside.bytes_s
    # What came from other nodes has (r-1)/r of its rows for other places.
    third = data * (n - r) / n * (r - 1) / r / inside.bytes_s
    crosses = group.crosses
    second_messages = (nodes - 1) * between.message_seconds
    return {
        "intra_node": first + third,
        "inter_node": network,
        "messages": hop + crosses * hop + second_messages,
        # The rows for other nodes are gathered before the second phase and scattered after the third.
        "packing": platform.rates.memory_seconds(4 * data * (n - r) / n),
        "overlapped": -np.minimum(first + hop, network + second_messages),
    }


def _collective(
    platform: Platform, op: str, size: ArrayLike, ranks: ArrayLike, ranks_per_node: ArrayLike | None
) -> Array:
    """A ring around all ranks, or a tree over nodes: whichever is faster."""
    group = _Group.place(platform, size, ranks, ranks_per_node)
    inside, between = platform.link(op, crosses=False), _network(platform, op, group)
    steps, n, r = RING_STEPS[op], group.ranks, group.per_node
    crosses = group.crosses
    carried = steps * group.bytes * (n - 1) / n
    # A node's NICs carry one ring a group on it; a ring leaves a group of nodes over one link, so no taper.
    groups_on_node = platform.gpus_per_node / r
    network = crosses * carried * groups_on_node / platform.nics_per_node / between.bytes_s
    data = np.maximum(carried / inside.bytes_s * (r > 1), network)
    slowest = np.where(crosses, np.maximum(between.message_seconds, inside.message_seconds), inside.message_seconds)
    ring = steps * (n - 1) * slowest
    tree = steps * ((r - 1) * inside.message_seconds + np.ceil(np.log2(n / r)) * between.message_seconds)
    terms = {"data": data, "messages": np.minimum(ring, tree)}
    return np.asarray(sum(_with_curves(platform, op, group, "flat", terms).values()))


def _with_curves(
    platform: Platform, op: str, group: _Group, algorithm: str, terms: dict[str, Array]
) -> dict[str, Array]:
    """``terms``, but ``measured`` alone wherever exactly these ranks on these nodes were measured."""
    if not platform.collectives.curves:
        return terms
    nodes = np.ceil(group.ranks / group.per_node)
    measured, known = np.zeros(group.ranks.shape), np.zeros(group.ranks.shape, dtype=bool)
    for n, on in np.unique(np.stack([group.ranks.ravel(), nodes.ravel()], axis=1), axis=0):
        curve = platform.collectives.find(op, int(n), int(on), algorithm)
        if curve is not None:
            here = (group.ranks == n) & (nodes == on) & (group.bytes > 0)
            known |= here
            measured[here] = curve.seconds.seconds_at(group.bytes[here])
    if not known.any():
        return terms
    return {name: np.where(known, 0.0, term) for name, term in terms.items()} | {"measured": measured}
