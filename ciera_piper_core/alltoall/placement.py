"""Which rank is on which node, and behind which NIC: given, from a platform, or found out by the ranks themselves."""

from __future__ import annotations

import functools
import os
import socket
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist

    from ciera_piper_core.platforms import Platform

LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Where launchers write a rank's place on its node; the first that is set counts."""


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a group are.

    Attributes:
        nodes: ranks of each node, in order of their local index; ranks are those of the group, each
            appears once. Ranks with the same local index on different nodes form a rail: hierarchical
            algorithms send between nodes along rails only.
        nic_of_rank: for each rank, the index of its NIC within its node; None where that is not known.
        source: where this is from, for people: ``environment``, ``platform frontier``, ``given``.

    Raises:
        ValueError: a node without ranks, a rank that is missing or there twice, or NICs of another number of ranks.
    """

    nodes: tuple[tuple[int, ...], ...]
    nic_of_rank: tuple[int, ...] | None = None
    source: str = "given"

    def __post_init__(self) -> None:
        if not self.nodes or not all(self.nodes):
            raise ValueError("a placement needs at least one node, and a rank on each")
        ranks = sorted(rank for node in self.nodes for rank in node)
        if ranks != list(range(len(ranks))):
            raise ValueError(f"a placement names each rank from 0 to {len(ranks) - 1} once, not {_shortened(ranks)}")
        if self.nic_of_rank is not None:
            if len(self.nic_of_rank) != len(ranks):
                raise ValueError(
                    f"{len(self.nic_of_rank)} NICs for {len(ranks)} ranks; give each rank its own, or None"
                )
            if min(self.nic_of_rank) < 0:
                raise ValueError("NICs are counted from 0 within their node")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return sum(len(node) for node in self.nodes)

    @property
    def even(self) -> bool:
        """True if all nodes have the same number of ranks."""
        return len({len(node) for node in self.nodes}) == 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks of the largest node."""
        return max(len(node) for node in self.nodes)

    @property
    def order(self) -> tuple[int, ...]:
        """The ranks node by node."""
        return tuple(rank for node in self.nodes for rank in node)

    @property
    def by_block(self) -> bool:
        """True if node by node is the ranks' own order, so that data need not be sorted."""
        return self.order == tuple(range(self.world))

    def node_of(self, rank: int) -> int:
        """The node's index."""
        return self._places[rank][0]

    def local_index(self, rank: int) -> int:
        """The rank's place within its node, from 0."""
        return self._places[rank][1]

    @functools.cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        places = {rank: (node, local) for node, ranks in enumerate(self.nodes) for local, rank in enumerate(ranks)}
        return tuple(places[rank] for rank in range(self.world))

    def describe(self) -> str:
        """One line for people: ``4 nodes of 2 ranks (environment)``."""
        count = len(self.nodes)
        sizes = sorted({len(node) for node in self.nodes})
        size = f"{sizes[0]}" if self.even else f"{sizes[0]} to {sizes[-1]}"
        nodes, ranks = "node" if count == 1 else "nodes", "rank" if size == "1" else "ranks"
        return f"{count} {nodes} of {size} {ranks} ({self.source})"


def even_placement(world: int, ranks_per_node: int, source: str = "given") -> Placement:
    """``world`` ranks by block, ``ranks_per_node`` on each node.

    Raises:
        ValueError: they do not divide; a placement with a smaller node is given by its ``nodes``.
    """
    if ranks_per_node < 1 or world < 1 or world % ranks_per_node:
        raise ValueError(f"{world} ranks do not make whole nodes of {ranks_per_node}")
    return Placement(_blocks(world, ranks_per_node), source=source)


def placement_from_nodes(node_of_rank: Sequence[int], source: str = "given") -> Placement:
    """The placement where rank i is on node ``node_of_rank[i]``, in order of rank on each node."""
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(node_of_rank):
        ranks_of[node].append(rank)
    return Placement(tuple(tuple(ranks_of[node]) for node in sorted(ranks_of)), source=source)


def placement_from_platform(platform: Platform, world: int) -> Placement:
    """``world`` ranks by block on a platform's nodes, one a device; the last node may have fewer.

    Devices share NICs in order of their number, as many to each.
    """
    per_node = platform.gpus_per_node
    nics = tuple(rank % per_node * platform.nics_per_node // per_node for rank in range(world))
    return Placement(_blocks(world, per_node), nics, source=f"platform {platform.name}")


def placement_from_environment(group: dist.ProcessGroup) -> Placement:
    """Ask every rank of ``group`` where it is (collective).

    Ranks share a node if they share host, boot and network namespace: the emulated cluster's nodes
    are namespaces of one host, and ranks that reach each other through a network only are no
    neighbours. On a node they are in order of the launcher's local ranks where all have one, else
    in order of rank. NICs are those nearest to each rank's GPU or cores.
    """
    import torch.distributed as dist

    from ciera_piper_core.alltoall.nic_affinity import nearest_nics

    on_gpu = "nccl" in dist.get_backend(group)
    mine = (node_identity(), local_rank(os.environ), nearest_nics(on_gpu))
    everyone: list[tuple[str, int | None, tuple[int, ...]]] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return assembled(everyone)


def assembled(everyone: Sequence[tuple[str, int | None, tuple[int, ...]]]) -> Placement:
    """The placement from what each rank says of itself.

    Args:
        everyone: by rank, its node's identity, its local rank or None, and the NICs nearest to it
            (several where they are equally near, none where that cannot be read).
    """
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, (node, _, _) in enumerate(everyone):
        ranks_of[node].append(rank)
    nodes = []
    for ranks in ranks_of.values():
        local = [everyone[rank][1] for rank in ranks]
        numbered = None not in local and len(set(local)) == len(local)
        nodes.append(tuple(sorted(ranks, key=lambda rank: everyone[rank][1] or 0) if numbered else ranks))
    nics = None
    if all(near for _, _, near in everyone):
        place = {rank: local for node in nodes for local, rank in enumerate(node)}
        # Ranks that are equally near to several NICs spread over them.
        nics = tuple(near[place[rank] % len(near)] for rank, (_, _, near) in enumerate(everyone))
        nodes = _with_aligned_rails(nodes, nics)
    return Placement(tuple(nodes), nics, source="environment")


def node_identity() -> str:
    """What the ranks of a node have in common, and no others."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
    # A boot is unique in the world, while hosts of one name exist; either may be hidden in a container.
    parts = [socket.gethostname()]
    try:
        parts.append(boot.read_text(encoding="ascii").strip())
    except OSError:
        parts.append("")
    try:
        parts.append(os.readlink(namespace))
    except OSError:
        parts.append("")
    return "/".join(parts)


def local_rank(environment: Mapping[str, str]) -> int | None:
    """The launcher's local rank of this process, or None."""
    for name in LOCAL_RANK_VARIABLES:
        if (text := environment.get(name, "")).isdigit():
            return int(text)
    return None


def _with_aligned_rails(nodes: list[tuple[int, ...]], nics: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Each node's ranks in order of their NIC, if a local index does not already mean the same NIC on all nodes."""
    patterns = {tuple(nics[rank] for rank in node) for node in nodes}
    if len(patterns) == 1:
        return nodes
    return [tuple(sorted(node, key=lambda rank: nics[rank])) for node in nodes]


def _blocks(world: int, ranks_per_node: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first, min(first + ranks_per_node, world))) for first in range(0, world, ranks_per_node))


def _shortened(ranks: list[int]) -> str:
    return str(ranks) if len(ranks) <= 16 else f"{str(ranks[:16])[:-1]}, ...]"
