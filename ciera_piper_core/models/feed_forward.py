"""The feed-forward parts of a layer: dense blocks, and routed experts with their router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ciera_piper_core.alltoall.dispatch import DROPPED
from ciera_piper_core.moe import grouped
from ciera_piper_core.moe.activation import activate
from ciera_piper_core.moe.router import Router
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torch import Tensor

    from ciera_piper_core.models.architecture import Experts
    from ciera_piper_core.moe.balance import AuxiliaryScale
    from ciera_piper_core.training.recipe import Routing


class FeedForward(torch.nn.Module):
    """A dense block: SwiGLU with three matrices, ReLU with two; uninitialised.

    Attributes:
        up, gate: ``(ffn, hidden)``; ``gate`` is None with two matrices.
        down: ``(hidden, ffn)``.

    Raises:
        ValueError: neither two nor three matrices.
    """

    def __init__(
        self, hidden: int, ffn: int, matrices: int = 3, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        if matrices not in (2, 3):
            raise ValueError(f"a feed-forward block has 2 or 3 matrices, not {matrices}")

        def weight(rows: int, columns: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(rows, columns, dtype=dtype, device=device))

        self.up = weight(ffn, hidden)
        self.gate = weight(ffn, hidden) if matrices == 3 else None
        self.down = weight(hidden, ffn)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., hidden)`` to the same shape."""
        up = F.linear(x, self.up)
        return F.linear(activate(up, None if self.gate is None else F.linear(x, self.gate)), self.down)


class RoutedExperts(torch.nn.Module):
    """A router and the experts that it chooses among, all on this rank.

    Attributes:
        router: of them.
        experts: their weights.
    """

    def __init__(
        self,
        experts: Experts,
        hidden: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        routing: Routing | None = None,
        auxiliary: AuxiliaryScale | None = None,
        skew_seed: int = 0,
    ) -> None:
        """
        Args:
            routing, auxiliary, skew_seed: of the router.
        """
        super().__init__()
        self.router = Router(
            experts.experts,
            experts.top_k,
            hidden,
            dtype=dtype,
            device=device,
            routing=routing,
            auxiliary=auxiliary,
            skew_seed=skew_seed,
        )
        self.experts = grouped.Experts(
            experts.experts, hidden, experts.ffn, experts.matrices, dtype=dtype, device=device
        )

    def forward(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Send tokens to their experts and add up what comes back, by the router's weights.

        Args:
            x: ``(batch, sequence, hidden)``, or ``(tokens, hidden)`` of one sequence.
            counts: tokens of each expert. None: whatever the router chose, in one grouped product a
                matrix; unless choices are dropped, no shape depends on the choice. Stated: the experts
                run one after the other as plain products of these sizes, which is for tensors without
                data (fake, meta), where the choice cannot be read.

        Returns:
            The shape of ``x``; 0 for tokens all of whose choices were dropped.

        Raises:
            ValueError: stated counts do not add up to the token copies, or are not the router's.
        """
        with region("moe.router"):
            routes = self.router(x)
        tokens, choices = x.flatten(0, -2), routes.experts.shape[1]
        with region("moe.dispatch"):
            by_expert, order = routes.experts.flatten().sort(stable=True)
            if self.router.drops:
                by_expert, order = _without_dropped(by_expert, order, counts)
            sources = order // choices
            rows: Tensor = _Copies.apply(tokens, sources)  # type: ignore[no-untyped-call]
            weights = routes.weights.flatten().index_select(0, order)
        with region("moe.experts"):
            if counts is None:
                expert = torch.arange(self.router.experts, device=x.device)
                ends = torch.searchsorted(by_expert, expert, right=True, out_int32=True)
                rows = grouped.grouped_experts(self.experts, rows, ends, weights)
            else:
                self._check(counts, by_expert)
                rows = grouped.looped_experts(self.experts, rows, counts, weights)
        with region("moe.combine"):
            combined: Tensor = _Combine.apply(rows, sources, len(tokens))  # type: ignore[no-untyped-call]
            return combined.view_as(x)

    def _check(self, counts: Sequence[int], by_expert: Tensor) -> None:
        experts = self.router.experts
        if len(counts) != experts or sum(counts) != len(by_expert):
            raise ValueError(
                f"stated counts: {sum(counts)} token copies for {len(counts)} experts; "
                f"the router gives {len(by_expert)} to {experts}"
            )
        if _has_data(by_expert) and torch.bincount(by_expert, minlength=experts).tolist() != list(counts):
            raise ValueError("stated counts are not what the router chose: leave them out for tensors with data")


def _without_dropped(by_expert: Tensor, order: Tensor, counts: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """The sorted choices that were not dropped; these sort first. Of tensors without data, as many as stated."""
    kept = sum(counts) if counts is not None and not _has_data(by_expert) else int((by_expert != DROPPED).sum())
    return by_expert[len(by_expert) - kept :], order[len(order) - kept :]


class _Copies(torch.autograd.Function):
    """The rows of tokens, once for each choice. Written out, because torch's ``index_select`` would mark no region."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, sources: Tensor) -> Tensor:
        ctx.save_for_backward(sources)
        ctx.tokens = len(tokens)
        return tokens.index_select(0, sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (sources,) = ctx.saved_tensors
        (gradient,) = gradients
        with region("moe.dispatch"):
            return gradient.new_zeros(ctx.tokens, gradient.shape[1]).index_add_(0, sources, gradient), None


class _Combine(torch.autograd.Function):
    """Sum of the rows of each token. Written out, because torch's ``index_add`` would keep the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sources: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(sources)
        return rows.new_zeros(tokens, rows.shape[1]).index_add_(0, sources, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (sources,) = ctx.saved_tensors
        with region("moe.combine"):
            return gradients[0].index_select(0, sources), None, None


def _has_data(tensor: Tensor) -> bool:
    # Plain tensors only: of a fake one nothing can be read.
    return type(tensor) is torch.Tensor and tensor.device.type != "meta"
