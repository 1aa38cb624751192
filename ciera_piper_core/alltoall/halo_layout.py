"""Where HALO's rows lie between its phases: blocks by node and neighbour, of one size or of any.

Three orders matter. ``send`` and ``out`` are by node, then by local index. In transit, after phase 2,
rows are by the node that they come from, then by the neighbour that they are for. Phase 3 sends them
by neighbour, then by node, and receives them by the neighbour that passed them on, then by node.
Blocks of this rank's own node take part in that or not (``with_own``): phase 1 may have moved them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.alltoall.regroup import gather, split_blocks, transpose_equal

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ciera_piper_core.alltoall.hierarchy import Shares

    Splits = tuple[list[int] | None, list[int] | None]
    """Rows to receive and to send, as the library's call takes them; None for equal shares."""


class EqualLayout:
    """Blocks of one size, moved by strided copies.

    Attributes:
        transit_rows: that pass through this rank, those of its own node included.
        own_sent, own_received: rows of ``send`` and ``out`` that stay within the node.
        phase_1, phase_2: splits of these phases.
    """

    phase_1: Splits = (None, None)
    phase_2: Splits = (None, None)

    def __init__(self, nodes: int, per_node: int, node: int, rows: int) -> None:
        self._nodes, self._per_node, self._node = nodes, per_node, node
        self._node_rows = rows // nodes
        self._block = rows // (nodes * per_node)
        self.transit_rows = rows
        self.own_sent = self.own_received = slice(self._node_rows * node, self._node_rows * (node + 1))

    def packed_rows(self, with_own: bool) -> int:
        """Rows that phase 3 sends."""
        return self._node_rows * (self._nodes if with_own else self._nodes - 1)

    def staged_rows(self, with_own: bool) -> int:
        """Rows that phase 3 receives."""
        return self.packed_rows(with_own)

    def phase_3(self, with_own: bool) -> Splits:
        """Splits of phase 3."""
        return None, None

    def pack(self, transit: torch.Tensor, packed: torch.Tensor, with_own: bool) -> None:
        """From transit to what phase 3 sends."""
        if with_own:
            transpose_equal(transit, self._nodes, self._per_node, packed)
            return
        before, node, width = self._node, self._node, transit.shape[1]
        source = transit.view(self._nodes, self._per_node, self._block, width).transpose(0, 1)
        target = packed.view(self._per_node, self._nodes - 1, self._block, width)
        target[:, :before].copy_(source[:, :node])
        target[:, before:].copy_(source[:, node + 1 :])

    def unpack(self, staged: torch.Tensor, out: torch.Tensor, with_own: bool) -> None:
        """From what phase 3 received to the final order."""
        if with_own:
            transpose_equal(staged, self._per_node, self._nodes, out)
            return
        before, node, width = self._node, self._node, staged.shape[1]
        source = staged.view(self._per_node, self._nodes - 1, self._block, width).transpose(0, 1)
        target = out.view(self._nodes, self._per_node, self._block, width)
        target[:node].copy_(source[:before])
        target[node + 1 :].copy_(source[before:])


class UnevenLayout:
    """Blocks of any size, moved as lists of pieces; attributes and methods as of ``EqualLayout``."""

    def __init__(self, shares: Shares, node: int) -> None:
        self._shares, self._node = shares, node
        to_nodes, through = _sums(shares.send), _sums(shares.transit)
        from_nodes = _sums(shares.recv)
        self.transit_rows = sum(through)
        self.own_sent = _slice_of(to_nodes, node)
        self.own_received = _slice_of(from_nodes, node)
        self.phase_1: Splits = (list(shares.recv[node]), list(shares.send[node]))
        self.phase_2: Splits = (through, to_nodes)

    def packed_rows(self, with_own: bool) -> int:
        return sum(_sums(self._shares.transit[node] for node in self._nodes(with_own)))

    def staged_rows(self, with_own: bool) -> int:
        return sum(_sums(self._shares.recv[node] for node in self._nodes(with_own)))

    def phase_3(self, with_own: bool) -> Splits:
        nodes = self._nodes(with_own)
        received = _sums(zip(*(self._shares.recv[node] for node in nodes), strict=True))
        sent = _sums(zip(*(self._shares.transit[node] for node in nodes), strict=True))
        return received, sent

    def pack(self, transit: torch.Tensor, packed: torch.Tensor, with_own: bool) -> None:
        per_node = len(self._shares.transit[0])
        blocks = split_blocks(transit, self._shares.transit)
        nodes = self._nodes(with_own)
        gather([blocks[node * per_node + local] for local in range(per_node) for node in nodes], packed)

    def unpack(self, staged: torch.Tensor, out: torch.Tensor, with_own: bool) -> None:
        nodes = self._nodes(with_own)
        by_neighbour = split_blocks(staged, list(zip(*(self._shares.recv[node] for node in nodes), strict=True)))
        by_node = [block for place in range(len(nodes)) for block in by_neighbour[place :: len(nodes)]]
        if with_own:
            gather(by_node, out)
            return
        before = self._node * len(self._shares.recv[0])
        gather(by_node[:before], out[: self.own_received.start])
        gather(by_node[before:], out[self.own_received.stop :])

    def _nodes(self, with_own: bool) -> list[int]:
        """The nodes whose rows phase 3 hands out."""
        return [node for node in range(len(self._shares.recv)) if with_own or node != self._node]


def _sums(rows: Iterable[Iterable[int]]) -> list[int]:
    return [sum(row) for row in rows]


def _slice_of(counts: list[int], index: int) -> slice:
    first = sum(counts[:index])
    return slice(first, first + counts[index])
