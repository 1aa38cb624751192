"""Deduplicating dispatch: a token crosses to another node once, however many of its experts are there.

A token goes to one rank of each node that has some of its experts: along the rail, to the rank with
the local index of its own. That rank passes it on to those of its neighbours that have them, once to
each, and a rank with several makes the copies. On the way back each step adds up first: the outputs
of a token on a rank, those of a node, those of all nodes. (After the redundancy-bypassing dispatch
of X-MoE, which sends the node's copy to one of the experts' ranks instead; rails make fewer and
larger messages.)

Where nodes differ in size there are no rails; then a rank of the other node is taken by local
index modulo the node's size, and both steps go through the whole group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.communicators import state_of
from ciera_piper_core.alltoall.dedup_pairs import Pairs, absolute, distinct_pairs
from ciera_piper_core.alltoall.dispatch import DROPPED, Dispatched, check_choices, dispatched, precise_dtype, sum_rows
from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic
from ciera_piper_core.alltoall.hop import Hop, Splits
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.alltoall.communicators import GroupState
    from ciera_piper_core.alltoall.placement import Placement

PLACE, SLOT, LABEL, WEIGHT = range(4)
"""Columns of what travels with a choice, int32 each; the weight as its bits. SLOT is the rank on the other node."""

RECORD_BYTES, COUNT_BYTES = 4 * 4, 8


@dataclass(frozen=True)
class Ways:
    """How this rank reaches others in two steps.

    Attributes:
        across: the step between nodes. inside: the step within the node.
        gateway_slot: by node, the slot of ``across`` through which this rank reaches it.
        final_slot: by rank, its slot of ``inside`` as seen by the ranks of its node.
        source_rank: ``[gateway][slot]``: the rank behind slot ``slot`` of the ``across`` of the rank that
            is ``gateway`` in this rank's ``inside``.
    """

    across: Hop
    inside: Hop
    gateway_slot: tuple[int, ...]
    final_slot: tuple[int, ...]
    source_rank: tuple[tuple[int, ...], ...]


class DedupDispatch:
    """See the module; the interface is ``dispatch.Dispatcher``.

    Attributes:
        name: ``dedup``.
        fallback_reason: why there are no rails; None if there are.

    Raises:
        ValueError: a placement of another number of ranks.
    """

    name = "dedup"

    def __init__(self, group: dist.ProcessGroup, placement: Placement) -> None:
        """Make the groups within (collective)."""
        self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        if placement.world != self._world:
            raise ValueError(f"a placement of {placement.world} ranks for a group of {self._world}")
        self._placement, self._state = placement, state_of(group)
        # The state refers to its group weakly.
        self._group = group
        self.fallback_reason = None if placement.even else f"nodes differ in size: {placement.describe()}"
        self._ways = self._rails() if placement.even else self._whole_group()
        self._node_of = torch.tensor([placement.node_of(rank) for rank in range(self._world)])

    def _rails(self) -> Ways:
        placement = self._placement
        groups = self._state.communicators(placement)
        nodes, ranks = len(placement.nodes), placement.ranks_per_node
        return Ways(
            Hop(groups.rail, nodes),
            Hop(groups.internal, ranks),
            tuple(range(nodes)),
            tuple(placement.local_index(rank) for rank in range(self._world)),
            tuple(tuple(node[local] for node in placement.nodes) for local in range(ranks)),
        )

    def _whole_group(self) -> Ways:
        placement, everyone = self._placement, Hop(self._group, self._world)
        local = placement.local_index(self._rank)
        ranks = tuple(range(self._world))
        gateways = tuple(node[local % len(node)] for node in placement.nodes)
        return Ways(everyone, everyone, gateways, ranks, (ranks,) * self._world)

    def dispatch(
        self,
        tokens: torch.Tensor,
        expert_rank_of_choice: torch.Tensor,
        weights: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Dispatched:
        """See ``dispatch.Dispatcher.dispatch``."""
        check_choices(tokens, expert_rank_of_choice, weights, labels, self._world)
        device, (count, top_k) = tokens.device, expert_rank_of_choice.shape
        with self._state.claimed("a deduplicating dispatch"), torch.no_grad():
            with region("alltoall.pack"):
                ranks = expert_rank_of_choice.flatten()
                kept = (ranks != DROPPED).nonzero().flatten()
                ranks = ranks[kept]
                nodes = self._node_of.to(device)[ranks]
                ways = self._ways
                slots = torch.tensor(ways.gateway_slot, device=device)[nodes]
                pairs = distinct_pairs(slots, kept // top_k, ways.across.slots, count)
                sent_choices = kept[pairs.order]
                records = torch.zeros((len(kept), 4), dtype=torch.int32, device=device)
                records[:, PLACE] = pairs.place_in_slot
                records[:, SLOT] = torch.tensor(ways.final_slot, device=device)[ranks][pairs.order]
                if labels is not None:
                    records[:, LABEL] = labels.flatten()[sent_choices]
                if weights is not None:
                    records[:, WEIGHT] = weights.detach().to(torch.float32).flatten()[sent_choices].view(torch.int32)
                packed = tokens.detach()[pairs.items]
            route, arrived, rows = self._send(packed, records, pairs, sent_choices, (count, top_k))
        traffic = self._traffic(route, nodes, ranks, tokens.shape[1] * tokens.itemsize)
        rows_from = torch.bincount(route.origin, minlength=self._world)
        return dispatched(
            tokens,
            weights,
            rows,
            arrived[:, WEIGHT].contiguous().view(torch.float32),
            arrived[:, LABEL].to(torch.int64),
            tuple(rows_from.tolist()),
            traffic,
            route,
        )

    def _send(
        self,
        packed: torch.Tensor,
        records: torch.Tensor,
        pairs: Pairs,
        sent_choices: torch.Tensor,
        shape: tuple[int, int],
    ) -> tuple[DedupRoute, torch.Tensor, torch.Tensor]:
        """The route; the records and the rows of what arrived at this rank, in final order."""
        across, inside, device = self._ways.across, self._ways.inside, packed.device
        with region("alltoall.counts"):
            mine = torch.tensor([pairs.per_slot, pairs.choices_per_slot], device=device).T
            theirs = across.counts(mine).T.tolist()
        rows_1 = Splits(pairs.per_slot, tuple(theirs[0]))
        records_1 = Splits(pairs.choices_per_slot, tuple(theirs[1]))
        # Who needs what travels ahead of the rows and is sorted out, node by node, while they cross.
        with region("alltoall.phase1"):
            passing = across.start(records, records_1)
            crossing = across.start(packed, rows_1)
            records = passing()
            item = absolute(records[:, PLACE].to(torch.int64), records_1.recv, rows_1.recv)
            slot = records[:, SLOT].to(torch.int64)
            onward = distinct_pairs(slot, item, inside.slots, sum(rows_1.recv))
            records = records[onward.order]
            records[:, PLACE] = onward.place_in_slot
            sources = torch.arange(across.slots, device=device).repeat_interleave(
                torch.tensor(records_1.recv, device=device)
            )
            by_source = torch.bincount(slot * across.slots + sources, minlength=inside.slots * across.slots)
            mine = torch.cat(
                [torch.tensor(onward.per_slot, device=device)[:, None], by_source.view(inside.slots, -1)], dim=1
            )
            theirs_2 = inside.counts(mine)
            rows_2 = Splits(onward.per_slot, tuple(theirs_2[:, 0].tolist()))
            records_2 = Splits(onward.choices_per_slot, tuple(theirs_2[:, 1:].sum(1).tolist()))
            records = inside.exchange(records, records_2)
        with region("alltoall.phase2"):
            at_gateway = crossing()
        row = absolute(records[:, PLACE].to(torch.int64), records_2.recv, rows_2.recv)
        origins = torch.tensor(self._ways.source_rank, device=device).flatten()
        origin = origins.repeat_interleave(theirs_2[:, 1:].flatten())
        order = torch.argsort(origin, stable=True)
        route = DedupRoute(
            self._state,
            across,
            inside,
            shape,
            (rows_1, rows_2),
            (records_1, records_2),
            (pairs.items, onward.items, row[order]),
            (sent_choices, onward.order, order),
            origin[order],
        )
        return route, records[order], route.onward(at_gateway)

    def _traffic(self, route: DedupRoute, nodes: torch.Tensor, ranks: torch.Tensor, row_bytes: int) -> DispatchTraffic:
        """What left this rank.

        Args:
            nodes, ranks: of its choices that were not dropped.
        """
        my_node = self._placement.node_of(self._rank)
        elsewhere = int((nodes != my_node).sum())
        away = int((ranks != self._rank).sum())
        (rows_1, rows_2), (records_1, records_2) = route.rows, route.records
        ways = self._ways
        own = ways.gateway_slot[my_node]
        here = ways.final_slot[self._rank]
        crossing = sum(rows_1.send) - rows_1.send[own]
        passed_on = sum(rows_2.send) - rows_2.send[here]
        counts_between, counts_within = self._count_bytes()
        return DispatchTraffic(
            logical_between=elsewhere * row_bytes,
            logical_within=(away - elsewhere) * row_bytes,
            sent_between=crossing * row_bytes,
            sent_within=passed_on * row_bytes,
            routing_between=(sum(records_1.send) - records_1.send[own]) * RECORD_BYTES + counts_between,
            routing_within=(sum(records_2.send) - records_2.send[here]) * RECORD_BYTES + counts_within,
        )

    def _count_bytes(self) -> tuple[int, int]:
        """Bytes of counts that leave this rank, between nodes and within its node."""
        ways, nodes = self._ways, self._placement.nodes
        neighbours = len(nodes[self._placement.node_of(self._rank)]) - 1
        first, second = 2 * COUNT_BYTES, (1 + ways.across.slots) * COUNT_BYTES
        if self.fallback_reason is None:
            return (len(nodes) - 1) * first, neighbours * second
        strangers = self._world - 1 - neighbours
        return strangers * (first + second), neighbours * (first + second)


@dataclass(frozen=True)
class DedupRoute:
    """The way of one dispatch; see ``dispatch.Route``.

    Attributes:
        state: of the group. across, inside: the steps. shape: tokens and choices of each.
        rows, records: splits of both steps, of rows and of choices.
        items: for rows as they are sent in the first step, the token; in the second, what arrived in the
            first; for choices in final order, what arrived in the second.
        orders: choices as sent in the first step, by token and choice; as sent in the second, by their
            place on arrival; in final order, likewise.
        origin: source rank of each choice, in final order.
    """

    state: GroupState
    across: Hop
    inside: Hop
    shape: tuple[int, int]
    rows: tuple[Splits, Splits]
    records: tuple[Splits, Splits]
    items: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    orders: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    origin: torch.Tensor

    def spread(self, tokens: torch.Tensor) -> torch.Tensor:
        with self.state.claimed("a deduplicating dispatch"):
            with region("alltoall.pack"):
                packed = tokens[self.items[0]]
            with region("alltoall.phase2"):
                arrived = self.across.exchange(packed, self.rows[0])
            return self.onward(arrived)

    def onward(self, at_gateway: torch.Tensor) -> torch.Tensor:
        """The second step of ``spread``, for rows that have come through the first; the group is claimed."""
        with region("alltoall.phase3"):
            arrived = self.inside.exchange(at_gateway[self.items[1]], self.rows[1])
        with region("alltoall.unpack"):
            return arrived[self.items[2]]

    def collect(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rows_1, rows_2 = self.rows
        precise = precise_dtype(dtype)
        with self.state.claimed("a deduplicating combine"):
            with region("alltoall.pack"):
                packed = sum_rows(rows, self.items[2], sum(rows_2.recv)).to(dtype)
            with region("alltoall.phase1"):
                arrived = self.inside.exchange(packed, rows_2.reverse())
            with region("alltoall.pack"):
                packed = sum_rows(arrived.to(precise), self.items[1], sum(rows_1.recv)).to(dtype)
            with region("alltoall.phase2"):
                arrived = self.across.exchange(packed, rows_1.reverse())
            with region("alltoall.unpack"):
                return sum_rows(arrived.to(precise), self.items[0], self.shape[0]).to(dtype)

    def answer(self, numbers: torch.Tensor) -> torch.Tensor:
        records_1, records_2 = self.records
        result = numbers.new_zeros(self.shape[0] * self.shape[1])
        with self.state.claimed("a deduplicating combine"):
            back = self.inside.exchange(_unsorted(numbers, self.orders[2])[:, None], records_2.reverse())
            back = self.across.exchange(_unsorted(back[:, 0], self.orders[1])[:, None], records_1.reverse())
        result[self.orders[0]] = back[:, 0]
        return result.view(self.shape)


def _unsorted(numbers: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The numbers that ``order`` has brought into the given order, as they were before."""
    before = torch.empty_like(numbers)
    before[order] = numbers
    return before
