"""The router: float32 scores of every expert from tokens that stay in their own dtype, and who is chosen by them.

All that is counted is counted over one sequence, so that no choice depends on how a batch is cut over
ranks and microbatches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ciera_piper_core.alltoall.dispatch import DROPPED
from ciera_piper_core.moe.balance import AuxiliaryScale, attach, balance_loss
from ciera_piper_core.ranges import region
from ciera_piper_core.training.recipe import Routing

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

PLAIN = Routing(balance_weight=0)
"""The k best, no auxiliary loss."""


class Routes(NamedTuple):
    """Where tokens go; tokens are flat, sequence after sequence.

    Attributes:
        weights: ``(tokens, choices)``, float32, 0 for dropped choices; differentiable.
        experts: ``(tokens, choices)``, int64, or ``DROPPED``; each token's are distinct, the best first.
            ``choices`` is ``top_k``; under ``expert_choice`` it is the number of experts, and column e
            says whether expert e took the token.
        probabilities: ``(tokens, experts)``, float32: the softmax over all experts; differentiable.
    """

    weights: Tensor
    experts: Tensor
    probabilities: Tensor


class Router(torch.nn.Module):
    """Softmax over all experts, then a choice by the routing's kind; the chosen weights are made to sum to 1.

    With one expert a token the weight is the probability itself: made to sum to 1 it would always
    be 1, and the router would learn nothing. Weights are made to sum to 1 before choices are dropped for
    lack of capacity, not after. Under ``expert_choice`` they are the probabilities.

    ``expert_choice`` looks at the whole sequence to place a token: losses measured with it know the future.

    Attributes:
        experts, top_k: as given.
        weight: ``(experts, hidden)``.
        routing: as given.
        bias: of ``loss_free``: ``(experts,)``, float32, a buffer of the state dict; else None.
        counts: ``(experts,)``, int64: choices served since they were last taken, by this rank's passes with
            gradients (what a backward pass computes again is not counted twice); None unless asked for
            (``loss_free`` does).
        auxiliary: scale of the auxiliary loss's gradient.

    Raises:
        ValueError: more experts a token than there are.
    """

    bias: Tensor | None
    counts: Tensor | None
    skew_scores: Tensor | None

    def __init__(
        self,
        experts: int,
        top_k: int,
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
            routing: None for the k best without auxiliary loss.
            auxiliary: shared by all layers of a model; None for one of its own.
            skew_seed: of the order of experts in which a skew favours them.
        """
        super().__init__()
        if not 1 <= top_k <= experts:
            raise ValueError(f"a token cannot go to {top_k} of {experts} experts")
        # Not the weight's rows: a system may hold that in parts.
        self.experts, self.top_k = experts, top_k
        self.routing = routing or PLAIN
        self.auxiliary = auxiliary or AuxiliaryScale()
        self.skew_seed = skew_seed
        self.weight = torch.nn.Parameter(torch.empty(experts, hidden, dtype=dtype, device=device))
        loss_free = self.routing.kind == "loss_free"
        self.register_buffer("bias", torch.zeros(experts, device=device) if loss_free else None)
        self.register_buffer("skew_scores", self._skew(device), persistent=False)
        self.register_buffer("counts", None, persistent=False)
        if loss_free:
            self.count()

    @property
    def drops(self) -> bool:
        """Whether ``Routes.experts`` may have ``DROPPED`` choices."""
        return self.routing.kind in ("capacity", "expert_choice")

    def forward(self, tokens: Tensor) -> Routes:
        """Route ``(batch, sequence, hidden)``, or ``(tokens, hidden)`` of one sequence."""
        batch = tokens.shape[0] if tokens.dim() == 3 else 1
        scores: Tensor = _PreciseLinear.apply(tokens.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        if self.skew_scores is not None:
            scores = scores + self.skew_scores
        probabilities = F.softmax(scores, dim=-1)
        if self.routing.kind == "expert_choice":
            weights, experts = self._chosen_by_experts(probabilities, batch)
        else:
            weights, experts = self._chosen_by_tokens(probabilities, batch)
        self._count(experts)
        return Routes(weights, experts, probabilities)

    def capacity(self, sequence: int) -> int:
        """Tokens of a sequence that an expert takes at most, under ``capacity`` and ``expert_choice``."""
        wanted = math.ceil(self.routing.capacity_factor * sequence * self.top_k / self.experts)
        return min(sequence, wanted)

    def count(self) -> None:
        """Count choices from now on."""
        self.counts = torch.zeros(self.experts, dtype=torch.int64, device=self.weight.device)

    def take_counts(self) -> Tensor:
        """The counts so far, ``(experts,)``, int64; they start again at 0.

        Raises:
            ValueError: nobody asked to count.
        """
        if self.counts is None:
            raise ValueError("this router does not count: call count() before the first pass")
        taken = self.counts.clone()
        self.counts.zero_()
        return taken

    def reset_buffers(self) -> None:
        """Buffers as they are at first, for a module whose memory was just made (``to_empty``)."""
        for buffer in (self.bias, self.counts):
            if buffer is not None:
                buffer.zero_()
        if self.skew_scores is not None:
            self.skew_scores = self._skew(self.weight.device)

    def _chosen_by_tokens(self, probabilities: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        if self.bias is None:
            weights, experts = torch.topk(probabilities, self.top_k, dim=-1)
        else:
            experts = torch.topk(probabilities.detach() + self.bias, self.top_k, dim=-1).indices
            weights = probabilities.gather(-1, experts)
        if self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        # Without tokens there is nothing to balance, and the mean of nothing is no number.
        if self.bias is None and self.routing.balance_weight and len(probabilities):
            loss = balance_loss(
                torch.unflatten(probabilities, 0, (batch, -1)), torch.unflatten(experts, 0, (batch, -1))
            )
            weights = attach(weights, self.routing.balance_weight * loss, self.auxiliary)
        if self.routing.kind == "capacity":
            weights, experts = self._drop(weights, experts, batch)
        return weights, experts

    def _drop(self, weights: Tensor, experts: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Of each sequence, an expert keeps the first choices of it that fit."""
        chosen = experts.view(batch, -1)
        sorted_experts, order = chosen.sort(dim=1, stable=True)
        first = torch.searchsorted(sorted_experts, sorted_experts)
        place = torch.arange(chosen.shape[1], device=chosen.device) - first
        fits = place < self.capacity(chosen.shape[1] // self.top_k)
        kept = torch.empty_like(fits).scatter_(1, order, fits).view_as(experts)
        return weights * kept, experts.masked_fill(~kept, DROPPED)

    def _chosen_by_experts(self, probabilities: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        by_sequence = probabilities.detach().view(batch, -1, self.experts)
        best = by_sequence.topk(self.capacity(by_sequence.shape[1]), dim=1).indices
        taken = torch.zeros_like(by_sequence, dtype=torch.bool).scatter_(1, best, True).view_as(probabilities)
        numbers = torch.arange(self.experts, device=probabilities.device).expand_as(taken)
        return probabilities * taken, numbers.masked_fill(~taken, DROPPED)

    def _count(self, experts: Tensor) -> None:
        if self.counts is None or not torch.is_grad_enabled() or is_recomputing():
            return
        chosen = experts.flatten()
        served = chosen != DROPPED
        self.counts.scatter_add_(0, chosen.clamp(min=0), served.to(self.counts.dtype))

    def _skew(self, device: torch.device | str) -> Tensor | None:
        if not self.routing.skew:
            return None
        rank = torch.randperm(self.experts, generator=torch.Generator().manual_seed(self.skew_seed))
        return (-self.routing.skew * torch.log(1 + rank.to(torch.float32))).to(device)


def is_recomputing() -> bool:
    """Whether this is part of a backward pass: activations that are computed again."""
    return torch._C._current_graph_task_id() != -1


class _PreciseLinear(torch.autograd.Function):
    """A product in float32 that keeps its input as it came, and not a float32 copy of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        precise = torch.promote_types(x.dtype, torch.float32)
        return x.to(precise) @ weight.to(precise).T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        with region("moe.router"):
            of_x = (gradient @ weight.to(gradient.dtype)).to(x.dtype)
            return of_x, (gradient.T @ x.to(gradient.dtype)).to(weight.dtype)
