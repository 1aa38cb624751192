"""Where HALO's rows lie between its phases: blocks by node and neighbour, of one size or of any.

Three orders matter. ``send`` and ``out`` are by node, then by local index. In transit, after phase 2,
rows are by the node that they come from, then by the neighbour that they are for. Phase 3 sends them
by neighbour, then by node, and receives them by the neighbour that passed them on, then by node.
Blocks of this rank's own node take part in that or not (``with_own``): phase 1 may have moved them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.alltoall.regroup import gather, split_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ciera_piper_core.alltoall.hierarchy import Shares

    Splits = tuple[list[int] | None, list[int] | None]
    """Rows to receive and to send, as the library's call takes them; None for equal shares."""

    Copy = tuple[torch.Tensor, torch.Tensor]


class EqualLayout:
    """Blocks of one size, moved by strided copies.

    Attributes:
        transit_rows: that pass through this rank, those of its own node included.
        packed_rows, staged_rows: that phase 3 sends and receives.
        own_sent, own_received: rows of ``send`` and ``out`` that stay within the node.
        phase_1, phase_2, phase_3: splits of the phases.
        shares: rows by node and local index; None where all are of one size.
    """

    shares: Shares | None = None

    phase_1: Splits = (None, None)
    phase_2: Splits = (None, None)
    phase_3: Splits = (None, None)

    def __init__(self, nodes: int, per_node: int, node: int, rows: int, with_own: bool) -> None:
        self._nodes, self._per_node, self._node, self._with_own = nodes, per_node, node, with_own
        self._block = rows // (nodes * per_node)
        node_rows = rows // nodes
        self.transit_rows = rows
        self.packed_rows = self.staged_rows = rows if with_own else rows - node_rows
        self.own_sent = self.own_received = slice(node_rows * node, node_rows * (node + 1))
        # Views of the buffers that came last; buffers stay, so the next exchange needs no new ones.
        self._pack_views: tuple[torch.Tensor, torch.Tensor, list[Copy]] | None = None
        self._unpack_view: tuple[torch.Tensor, torch.Tensor] | None = None

    def pack(self, transit: torch.Tensor, packed: torch.Tensor) -> None:
        """From transit to what phase 3 sends."""
        views = self._pack_views
        if views is None or views[0] is not transit or views[1] is not packed:
            by_neighbour = self._by_node(transit).transpose(0, 1)
            views = self._pack_views = transit, packed, self._copies(by_neighbour, self._by_neighbour(packed), 1)
        for source, target in views[2]:
            target.copy_(source)

    def unpack(self, staged: torch.Tensor, out: torch.Tensor) -> None:
        """From what phase 3 received to the final order."""
        if self._unpack_view is None or self._unpack_view[0] is not staged:
            self._unpack_view = staged, self._by_neighbour(staged).transpose(0, 1)
        for target, source in self._copies(self._by_node(out), self._unpack_view[1], 0):
            target.copy_(source)

    def _by_node(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(self._nodes, self._per_node, self._block, rows.shape[1])

    def _by_neighbour(self, rows: torch.Tensor) -> torch.Tensor:
        nodes = self._nodes if self._with_own else self._nodes - 1
        return rows.view(self._per_node, nodes, self._block, rows.shape[1])

    def _copies(self, every: torch.Tensor, taking_part: torch.Tensor, dim: int) -> list[Copy]:
        """Pairs of views that hold the same rows; ``dim`` counts nodes, and only ``every`` has this rank's own."""
        node, others = self._node, self._nodes - 1
        if self._with_own:
            return [(every, taking_part)]
        pieces = [(0, 0, node), (node + 1, node, others - node)]
        return [(every.narrow(dim, a, n), taking_part.narrow(dim, b, n)) for a, b, n in pieces if n]


class UnevenLayout:
    """Blocks of any size, moved as lists of pieces; attributes and methods as of ``EqualLayout``."""

    def __init__(self, shares: Shares, node: int, with_own: bool) -> None:
        self.shares, self._with_own = shares, with_own
        nodes = len(shares.recv)
        self._nodes = [other for other in range(nodes) if with_own or other != node]
        self._before = node * len(shares.recv[0])
        to_nodes, through, from_nodes = _sums(shares.send), _sums(shares.transit), _sums(shares.recv)
        self.transit_rows = sum(through)
        self.packed_rows = sum(through[other] for other in self._nodes)
        self.staged_rows = sum(from_nodes[other] for other in self._nodes)
        self.own_sent, self.own_received = _slice_of(to_nodes, node), _slice_of(from_nodes, node)
        self.phase_1: Splits = (list(shares.recv[node]), list(shares.send[node]))
        self.phase_2: Splits = (through, to_nodes)
        self._from_neighbours = [tuple(shares.recv[other][local] for other in self._nodes) for local in _each(shares)]
        to_neighbours = [sum(shares.transit[other][local] for other in self._nodes) for local in _each(shares)]
        self.phase_3: Splits = (_sums(self._from_neighbours), to_neighbours)

    def pack(self, transit: torch.Tensor, packed: torch.Tensor) -> None:
        per_node = len(self.shares.transit[0])
        blocks = split_blocks(transit, self.shares.transit)
        gather([blocks[node * per_node + local] for local in range(per_node) for node in self._nodes], packed)

    def unpack(self, staged: torch.Tensor, out: torch.Tensor) -> None:
        blocks = split_blocks(staged, self._from_neighbours)
        nodes = len(self._nodes)
        by_node = [block for place in range(nodes) for block in blocks[place::nodes]]
        if self._with_own:
            gather(by_node, out)
            return
        gather(by_node[: self._before], out[: self.own_received.start])
        gather(by_node[self._before :], out[self.own_received.stop :])


def _each(shares: Shares) -> range:
    """Local indices of a node's ranks."""
    return range(len(shares.recv[0]))


def _sums(rows: Iterable[Iterable[int]]) -> list[int]:
    return [sum(row) for row in rows]


def _slice_of(counts: list[int], index: int) -> slice:
    first = sum(counts[:index])
    return slice(first, first + counts[index])
