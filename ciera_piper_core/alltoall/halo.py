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
from typing import TYPE_CHECKING, Literal, get_args

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


class HaloAllToAll(HierarchicalAllToAll):
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

    def _move_by_node(
        self, groups: Communicators, shares: Shares | None, send: torch.Tensor, out: torch.Tensor
    ) -> None:
        layout: EqualLayout | UnevenLayout
        if shares is None:
            layout = EqualLayout(self._nodes, self._per_node, groups.node, send.shape[0])
        else:
            layout = UnevenLayout(shares, groups.node)
        transit = self._buffers.take("transit", layout.transit_rows, send)

        def start_2() -> dist.Work:
            return _start(transit, send, layout.phase_2, groups.rail)

        def start_1() -> dist.Work:
            return _start(out[layout.own_received], send[layout.own_sent], layout.phase_1, groups.internal)

        if self._variant == "v0":
            with region("alltoall.phase1"):
                start_1().wait()
            with region("alltoall.phase2"):
                start_2().wait()
        elif self._variant == "v1":
            with region("alltoall.phase2"):
                phase_2 = start_2()
                with region("alltoall.phase1"):
                    start_1().wait()
                phase_2.wait()
        else:
            with region("alltoall.phase2"):
                start_2().wait()
        # In v2, what stays within the node went along the rail to this rank itself, as a copy.
        with_own = self._variant == "v2"
        packed = self._buffers.take("packed", layout.packed_rows(with_own), send)
        staged = self._buffers.take("staged", layout.staged_rows(with_own), send)
        with region("alltoall.pack"):
            layout.pack(transit, packed, with_own)
        with region("alltoall.phase3"), region("alltoall.phase1") if with_own else nullcontext():
            _start(staged, packed, layout.phase_3(with_own), groups.internal).wait()
        with region("alltoall.unpack"):
            layout.unpack(staged, out, with_own)


def _start(out: torch.Tensor, send: torch.Tensor, splits: Splits, group: dist.ProcessGroup) -> dist.Work:
    recv_splits, send_splits = splits
    work: dist.Work = dist.all_to_all_single(out, send, recv_splits, send_splits, group=group, async_op=True)
    return work
