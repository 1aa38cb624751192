"""Dispatch without deduplication: a row for each choice straight to its rank, by any all-to-all algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.dispatch import DROPPED, Dispatched, check_choices, dispatched, precise_dtype, sum_rows
from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.alltoall.plan import Plan

RECORD_BYTES, COUNT_BYTES = 2 * 4, 8


class FlatDispatch:
    """See the module; the interface is ``dispatch.Dispatcher``, and its baseline.

    Attributes:
        name: that of the algorithm.

    Raises:
        ValueError: a placement of another number of ranks.
    """

    def __init__(self, group: dist.ProcessGroup, placement: Placement, algorithm: AllToAll) -> None:
        """Use ``algorithm``, which is bound to ``group``, for rows; ``placement`` tells which of them cross."""
        self._group, self._algorithm = group, algorithm
        self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        if placement.world != self._world:
            raise ValueError(f"a placement of {placement.world} ranks for a group of {self._world}")
        self.name = algorithm.name
        self._node_of = torch.tensor([placement.node_of(rank) for rank in range(self._world)])

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
        with torch.no_grad():
            with region("alltoall.pack"):
                ranks = expert_rank_of_choice.flatten()
                kept = (ranks != DROPPED).nonzero().flatten()
                ranks, order = torch.sort(ranks[kept], stable=True)
                sent_choices = kept[order]
                records = torch.zeros((len(kept), 2), dtype=torch.int32, device=device)
                if labels is not None:
                    records[:, 0] = labels.flatten()[sent_choices]
                if weights is not None:
                    records[:, 1] = weights.detach().to(torch.float32).flatten()[sent_choices].view(torch.int32)
            with region("alltoall.counts"):
                sent = torch.bincount(ranks, minlength=self._world)
                expected = sent.clone()
                if self._world > 1:
                    dist.all_to_all_single(expected, sent, group=self._group)
            plan = self._algorithm.plan(tuple(sent.tolist()), tuple(expected.tolist()))
            route = FlatRoute(self._algorithm, plan, sent_choices, (count, top_k), int(expected.sum()))
            arrived = records.new_empty((route.arriving, 2))
            self._algorithm.run(plan, records, arrived)
            rows = route.spread(tokens.detach())
        return dispatched(
            tokens,
            weights,
            rows,
            arrived[:, 1].contiguous().view(torch.float32),
            arrived[:, 0].to(torch.int64),
            tuple(expected.tolist()),
            self._traffic(ranks, tokens.shape[1] * tokens.itemsize),
            route,
        )

    def _traffic(self, ranks: torch.Tensor, row_bytes: int) -> DispatchTraffic:
        """Of a dispatch whose every choice goes straight to its rank."""
        node_of = self._node_of.to(ranks.device)
        elsewhere = int((node_of[ranks] != node_of[self._rank]).sum())
        within = int((ranks != self._rank).sum()) - elsewhere
        strangers = int((node_of != node_of[self._rank]).sum())
        return DispatchTraffic(
            logical_between=elsewhere * row_bytes,
            logical_within=within * row_bytes,
            sent_between=elsewhere * row_bytes,
            sent_within=within * row_bytes,
            routing_between=elsewhere * RECORD_BYTES + strangers * COUNT_BYTES,
            routing_within=within * RECORD_BYTES + (self._world - 1 - strangers) * COUNT_BYTES,
        )


@dataclass(frozen=True)
class FlatRoute:
    """The way of one dispatch; see ``dispatch.Route``.

    Attributes:
        algorithm, plan: of the exchange. sent_choices: choices by token and number, as they are sent.
        shape: tokens and choices of each. arriving: choices that arrive here.
    """

    algorithm: AllToAll
    plan: Plan
    sent_choices: torch.Tensor
    shape: tuple[int, int]
    arriving: int

    def spread(self, tokens: torch.Tensor) -> torch.Tensor:
        with region("alltoall.pack"):
            packed = tokens[self.sent_choices // self.shape[1]]
        rows = packed.new_empty((self.arriving, tokens.shape[1]))
        self.algorithm.run(self.plan, packed, rows)
        return rows

    def collect(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        back = torch.empty((len(self.sent_choices), rows.shape[1]), dtype=dtype, device=rows.device)
        self.algorithm.run(self.plan.reverse(), rows.to(dtype), back)
        with region("alltoall.unpack"):
            tokens = self.sent_choices // self.shape[1]
            return sum_rows(back.to(precise_dtype(dtype)), tokens, self.shape[0]).to(dtype)

    def answer(self, numbers: torch.Tensor) -> torch.Tensor:
        back = numbers.new_empty((len(self.sent_choices), 1))
        self.algorithm.run(self.plan.reverse(), numbers[:, None].contiguous(), back)
        result = numbers.new_zeros(self.shape[0] * self.shape[1])
        result[self.sent_choices] = back[:, 0]
        return result.view(self.shape)
