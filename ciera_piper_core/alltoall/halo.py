"""HALO: along rails first, one message a node, then within the node; Piper's Algorithm 1 in its three variants.

Phase 1 exchanges what stays within the node. Phase 2 sends all that goes to a node to the rank there
with the sender's local index, behind the same NIC. Phase 3 hands out within the node what came in.
Phase 1 depends on nothing, so it need not be waited for:

- v0: one phase after the other.
- v1: phase 1 beside phase 2, then phase 3.
- v2: phase 2, then phases 1 and 3 as one: rows that stay within the node join those that came from
  other nodes, which saves a message to each neighbour.

Rows for a node lie together already where ranks are placed by block, so phase 2 sends from, and
phase 1 between, the caller's own tensors.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.counts import exchange_vectors
from ciera_piper_core.alltoall.halo_layout import EqualLayout, UnevenLayout
from ciera_piper_core.alltoall.hierarchy import HierarchicalAllToAll
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.alltoall.communicators import Communicators
    from ciera_piper_core.alltoall.halo_layout import Splits
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
        received = exchange_vectors(groups.rail, torch.cat([send, recv], dim=1))
        return received.view(self._nodes, 2, self._per_node).transpose(0, 1)

    def _equal_layout(self, groups: Communicators, rows: int) -> EqualLayout:
        return EqualLayout(self._nodes, self._per_node, groups.node, rows, with_own=self._variant == "v2")

    def _uneven_layout(self, groups: Communicators, shares: Shares) -> UnevenLayout:
        return UnevenLayout(shares, groups.node, with_own=self._variant == "v2")

    def _move_by_node(
        self, groups: Communicators, layout: EqualLayout | UnevenLayout, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        take = self._buffers.take
        transit = take("transit", layout.transit_rows, send)
        if self._variant == "v0":
            with region("alltoall.phase1"):
                _phase_1(layout, send, out, groups)
            with region("alltoall.phase2"):
                _along_rail(transit, send, layout.phase_2, groups.rail)
        elif self._variant == "v1":
            with region("alltoall.phase2"):
                phase_2 = _along_rail(transit, send, layout.phase_2, groups.rail, async_op=True)
                with region("alltoall.phase1"):
                    _phase_1(layout, send, out, groups)
                phase_2.wait()
        else:
            # What stays within the node goes along the rail to this rank itself, as a copy.
            with region("alltoall.phase2"):
                _along_rail(transit, send, layout.phase_2, groups.rail)
        packed, staged = take("packed", layout.packed_rows, send), take("staged", layout.staged_rows, send)
        with region("alltoall.pack"):
            layout.pack(transit, packed)
        with region("alltoall.phase3"), region("alltoall.phase1") if self._variant == "v2" else nullcontext():
            groups.exchange_within_node(staged, packed, *layout.phase_3)
        with region("alltoall.unpack"):
            layout.unpack(staged, out)


def _phase_1(layout: EqualLayout | UnevenLayout, send: torch.Tensor, out: torch.Tensor, groups: Communicators) -> None:
    groups.exchange_within_node(out[layout.own_received], send[layout.own_sent], *layout.phase_1)


def _along_rail(
    out: torch.Tensor, send: torch.Tensor, splits: Splits, group: dist.ProcessGroup, async_op: bool = False
) -> Any:
    """The library's call; with ``async_op`` it returns work to wait for."""
    return dist.all_to_all_single(out, send, splits[0], splits[1], group=group, async_op=async_op)
