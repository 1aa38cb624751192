"""The all-to-all in two phases: gather within the node what goes to one rail, then one message a node along it.

As Tutel's 2DH, FasterMoE and HetuMoE do. Every row passes through the sender's neighbour that has
the receiver's local index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.alltoall.counts import exchange_vectors
from ciera_piper_core.alltoall.hierarchy import HierarchicalAllToAll
from ciera_piper_core.alltoall.host_blocks import blocks_of, columns_of
from ciera_piper_core.alltoall.regroup import transpose, transpose_equal
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import torch.distributed as dist

    from ciera_piper_core.alltoall.communicators import Communicators
    from ciera_piper_core.alltoall.hierarchy import Shares
    from ciera_piper_core.alltoall.placement import Placement


class TwoPhaseAllToAll(HierarchicalAllToAll["_Uneven | None"]):
    """Within the node first, then along rails; the rows arrive in their final order."""

    def __init__(self, group: dist.ProcessGroup, placement: Placement, *, check_splits: bool = False) -> None:
        super().__init__(group, placement, "two_phase", check_splits)

    def _exchange_transit(self, groups: Communicators, send: torch.Tensor, recv: torch.Tensor) -> torch.Tensor:
        # A neighbour passes on what goes along its rail.
        received = exchange_vectors(
            groups.internal, torch.cat([send.t(), recv.t()], dim=1), groups.exchange_within_node
        )
        return received.view(self._per_node, 2, self._nodes).transpose(0, 1)

    def _equal_layout(self, groups: Communicators, rows: int) -> None:
        return None

    def _uneven_layout(self, groups: Communicators, shares: Shares) -> _Uneven:
        return _Uneven(
            shares.send,
            shares.transit,
            shares.recv,
            to_neighbours=[sum(rows) for rows in zip(*shares.send, strict=True)],
            from_neighbours=[sum(rows) for rows in shares.transit],
            to_nodes=[sum(rows) for rows in zip(*shares.transit, strict=True)],
            from_nodes=[sum(rows) for rows in shares.recv],
        )

    def _move_by_node(
        self, groups: Communicators, layout: _Uneven | None, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        take, rows = self._buffers.take, send.shape[0]
        passing = rows if layout is None else sum(layout.from_neighbours)
        if groups.direct(send):
            self._move_pieces(groups, layout, send, out, take("gathered", passing, send))
            return
        packed, gathered = take("packed", rows, send), take("gathered", passing, send)
        forwarded = take("forwarded", passing, send)
        with region("alltoall.pack"):
            if layout is None:
                transpose_equal(send, self._nodes, self._per_node, packed)
            else:
                transpose(send, layout.send, packed)
        with region("alltoall.phase1"):
            if layout is None:
                groups.exchange_within_node(gathered, packed)
            else:
                groups.exchange_within_node(gathered, packed, layout.from_neighbours, layout.to_neighbours)
        with region("alltoall.pack"):
            if layout is None:
                transpose_equal(gathered, self._per_node, self._nodes, forwarded)
            else:
                transpose(gathered, layout.transit, forwarded)
        with region("alltoall.phase2"):
            if layout is None:
                groups.exchange_along_rail(out, forwarded)
            else:
                groups.exchange_along_rail(out, forwarded, layout.from_nodes, layout.to_nodes)

    def _move_pieces(
        self,
        groups: Communicators,
        layout: _Uneven | None,
        send: torch.Tensor,
        out: torch.Tensor,
        gathered: torch.Tensor,
    ) -> None:
        """Through sockets, which gather blocks from where they lie and scatter them to their places."""
        nodes, per_node = self._nodes, self._per_node
        to, through, of = (None, None, None) if layout is None else (layout.send, layout.transit, layout.recv)
        sent, passing = blocks_of(send, to, (nodes, per_node)), blocks_of(gathered, through, (per_node, nodes))
        received = blocks_of(out, of, (nodes, per_node))
        with region("alltoall.phase1"):
            groups.start_pieces("node", columns_of(sent), passing).wait()
        with region("alltoall.phase2"):
            groups.start_pieces("rail", columns_of(passing), received).wait()


@dataclass(frozen=True)
class _Uneven:
    """Rows of an exchange in uneven shares.

    Attributes:
        send, recv: to and from each rank, shape ``(nodes, ranks of a node)``. transit: as in ``Plan``.
        to_neighbours, from_neighbours: splits of phase 1. to_nodes, from_nodes: of phase 2.
    """

    send: tuple[tuple[int, ...], ...]
    transit: tuple[tuple[int, ...], ...]
    recv: tuple[tuple[int, ...], ...]
    to_neighbours: list[int]
    from_neighbours: list[int]
    to_nodes: list[int]
    from_nodes: list[int]
