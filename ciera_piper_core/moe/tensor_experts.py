"""Experts that are spread over one group of ranks and cut over another: tensor and expert parallelism together.

After DeepSpeed-TED: the ranks of a tensor-parallel group have the same tokens, so each sends
another part of them to the experts; where they arrive, the ranks that have the parts of the same
experts gather what each received. On the way back the parts' outputs are summed, each rank again
takes the rows that it had received, and at home the tokens are gathered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.models.tensor_collectives import (
    TensorRanks,
    all_rows,
    all_rows_for_parts,
    own_rows,
    own_rows_summed,
    spread,
    summed,
)
from ciera_piper_core.models.tensor_parallel import cut_experts
from ciera_piper_core.moe import grouped
from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

    from ciera_piper_core.alltoall.dispatch import Dispatched, Dispatcher
    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.moe.expert_table import ExpertTable
    from ciera_piper_core.moe.router import Routes


class TensorExpertParallel(ExpertParallel):
    """``ExpertParallel`` whose every expert is cut over a tensor-parallel group; maps copied tokens to copied tokens.

    The router is copied, and routes all tokens on every rank, so that what it counts over a sequence is
    counted over a whole one.

    Attributes:
        tensor: the ranks that the experts are cut over.
        drops_duplicates: each rank sends another part of the tokens; otherwise all send all of them, and
            every row crosses as often as there are ranks in ``tensor``.
        cuts: of the experts' matrices, by name.
    """

    def __init__(
        self,
        plain: RoutedExperts,
        group: dist.ProcessGroup,
        dispatcher: Dispatcher,
        table: ExpertTable | None = None,
        *,
        tensor: dist.ProcessGroup,
        drops_duplicates: bool = True,
    ) -> None:
        """Take over this rank's part of ``plain``; arguments as ``ExpertParallel`` has them.

        Raises:
            ValueError: also for an inner width that is too small.
        """
        super().__init__(plain, group, dispatcher, table)
        self.tensor = TensorRanks.of(tensor)
        self.drops_duplicates = drops_duplicates
        self.cuts = cut_experts(self.experts, tensor)

    def through_experts(self, tokens: Tensor, routes: Routes) -> Tensor:
        """Tokens to their experts and back (collective over both groups), see ``ExpertParallel.through_experts``."""
        ranks, at_home = self.tensor, self.tensor.shares(len(tokens))
        with region("moe.dispatch"):
            expert_ranks, slots = self._places(routes.experts)
            if self.drops_duplicates:
                mine = slice(sum(at_home[: ranks.rank]), sum(at_home[: ranks.rank + 1]))
                expert_ranks, slots = expert_ranks[mine], slots[mine]
                sent, weights = own_rows(tokens, ranks, at_home), own_rows(routes.weights, ranks, at_home)
            else:
                sent, weights = spread(tokens, ranks), spread(routes.weights, ranks)
            arrived = self.dispatcher.dispatch(sent, expert_ranks, weights, slots)
            self.traffic = arrived.traffic
            rows, row_weights, labels, counts = self._gathered(arrived)
            slot, order = labels.sort(stable=True)
            here = torch.arange(len(self.local_experts), device=slot.device)
            ends = torch.searchsorted(slot, here, right=True, out_int32=True)
            rows, row_weights = rows.index_select(0, order), row_weights.index_select(0, order)
        with region("moe.experts"):
            rows = grouped.grouped_experts(self.experts, rows, ends, row_weights)
        with region("moe.combine"):
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            rows = rows.index_select(0, back)
            rows = own_rows_summed(rows, ranks, counts) if self.drops_duplicates else summed(rows, ranks)
            # The weights are in the rows already.
            combined = replace(arrived, weights=None).combine(rows)
            return all_rows(combined, ranks, at_home) if self.drops_duplicates else combined

    def _gathered(self, arrived: Dispatched) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
        """Rows, weights and labels that the parts of these experts need, and how many of them each rank received."""
        assert arrived.weights is not None
        ranks = self.tensor
        if not self.drops_duplicates:
            # All ranks received the same.
            return arrived.rows, arrived.weights, arrived.labels, ()
        counts = ranks.counts(len(arrived.rows), arrived.rows.device)
        return (
            all_rows_for_parts(arrived.rows, ranks, counts),
            all_rows_for_parts(arrived.weights, ranks, counts),
            all_rows(arrived.labels, ranks, counts),
            counts,
        )
