"""The all-to-all in two phases: gather within the node what goes to one rail, then one message a node along it.

As Tutel's 2DH, FasterMoE and HetuMoE do. Every row passes through the sender's neighbour that has
the receiver's local index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.counts import exchange_vectors
from ciera_piper_core.alltoall.hierarchy import HierarchicalAllToAll
from ciera_piper_core.alltoall.regroup import transpose, transpose_equal
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.alltoall.communicators import Communicators
    from ciera_piper_core.alltoall.hierarchy import Shares
    from ciera_piper_core.alltoall.placement import Placement


class TwoPhaseAllToAll(HierarchicalAllToAll):
    """Within the node first, then along rails; the rows arrive in their final order."""

    def __init__(self, group: dist.ProcessGroup, placement: Placement, *, check_splits: bool = False) -> None:
        super().__init__(group, placement, "two_phase", check_splits)

    def _exchange_transit(self, groups: Communicators, send: torch.Tensor, recv: torch.Tensor) -> torch.Tensor:
        # A neighbour passes on what goes along its rail.
        received = exchange_vectors(groups.internal, torch.cat([send.t(), recv.t()], dim=1))
        return received.view(self._per_node, 2, self._nodes).transpose(0, 1)

    def _move_by_node(
        self, groups: Communicators, shares: Shares | None, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        if shares is None:
            self._move_equal(groups, send, out)
        else:
            self._move_uneven(groups, shares, send, out)

    def _move_equal(self, groups: Communicators, send: torch.Tensor, out: torch.Tensor) -> None:
        packed = self._buffers.take("packed", send.shape[0], send)
        gathered = self._buffers.take("gathered", send.shape[0], send)
        with region("alltoall.pack"):
            transpose_equal(send, self._nodes, self._per_node, packed)
        with region("alltoall.phase1"):
            dist.all_to_all_single(gathered, packed, group=groups.internal)
        with region("alltoall.pack"):
            transpose_equal(gathered, self._per_node, self._nodes, packed)
        with region("alltoall.phase2"):
            dist.all_to_all_single(out, packed, group=groups.rail)

    def _move_uneven(self, groups: Communicators, shares: Shares, send: torch.Tensor, out: torch.Tensor) -> None:
        to_neighbours = [sum(rows) for rows in zip(*shares.send, strict=True)]
        from_neighbours = [sum(rows) for rows in shares.transit]
        to_nodes = [sum(rows) for rows in zip(*shares.transit, strict=True)]
        from_nodes = [sum(rows) for rows in shares.recv]
        packed = self._buffers.take("packed", send.shape[0], send)
        gathered = self._buffers.take("gathered", sum(from_neighbours), send)
        with region("alltoall.pack"):
            transpose(send, shares.send, packed)
        with region("alltoall.phase1"):
            dist.all_to_all_single(gathered, packed, from_neighbours, to_neighbours, group=groups.internal)
        with region("alltoall.pack"):
            packed = self._buffers.take("packed", sum(from_neighbours), send)
            transpose(gathered, shares.transit, packed)
        with region("alltoall.phase2"):
            dist.all_to_all_single(out, packed, from_nodes, to_nodes, group=groups.rail)
