"""The top-k router: float32 scores of every expert from tokens that stay in their own dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor


class Routes(NamedTuple):
    """Where tokens go.

    Attributes:
        weights: ``(tokens, top_k)``, float32; differentiable.
        experts: ``(tokens, top_k)``, int64; each token's are distinct, the best first.
        probabilities: ``(tokens, experts)``, float32: the softmax over all experts; differentiable.
    """

    weights: Tensor
    experts: Tensor
    probabilities: Tensor


class Router(torch.nn.Module):
    """Softmax over all experts, then the ``top_k`` largest, made to sum to 1.

    With one expert a token the weight is the probability itself: made to sum to 1 it would always
    be 1, and the router would learn nothing.

    Attributes:
        weight: ``(experts, hidden)``.

    Raises:
        ValueError: more experts a token than there are.
    """

    def __init__(
        self, experts: int, top_k: int, hidden: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= experts:
            raise ValueError(f"a token cannot go to {top_k} of {experts} experts")
        self.top_k = top_k
        self.weight = torch.nn.Parameter(torch.empty(experts, hidden, dtype=dtype, device=device))

    def forward(self, tokens: Tensor) -> Routes:
        """Route ``(tokens, hidden)``."""
        scores: Tensor = _PreciseLinear.apply(tokens, self.weight)  # type: ignore[no-untyped-call]
        probabilities = F.softmax(scores, dim=-1)
        weights, experts = torch.topk(probabilities, self.top_k, dim=-1)
        if self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routes(weights, experts, probabilities)


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
        of_x = (gradient @ weight.to(gradient.dtype)).to(x.dtype)
        return of_x, (gradient.T @ x.to(gradient.dtype)).to(weight.dtype)
