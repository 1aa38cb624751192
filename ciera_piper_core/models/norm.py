"""Root-mean-square normalisation that keeps its input and one number a token for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

EPSILON = 1e-6

ROWS = 256
"""Tokens that are widened to float32 at a time, on the CPU."""


class RMSNorm(torch.nn.Module):
    """``x / sqrt(mean(x^2) + 1e-6) * weight`` over the last dimension, computed in float32.

    Attributes:
        weight: ``(width,)``.
    """

    def __init__(self, width: int, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``(..., width)``; the result has the input's shape and dtype."""
        if x.device.type == "cuda":
            # torch's fused kernel keeps the same two tensors.
            return F.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)
        normalised: Tensor = _RMSNorm.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return normalised


class _RMSNorm(torch.autograd.Function):
    """Written out, because torch's own on the CPU keeps several float32 copies of its input.

    Rows are widened a few at a time, so that there is never a float32 copy of the whole either.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows, out = x.flatten(0, -2), torch.empty(x.shape, dtype=x.dtype, device=x.device)
        scales = []
        for part, result in zip(torch.split(rows, ROWS), torch.split(out.flatten(0, -2), ROWS), strict=True):
            wide = part.to(_accumulated(x.dtype))
            scales.append(torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON))
            result.copy_(wide.mul(scales[-1]).mul_(weight))
        scale = torch.cat(scales)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        of_weight = torch.zeros(weight.shape, dtype=scale.dtype, device=x.device)
        rows = (t.flatten(0, -2) for t in (gradients[0], x, scale, out))
        for gradient, part, own_scale, result in zip(*(torch.split(t, ROWS) for t in rows), strict=True):
            wide = gradient.to(scale.dtype)
            unit = part.to(scale.dtype) * own_scale
            of_weight += (wide * unit).sum(0)
            wide = wide * weight
            shared = (wide * unit).mean(-1, keepdim=True)
            result.copy_((wide - unit.mul_(shared)).mul_(own_scale))
            # Before the next rows are widened, not after.
            del wide, unit
        return out, of_weight.to(weight.dtype)


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """What to compute in: float32, or float64 where the input has it."""
    return torch.promote_types(dtype, torch.float32)
