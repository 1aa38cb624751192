"""HALO: along rails first, one message a node, then within the node; Piper's Algorithm 1 in its three variants.

Phase 1 exchanges what stays within the node. Phase 2 sends all that goes to a node to the rank there
with the sender's local index, behind the same NIC. Phase 3 hands out within the node what came in.
Phase 1 depends on nothing, so it need not be waited for:

- v0: one phase after the other.
- v1: phase 1 beside phase 2, then phase 3.
- v2: phase 2, then phases 1 and 3 as one: rows that stay within the node join those that came from
  other nodes, which saves a message to each neighbour.

Rows for a node lie together already where ranks are placed by block, so phase 2 sends from, and
phase 1 between, the caller's own tensors. Through sockets phase 3 takes rows from where phase 2 left
them and brings them where they belong; for the library they are packed before it, and unpacked after.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, get_args

import torch

from ciera_piper_core.alltoall.counts import exchange_vectors
from ciera_piper_core.alltoall.halo_layout import EqualLayout, UnevenLayout
from ciera_piper_core.alltoall.hierarchy import HierarchicalAllToAll
from ciera_piper_core.alltoall.host_blocks import blocks_of, columns_of
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import torch.distributed as dist

    from ciera_piper_core.alltoall.communicators import Communicators
    from ciera_piper_core.alltoall.hierarchy import Shares
    from ciera_piper_core.alltoall.placement import Placement

Variant = Literal["v0", "v1", "v2"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


class HaloAllToAll(HierarchicalAllToAll["EqualLayout | UnevenLayout"]):
    """Along rails first, then within the node.

    Raises:
        ValueError: an unknown variant.
    """

    def __init__(
        self, group: dist.ProcessGroup, placement: Placement, *, variant: str = "v1", check_splits: bool = False
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r} of HALO; known: {', '.join(VARIANTS)}")
        super().__init__(group, placement, f"halo_{variant}", check_splits)
        self._variant = variant

    def _exchange_transit(self, groups: Communicators, send: torch.Tensor, recv: torch.Tensor) -> torch.Tensor:
        # The rank on this rail passes on what goes to its node.
        received = exchange_vectors(groups.rail, torch.cat([send, recv], dim=1), groups.exchange_along_rail)
        return received.view(self._nodes, 2, self._per_node).transpose(0, 1)

    def _equal_layout(self, groups: Communicators, rows: int) -> EqualLayout:
        return EqualLayout(self._nodes, self._per_node, groups.node, rows, with_own=self._variant == "v2")

    def _uneven_layout(self, groups: Communicators, shares: Shares) -> UnevenLayout:
        return UnevenLayout(shares, groups.node, with_own=self._variant == "v2")

    def _move_by_node(
        self, groups: Communicators, layout: EqualLayout | UnevenLayout, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        if groups.direct(send):
            self._move_pieces(groups, layout, send, out)
        else:
            self._move_packed(groups, layout, send, out)

    def _move_pieces(
        self, groups: Communicators, layout: EqualLayout | UnevenLayout, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Through sockets, which gather blocks from where they lie and scatter them to their places."""
        shares, shape, node = layout.shares, (self._nodes, self._per_node), groups.node
        transit = self._buffers.take("transit", layout.transit_rows, send)
        to, through, of = (None, None, None) if shares is None else (shares.send, shares.transit, shares.recv)
        sent, passing = blocks_of(send, to, shape), blocks_of(transit, through, shape)
        received = blocks_of(out, of, shape)
        # What stays within the node is none of the rail's business.
        to_nodes, from_nodes = list(sent), list(passing)
        to_nodes[node] = from_nodes[node] = []
        start = groups.start_pieces

        def phase_1() -> None:
            with region("alltoall.phase1"):
                start("node", [[each] for each in sent[node]], [[each] for each in received[node]]).wait()

        if self._variant == "v0":
            phase_1()
        with region("alltoall.phase2"):
            under_way = start("rail", to_nodes, from_nodes)
            if self._variant == "v1":
                phase_1()
            under_way.wait()
        if self._variant == "v2":
            passing[node] = sent[node]
        else:
            del passing[node], received[node]
        with region("alltoall.phase3"), region("alltoall.phase1") if self._variant == "v2" else nullcontext():
            start("node", columns_of(passing), columns_of(received)).wait()

    def _move_packed(
        self, groups: Communicators, layout: EqualLayout | UnevenLayout, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Through library calls, which take what lies in one piece."""
        take = self._buffers.take
        transit = take("transit", layout.transit_rows, send)
        if self._variant == "v0":
            with region("alltoall.phase1"):
                _phase_1(layout, send, out, groups)
            with region("alltoall.phase2"):
                groups.exchange_along_rail(transit, send, *layout.phase_2)
        elif self._variant == "v1":
            with region("alltoall.phase2"):
                phase_2 = groups.start_along_rail(transit, send, *layout.phase_2)
                with region("alltoall.phase1"):
                    _phase_1(layout, send, out, groups)
                phase_2.wait()
        else:
            # What stays within the node goes along the rail to this rank itself, as a copy.
            with region("alltoall.phase2"):
                groups.exchange_along_rail(transit, send, *layout.phase_2)
        packed, staged = take("packed", layout.packed_rows, send), take("staged", layout.staged_rows, send)
        with region("alltoall.pack"):
            layout.pack(transit, packed)
        with region("alltoall.phase3"), region("alltoall.phase1") if self._variant == "v2" else nullcontext():
            groups.exchange_within_node(staged, packed, *layout.phase_3)
        with region("alltoall.unpack"):
            layout.unpack(staged, out)


def _phase_1(layout: EqualLayout | UnevenLayout, send: torch.Tensor, out: torch.Tensor, groups: Communicators) -> None:
    groups.exchange_within_node(out[layout.own_received], send[layout.own_sent], *layout.phase_1)
