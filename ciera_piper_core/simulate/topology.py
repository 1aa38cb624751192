"""Networks between nodes: Dragonfly, fat tree, rail-optimised fat tree, one switch, none.

A network knows which *unit* each rank enters it by (the unit is what routes depend on, mostly a
switch), its links with kind and capacity, and the links from each unit to each other. Links that
traffic spreads over (by adaptive routing or by hashing) are pooled: one link with the capacity of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from ciera_piper_core.simulate import LINK_KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

SWITCH, GLOBAL = LINK_KINDS.index("switch"), LINK_KINDS.index("global")

Routing = Literal["adaptive", "minimal"]


@dataclass(frozen=True)
class Entry:
    """How nodes enter a network.

    Attributes:
        nics: of a node. nic_bytes_s: of each, one direction.
    """

    nics: int
    nic_bytes_s: float

    @property
    def node_bytes_s(self) -> float:
        return self.nics * self.nic_bytes_s


@dataclass(frozen=True, eq=False)
class Routes:
    """Links of a network, as far as a job uses it.

    Attributes:
        unit: of each rank, int64 from 0 without a gap, shape ``(ranks,)``.
        domain: of each rank: ranks of one domain reach each other over one switch; likewise.
        kind: of each link, an index of ``LINK_KINDS``, shape ``(links,)``.
        bytes_s: of each link, in its direction, shape ``(links,)``.
        table: links from unit to unit, int32, -1 for none, shape ``(units, units, width)``.
    """

    unit: Ints
    domain: Ints
    kind: Ints
    bytes_s: NDArray[np.float64]
    table: NDArray[np.int32]


class Network(Protocol):
    """What all networks have."""

    @property
    def name(self) -> str:
        """One line for people."""
        ...

    @property
    def max_nodes(self) -> float:
        """Nodes that it connects; infinite where nothing limits it."""
        ...

    def routes(self, node: Ints, nic: Ints, entry: Entry) -> Routes:
        """The links that these ranks use.

        Args:
            node, nic: of each rank: its node, and its NIC within the node.
            entry: of each node.
        """
        ...


@dataclass(frozen=True)
class SingleNode:
    """No network: all ranks are on one node."""

    @property
    def name(self) -> str:
        return "single node"

    @property
    def max_nodes(self) -> float:
        return 1

    def routes(self, node: Ints, nic: Ints, entry: Entry) -> Routes:
        """See ``Network.routes``."""
        return _pooled(np.zeros_like(node), np.zeros_like(node), [])


@dataclass(frozen=True)
class SingleSwitch:
    """One switch of full rate: only NICs limit what nodes exchange."""

    @property
    def name(self) -> str:
        return "single switch"

    @property
    def max_nodes(self) -> float:
        return math.inf

    def routes(self, node: Ints, nic: Ints, entry: Entry) -> Routes:
        """See ``Network.routes``."""
        return _pooled(np.zeros_like(node), np.zeros_like(node), [])


@dataclass(frozen=True)
class Dragonfly:
    """Groups of switches; all switches of a group, and all groups, are connected in pairs.

    ``adaptive`` routing spreads traffic: a switch's links to its group are pooled, and so are a
    group's links to all other groups, also those that the job does not use. ``minimal`` routing takes
    the one shortest way: over the link between two switches of a group, and between groups over the
    links of that pair, which hang on one switch on either side, number ``h`` (modulo the switches)
    of group ``g`` for group ``h``.

    Attributes:
        nodes_per_switch, switches_per_group, groups: of the machine.
        link_bytes_s: of each link between switches, one direction.
        local_links: between two switches of a group. global_links: between two groups.
        routing: ``adaptive`` or ``minimal``.
        taper: what the nodes of a group send over what leaves the group, where it is given instead of
            counted from the links (adaptive routing only).

    Raises:
        ValueError: a number that is not above 0, or an unknown routing.
    """

    nodes_per_switch: int
    switches_per_group: int
    groups: int
    link_bytes_s: float
    local_links: int = 1
    global_links: int = 1
    routing: Routing = "adaptive"
    taper: float | None = None

    def __post_init__(self) -> None:
        counts = ("nodes_per_switch", "switches_per_group", "groups", "link_bytes_s", "local_links", "global_links")
        _above_zero(self, *counts, *(("taper",) if self.taper is not None else ()))
        if self.routing not in get_args(Routing):
            raise ValueError(f"a Dragonfly's routing is adaptive or minimal, not {self.routing!r}")
        if self.taper is not None and self.routing == "minimal":
            raise ValueError("a taper pools the global links, which minimal routing does not; leave it out")

    @property
    def name(self) -> str:
        return (
            f"dragonfly, {self.groups} groups of {self.switches_per_group} switches of {self.nodes_per_switch} nodes,"
            f" {self.routing} routing"
        )

    @property
    def max_nodes(self) -> float:
        return self.groups * self.switches_per_group * self.nodes_per_switch

    def taper_of(self, entry: Entry) -> float:
        """What a full group's nodes send at most over what leaves the group at most; 0 with one group."""
        if self.taper is not None:
            return self.taper
        leaving = (self.groups - 1) * self.global_links * self.link_bytes_s
        return self.switches_per_group * self.nodes_per_switch * entry.node_bytes_s / leaving if leaving else 0.0

    def routes(self, node: Ints, nic: Ints, entry: Entry) -> Routes:
        """See ``Network.routes``; a unit is a switch."""
        switch = node // self.nodes_per_switch
        if self.routing == "minimal":
            return self._minimal(switch)
        group = switch // self.switches_per_group
        local = (self.switches_per_group - 1) * self.local_links * self.link_bytes_s
        layers = [(switch, SWITCH, local)] if local else []
        if (taper := self.taper_of(entry)) > 0:
            injected = self.switches_per_group * self.nodes_per_switch * entry.node_bytes_s
            layers.append((group, GLOBAL, injected / taper))
        return _pooled(switch, switch, layers)

    def _minimal(self, switch: Ints) -> Routes:
        units, unit = np.unique(switch, return_inverse=True)
        per_group = self.switches_per_group
        group, place = np.divmod(units, per_group)
        numbers: dict[tuple[int, int, int, int], int] = {}

        def link(kind: int, a: int, b: int, where: int) -> int:
            return numbers.setdefault((kind, where, a, b), len(numbers))

        table = np.full((len(units), len(units), 3), -1, dtype=np.int32)
        for u in range(len(units)):
            for v in range(len(units)):
                g, h, a, b = int(group[u]), int(group[v]), int(place[u]), int(place[v])
                if g == h:
                    if a != b:
                        table[u, v, 0] = link(SWITCH, a, b, g)
                    continue
                out, into = h % per_group, g % per_group
                if a != out:
                    table[u, v, 0] = link(SWITCH, a, out, g)
                table[u, v, 1] = link(GLOBAL, g, h, -1)
                if into != b:
                    table[u, v, 2] = link(SWITCH, into, b, h)
        kind = np.array([key[0] for key in numbers], dtype=np.int64)
        count = np.where(kind == GLOBAL, self.global_links, self.local_links)
        return Routes(unit, unit, kind, count * float(self.link_bytes_s), table)


@dataclass(frozen=True)
class FatTree:
    """Leaf switches, pods of them, and a core; each level's links upwards are pooled.

    Attributes:
        nodes_per_leaf: on one leaf switch. leaves_per_pod: 0 for two levels, without pods.
        leaf_taper: what a leaf's nodes send at most over what leaves it; 1 for full bisection.
        pod_taper: likewise of a pod.
        nodes: of the machine; 0 for any number.

    Raises:
        ValueError: a number that is out of range.
    """

    nodes_per_leaf: int
    leaves_per_pod: int = 0
    leaf_taper: float = 1.0
    pod_taper: float = 1.0
    nodes: int = 0

    def __post_init__(self) -> None:
        _above_zero(self, "nodes_per_leaf", "leaf_taper", "pod_taper")
        if self.leaves_per_pod < 0 or self.nodes < 0:
            raise ValueError("leaves_per_pod and nodes of a fat tree must not be negative")

    @property
    def name(self) -> str:
        pods = f", {self.leaves_per_pod} leaves a pod" if self.leaves_per_pod else ""
        return f"fat tree, {self.nodes_per_leaf} nodes a leaf{pods}, taper {self.leaf_taper:g} and {self.pod_taper:g}"

    @property
    def max_nodes(self) -> float:
        return self.nodes or math.inf

    def routes(self, node: Ints, nic: Ints, entry: Entry) -> Routes:
        """See ``Network.routes``; a unit is a leaf switch."""
        leaf = node // self.nodes_per_leaf
        injected = self.nodes_per_leaf * entry.node_bytes_s
        layers = [(leaf, SWITCH, injected / self.leaf_taper)]
        if self.leaves_per_pod:
            layers.append((leaf // self.leaves_per_pod, GLOBAL, injected * self.leaves_per_pod / self.pod_taper))
        return _pooled(leaf, leaf, layers)


@dataclass(frozen=True)
class RailFatTree:
    """Each NIC of a node on a leaf switch of its own, its rail; leaves of different rails meet in the spine.

    Attributes:
        nodes_per_unit: nodes whose NICs of one number share a leaf switch (a scalable unit).
        leaf_taper: what a leaf's NICs send at most over what leaves it; 1 for full bisection.
        unit_taper: what a scalable unit's nodes send at most over what leaves the unit.
        nodes: of the machine; 0 for any number.

    Raises:
        ValueError: a number that is out of range.
    """

    nodes_per_unit: int
    leaf_taper: float = 1.0
    unit_taper: float = 1.0
    nodes: int = 0

    def __post_init__(self) -> None:
        _above_zero(self, "nodes_per_unit", "leaf_taper", "unit_taper")
        if self.nodes < 0:
            raise ValueError("the nodes of a fat tree must not be negative")

    @property
    def name(self) -> str:
        return (
            f"rail-optimised fat tree, {self.nodes_per_unit} nodes a unit,"
            f" taper {self.leaf_taper:g} and {self.unit_taper:g}"
        )

    @property
    def max_nodes(self) -> float:
        return self.nodes or math.inf

    def routes(self, node: Ints, nic: Ints, entry: Entry) -> Routes:
        """See ``Network.routes``; a unit is the leaf switch of one rail in one scalable unit."""
        scalable = node // self.nodes_per_unit
        leaf = scalable * entry.nics + nic
        layers = [
            (leaf, SWITCH, self.nodes_per_unit * entry.nic_bytes_s / self.leaf_taper),
            (scalable, GLOBAL, self.nodes_per_unit * entry.node_bytes_s / self.unit_taper),
        ]
        return _pooled(leaf, leaf, layers)


def _above_zero(network: object, *names: str) -> None:
    for name in names:
        value = getattr(network, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{type(network).__name__}: {name} must be above 0 and finite, not {value!r}")


def _pooled(unit_number: Ints, domain: Ints, layers: list[tuple[Ints, int, float]]) -> Routes:
    """Routes over pooled links: for each layer, a link out of and one into each of its parts.

    Args:
        unit_number: of each rank, any numbers.
        layers: part of each rank (ranks of one unit are in one part), kind, and bytes a second of the
            part's link in each direction. Traffic between two parts leaves one and enters the other.
    """
    first, unit = np.unique(unit_number, return_index=True, return_inverse=True)[1:]
    table = np.full((len(first), len(first), 2 * len(layers)), -1, dtype=np.int32)
    kinds: list[Ints] = []
    rates: list[NDArray[np.float64]] = []
    links = 0
    for number, (part_of_rank, kind, bytes_s) in enumerate(layers):
        parts, part = np.unique(part_of_rank[first], return_inverse=True)
        leaves = part[:, np.newaxis] != part
        table[..., 2 * number] = np.where(leaves, links + part[:, np.newaxis], -1)
        table[..., 2 * number + 1] = np.where(leaves, links + len(parts) + part, -1)
        links += 2 * len(parts)
        kinds.append(np.full(2 * len(parts), kind, dtype=np.int64))
        rates.append(np.full(2 * len(parts), bytes_s, dtype=np.float64))
    empty = np.empty(0, dtype=np.int64)
    kind_of_link = np.concatenate([empty, *kinds])
    return Routes(
        unit, np.unique(domain, return_inverse=True)[1], kind_of_link, np.concatenate([empty * 1.0, *rates]), table
    )
