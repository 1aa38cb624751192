"""Who is where: the node, the place within it and the NIC of each rank of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ciera_piper_core.alltoall.placement import Placement

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Job:
    """Ranks on nodes; nodes are numbered from 0 in the order in which the machine places them.

    Attributes:
        node: of each rank, int64, shape ``(ranks,)``.
        local: place of each rank among those of its node, likewise.
        nic_of_rank: NIC within the node, where that is given; None for the node's own rule.

    Raises:
        ValueError: no rank, nodes that are not 0 to N-1, or a NIC number for other than each rank.
    """

    node: Ints
    local: Ints
    nic_of_rank: Ints | None = None

    def __post_init__(self) -> None:
        if len(self.node) == 0:
            raise ValueError("a job needs at least one rank")
        if not np.array_equal(np.unique(self.node), np.arange(self.node.max() + 1)):
            raise ValueError("the nodes of a job must be numbered from 0, without a gap")
        if self.nic_of_rank is not None and len(self.nic_of_rank) != len(self.node):
            raise ValueError(f"{len(self.nic_of_rank)} NIC numbers for {len(self.node)} ranks")

    @classmethod
    def even(cls, ranks: int, ranks_per_node: int) -> Job:
        """Full nodes one after the other; the last may hold fewer.

        Raises:
            ValueError: no rank, or none a node.
        """
        if ranks < 1 or ranks_per_node < 1:
            raise ValueError(f"a job needs at least one rank and one a node, not {ranks} and {ranks_per_node}")
        node, local = np.divmod(np.arange(ranks, dtype=np.int64), ranks_per_node)
        return cls(node, local)

    @classmethod
    def of_nodes(cls, nodes: Sequence[Sequence[int]], nic_of_rank: Sequence[int] | None = None) -> Job:
        """From the ranks of each node, in order of place, which must be each of 0 to P-1 once.

        Raises:
            ValueError: a rank is missing or twice, or a node is empty.
        """
        listed = [rank for ranks in nodes for rank in ranks]
        if sorted(listed) != list(range(len(listed))) or not all(len(ranks) for ranks in nodes):
            raise ValueError("each rank from 0 on must be on one node, and no node may be empty")
        node, local = np.empty(len(listed), dtype=np.int64), np.empty(len(listed), dtype=np.int64)
        for number, ranks in enumerate(nodes):
            node[list(ranks)] = number
            local[list(ranks)] = np.arange(len(ranks))
        return cls(node, local, None if nic_of_rank is None else np.asarray(nic_of_rank, dtype=np.int64))

    @classmethod
    def from_placement(cls, placement: Placement) -> Job:
        """The job that a placement of ``ciera_piper_core.alltoall`` describes."""
        return cls.of_nodes(placement.nodes, placement.nic_of_rank)

    @property
    def ranks(self) -> int:
        return len(self.node)

    @property
    def nodes(self) -> int:
        return int(self.node.max()) + 1

    @property
    def ranks_of_node(self) -> Ints:
        """Number of ranks of each node, shape ``(nodes,)``."""
        return np.bincount(self.node, minlength=self.nodes)

    @property
    def is_even(self) -> bool:
        """All nodes hold as many ranks."""
        held = self.ranks_of_node
        return bool((held == held[0]).all())
