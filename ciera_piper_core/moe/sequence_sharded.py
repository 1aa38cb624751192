"""Expert parallelism where ranks that hold the same tokens each send their part of them only.

After X-MoE's sequence-sharded MoE blocks: ranks of a tensor-parallel group have the same tokens.
Each takes its part to the experts, so that activations and traffic of the block shrink by the number of
ranks, and the group gathers what comes back. The router sees all tokens on every rank, because its
losses and capacities are counted over whole sequences; it is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from ciera_piper_core.moe.expert_parallel import ExpertParallel
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.alltoall.dispatch import Dispatcher
    from ciera_piper_core.models.feed_forward import RoutedExperts
    from ciera_piper_core.moe.expert_table import ExpertTable
    from ciera_piper_core.moe.router import Routes


class SequenceSharded(ExpertParallel):
    """See the module. Gradients of the router and of the tokens are whole, and the same on all ranks of ``same``.

    Attributes:
        same: the ranks with the same tokens.
    """

    def __init__(
        self,
        plain: RoutedExperts,
        group: dist.ProcessGroup,
        dispatcher: Dispatcher,
        same: dist.ProcessGroup,
        table: ExpertTable | None = None,
    ) -> None:
        """
        Args:
            group: all ranks that share the experts, those of ``same`` among them.
        """
        super().__init__(plain, group, dispatcher, table)
        self.same = same
        self._part, self._parts = dist.get_rank(same), dist.get_world_size(same)

    def through_experts(self, tokens: torch.Tensor, routes: Routes) -> torch.Tensor:
        """As ``ExpertParallel.through_experts``, for this rank's part of the tokens, then gathered."""
        if self._parts == 1:
            return super().through_experts(tokens, routes)
        with region("moe.dispatch"):
            mine = sliced(tokens, self.same)
            weights = sliced(routes.weights, self.same)
            first, last = bounds(len(tokens), self._part, self._parts)
            part = routes._replace(weights=weights, experts=routes.experts[first:last])
        combined = super().through_experts(mine, part)
        with region("moe.combine"):
            return gathered(combined, self.same, len(tokens))

    def _count(self, routes: Routes) -> None:
        first, last = bounds(len(routes.experts), self._part, self._parts)
        super()._count(routes._replace(experts=routes.experts[first:last]))


def bounds(rows: int, part: int, parts: int) -> tuple[int, int]:
    """Where a part of so many rows begins and ends; the last may be shorter, or empty."""
    each = -(-rows // parts)
    return min(part * each, rows), min((part + 1) * each, rows)


def sliced(rows: torch.Tensor, same: dist.ProcessGroup) -> torch.Tensor:
    """This rank's part of rows that all ranks of ``same`` have; backward gathers the parts' gradients."""
    if torch.is_grad_enabled() and not rows.requires_grad:
        # The gathering is collective: it must be in every rank's graph.
        rows = rows.detach().requires_grad_()
    part: torch.Tensor = _Slice.apply(rows, same)  # type: ignore[no-untyped-call]
    return part


def gathered(part: torch.Tensor, same: dist.ProcessGroup, rows: int) -> torch.Tensor:
    """All ``rows`` from the parts; backward, whose gradient all ranks have, takes this rank's part of it."""
    whole: torch.Tensor = _Gather.apply(part, same, rows)  # type: ignore[no-untyped-call]
    return whole


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: torch.Tensor, same: dist.ProcessGroup) -> torch.Tensor:
        context.same, context.rows = same, len(rows)
        first, last = bounds(len(rows), dist.get_rank(same), dist.get_world_size(same))
        return rows[first:last].clone()

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        with region("moe.dispatch"):
            return _all_rows(gradient, context.same, context.rows), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: torch.Tensor, same: dist.ProcessGroup, rows: int) -> torch.Tensor:
        context.same = same
        return _all_rows(part, same, rows)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        first, last = bounds(len(gradient), dist.get_rank(context.same), dist.get_world_size(context.same))
        return gradient[first:last].contiguous(), None, None


def _all_rows(part: torch.Tensor, same: dist.ProcessGroup, rows: int) -> torch.Tensor:
    parts = dist.get_world_size(same)
    each = -(-rows // parts)
    padded = part.new_zeros((each, *part.shape[1:]))
    padded[: len(part)] = part
    whole = part.new_empty((parts * each, *part.shape[1:]))
    dist.all_gather_single(whole, padded, group=same)
    return whole[:rows]
