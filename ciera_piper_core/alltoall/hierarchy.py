"""What algorithms in phases have in common: data in order of nodes, counts in transit, and when to go flat."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from ciera_piper_core.alltoall.exchanger import Exchanger
from ciera_piper_core.alltoall.flat import send_flat
from ciera_piper_core.alltoall.plan import Plan
from ciera_piper_core.alltoall.regroup import permute, permute_equal
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import torch.distributed as dist

    from ciera_piper_core.alltoall.communicators import Communicators
    from ciera_piper_core.alltoall.placement import Placement

    Counts = tuple[tuple[int, ...], ...]


Layout = TypeVar("Layout")


@dataclass(frozen=True)
class Shares:
    """Rows of a planned exchange by node and local index, each shape ``(nodes, ranks of a node)``.

    Attributes:
        send, recv: to and from each rank.
        transit: as in ``Plan``.
    """

    send: Counts
    recv: Counts
    transit: Counts


class HierarchicalAllToAll(Exchanger, Generic[Layout]):
    """An exchange in phases within nodes and along rails.

    Where these cannot help it goes flat, and says why in ``fallback_reason``: a single node, a
    single rank on each node, or nodes of unequal size.
    """

    def __init__(self, group: dist.ProcessGroup, placement: Placement, name: str, check_splits: bool) -> None:
        super().__init__(group, name, check_splits)
        if placement.world != self._world:
            raise ValueError(f"a placement of {placement.world} ranks for a group of {self._world}")
        self.placement = placement
        self.fallback_reason = fallback_reason(placement)
        self._nodes, self._per_node = len(placement.nodes), placement.ranks_per_node
        self._order, self._by_block = placement.order, placement.by_block
        places = {rank: place for place, rank in enumerate(self._order)}
        self._place_of_rank = tuple(places[rank] for rank in range(self._world))
        self._last_equal: tuple[int, Layout] | None = None
        # Made now, while all ranks are here.
        self._groups = self._state.communicators(placement) if self.fallback_reason is None else None

    @abstractmethod
    def _exchange_transit(self, groups: Communicators, send: torch.Tensor, recv: torch.Tensor) -> torch.Tensor:
        """Counts of rows that will pass through this rank (collective).

        Args:
            send, recv: this rank's rows to and from each rank, shape ``(nodes, ranks of a node)``, int64.

        Returns:
            Shape ``(2, a, b)``, int64: ``transit`` and ``reverse_transit`` of ``Plan``.
        """

    @abstractmethod
    def _equal_layout(self, groups: Communicators, rows: int) -> Layout:
        """What ``_move_by_node`` must know to move ``rows`` rows in equal shares."""

    @abstractmethod
    def _uneven_layout(self, groups: Communicators, shares: Shares) -> Layout:
        """What ``_move_by_node`` must know to move any shares."""

    @abstractmethod
    def _move_by_node(self, groups: Communicators, layout: Layout, send: torch.Tensor, out: torch.Tensor) -> None:
        """Move rows that are in order of nodes and local indices."""

    def _make_plan(self, send_splits: tuple[int, ...], recv_splits: tuple[int, ...]) -> Plan:
        if self._groups is None:
            return Plan(send_splits, recv_splits)
        shape = (self._nodes, self._per_node)
        order = torch.tensor(self._order)
        send, recv = (torch.tensor(splits)[order].view(shape) for splits in (send_splits, recv_splits))
        forth, back = self._exchange_transit(self._groups, send, recv)
        return Plan(send_splits, recv_splits, _as_counts(forth), _as_counts(back))

    def _move(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        groups = self._groups
        if groups is None:
            send_flat(self._group, plan, send, out)
            return
        source = send if self._by_block else self._by_node(plan, send)
        target = out if self._by_block else self._buffers.take("received by node", out.shape[0], out)
        self._move_by_node(groups, self._layout(groups, plan, send.shape[0]), source, target)
        if not self._by_block:
            self._by_rank(plan, target, out)

    def _layout(self, groups: Communicators, plan: Plan, rows: int) -> Layout:
        """The layout for a plan; made once for it, or for equal shares of one size after the other."""
        if plan.send_splits is None or plan.recv_splits is None:
            if self._last_equal is None or self._last_equal[0] != rows:
                self._last_equal = rows, self._equal_layout(groups, rows)
            return self._last_equal[1]
        if self.name not in plan.derived:
            if plan.transit is None:
                raise ValueError(f"this plan is of another algorithm; let {self.name} plan its own")
            shares = Shares(self._shares(plan.send_splits), self._shares(plan.recv_splits), plan.transit)
            plan.derived[self.name] = self._uneven_layout(groups, shares)
        layout: Layout = plan.derived[self.name]
        return layout

    def _shares(self, splits: tuple[int, ...]) -> Counts:
        """Splits by node and local index."""
        return tuple(tuple(splits[rank] for rank in ranks) for ranks in self.placement.nodes)

    @region("alltoall.pack")
    def _by_node(self, plan: Plan, send: torch.Tensor) -> torch.Tensor:
        """Rows in order of their destination's node and local index."""
        ordered = self._buffers.take("sent by node", send.shape[0], send)
        if plan.send_splits is None:
            permute_equal(send, self._order, ordered)
        else:
            permute(send, plan.send_splits, self._order, ordered)
        return ordered

    @region("alltoall.unpack")
    def _by_rank(self, plan: Plan, received: torch.Tensor, out: torch.Tensor) -> None:
        """Rows from order of their source's node and local index into order of its rank."""
        if plan.recv_splits is None:
            permute_equal(received, self._place_of_rank, out)
        else:
            permute(received, [plan.recv_splits[rank] for rank in self._order], self._place_of_rank, out)


def fallback_reason(placement: Placement) -> str | None:
    """Why phases cannot help on this placement, or None."""
    if len(placement.nodes) == 1:
        return "all ranks share one node, so there is no network to spare"
    if not placement.even:
        sizes = [len(node) for node in placement.nodes]
        return f"nodes have {min(sizes)} to {max(sizes)} ranks, so rails would not reach all of them"
    if placement.ranks_per_node == 1:
        return "each node has one rank, so there is nobody to gather messages with"
    return None


def _as_counts(matrix: torch.Tensor) -> Counts:
    return tuple(tuple(row) for row in matrix.tolist())
