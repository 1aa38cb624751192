"""What the oracle is asked: machines, traffic and algorithms, in plain Python that needs no other package.

SimGrid (``oracle.py``) and our engines (``compare.py``) are asked the same from here. Nothing here
computes a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RANKS = (16, 64, 128, 256)
ALGORITHMS = ("flat", "two_phase", "halo_v0", "halo_v1", "halo_v2")
TRAFFIC = ("uniform", "hot_rank", "zipf", "idle_rank", "scrambled")
BYTES_PER_PEER = 1 << 20

MOST_SCRAMBLED = 128
"""Ranks up to which scrambled traffic is asked: it has most events, and would take SimGrid a quarter of an hour."""


@dataclass(frozen=True)
class Node:
    """A node: bytes a second, one direction.

    Attributes:
        gpus: of it. port_bytes_s: between a GPU and the others of its node.
        nics: of it, shared out to GPUs in order. nic_bytes_s: of each.
    """

    gpus: int
    port_bytes_s: float
    nics: int
    nic_bytes_s: float


@dataclass(frozen=True)
class Dragonfly:
    """Groups of switches, with minimal routing: one link between two switches of a group, one between two groups.

    Attributes:
        groups, switches_per_group, nodes_per_switch: of the machine.
        link_bytes_s: of a link between switches, one direction; also of the link from a node to its
            switch, so it must carry all NICs of a node.
        local_links, global_links: as many of them in parallel.
    """

    groups: int
    switches_per_group: int
    nodes_per_switch: int
    link_bytes_s: float
    local_links: int = 1
    global_links: int = 1

    @property
    def nodes(self) -> int:
        return self.groups * self.switches_per_group * self.nodes_per_switch


@dataclass(frozen=True)
class FatTree:
    """Leaf switches under spine switches; a spine is chosen by the number of the destination's node.

    Attributes:
        leaves, nodes_per_leaf, spines: of the machine.
        link_bytes_s: of every link, one direction, also from a node to its leaf.
    """

    leaves: int
    nodes_per_leaf: int
    spines: int
    link_bytes_s: float

    @property
    def nodes(self) -> int:
        return self.leaves * self.nodes_per_leaf


FRONTIER_NODE = Node(gpus=8, port_bytes_s=50e9, nics=4, nic_bytes_s=25e9)
DGX_NODE = Node(gpus=8, port_bytes_s=240e9, nics=8, nic_bytes_s=25e9)

MACHINES: dict[str, dict[int, tuple[Node, Dragonfly | FatTree]]] = {
    # One group, where pairs of switches share a link.
    "dragonfly_group": {
        16: (FRONTIER_NODE, Dragonfly(1, 2, 1, 100e9)),
        64: (FRONTIER_NODE, Dragonfly(1, 4, 2, 100e9)),
        128: (FRONTIER_NODE, Dragonfly(1, 4, 4, 100e9)),
        256: (FRONTIER_NODE, Dragonfly(1, 8, 4, 100e9)),
    },
    # Groups, where pairs of groups share their global links.
    "dragonfly": {
        16: (FRONTIER_NODE, Dragonfly(2, 2, 1, 100e9)),
        64: (FRONTIER_NODE, Dragonfly(2, 2, 2, 100e9, local_links=2, global_links=2)),
        128: (FRONTIER_NODE, Dragonfly(2, 4, 2, 100e9, local_links=2, global_links=4)),
        256: (FRONTIER_NODE, Dragonfly(4, 4, 2, 100e9, local_links=2, global_links=2)),
    },
    # Leaves that inject more than they pass on: taper 2.
    "fat_tree": {
        16: (DGX_NODE, FatTree(2, 1, 1, 200e9)),
        64: (DGX_NODE, FatTree(4, 2, 1, 200e9)),
        128: (DGX_NODE, FatTree(4, 4, 2, 200e9)),
        256: (DGX_NODE, FatTree(8, 4, 2, 200e9)),
    },
}


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        machine: key of ``MACHINES``. ranks: of the job, on the first nodes in order.
        algorithm, traffic: of ``ALGORITHMS`` and ``TRAFFIC``.
    """

    machine: str
    ranks: int
    algorithm: str
    traffic: str

    @property
    def name(self) -> str:
        return f"{self.machine}/{self.ranks}/{self.algorithm}/{self.traffic}"

    @property
    def node(self) -> Node:
        return MACHINES[self.machine][self.ranks][0]

    @property
    def network(self) -> Dragonfly | FatTree:
        return MACHINES[self.machine][self.ranks][1]

    def describe(self) -> dict[str, Any]:
        """The case in full, as it is stored beside its answer."""
        kind = "dragonfly" if isinstance(self.network, Dragonfly) else "fat_tree"
        return {
            **asdict(self),
            "bytes_per_peer": BYTES_PER_PEER,
            "node": asdict(self.node),
            "network": {"kind": kind, **asdict(self.network)},
        }


def cases() -> list[Case]:
    """All of them, the quick ones first."""
    return [
        Case(machine, ranks, algorithm, traffic)
        for ranks in RANKS
        for machine in MACHINES
        for algorithm in ALGORITHMS
        for traffic in TRAFFIC
        if traffic != "scrambled" or ranks <= MOST_SCRAMBLED
    ]


def matrix(traffic: str, ranks: int) -> list[list[int]]:
    """Bytes from each rank to each, sender by receiver; what a rank has for itself is part of its shares.

    Kinds:
        uniform: ``BYTES_PER_PEER`` each.
        hot_rank: half of all to one rank, the other half uniform.
        zipf: the k-th most popular receiver gets a share proportional to 1/k; popularity jumps from
            node to node.
        idle_rank: rank 0 sends and receives nothing, the rest is uniform.
        scrambled: 0 to 8 times a quarter of ``BYTES_PER_PEER``, another multiple for each pair.

    Raises:
        ValueError: another kind.
    """
    total = BYTES_PER_PEER * ranks
    if traffic == "scrambled":
        quarter = BYTES_PER_PEER // 4
        return [[quarter * ((5 * i + 3 * j + i * j // 3) % 9) for j in range(ranks)] for i in range(ranks)]
    if traffic == "uniform":
        weights = [1] * ranks
    elif traffic == "hot_rank":
        weights = [ranks + 1 if j == ranks // 2 else 1 for j in range(ranks)]
    elif traffic == "zipf":
        # 11 has no factor in common with any number of ranks, so each gets a place of its own.
        weights = [1_000_000 // (1 + (11 * j + 5) % ranks) for j in range(ranks)]
    elif traffic == "idle_rank":
        weights = [0] + [1] * (ranks - 1)
    else:
        raise ValueError(f"unknown traffic {traffic!r}; known: {', '.join(TRAFFIC)}")
    row = [total * weight // sum(weights) for weight in weights]
    return [[0] * ranks if traffic == "idle_rank" and i == 0 else row for i in range(ranks)]
