"""Rotary positions, applied in place: nothing is kept for the backward pass, not even a table of angles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

BASE = 10_000.0

POSITIONS = 1024
"""Positions that are turned at a time."""


def rotate_(x: Tensor, heads: int, width: int, rotated: int) -> Tensor:
    """Turn the last channels of some heads by angles that grow with the position.

    Channel ``i`` of the rotated ones pairs with channel ``i + rotated / 2``; the pair turns by
    ``position / 10000^(2i / rotated)``.

    Args:
        x: ``(batch, sequence, n * width)``, ``n`` heads side by side; changed in place, so no view
            and nothing that an earlier operation keeps.
        heads: how many, from the first on, are turned; the others stay.
        width: of a head. rotated: how many of its last channels turn; even.

    Returns:
        ``x``.
    """
    result: Tensor = _Rotation.apply(x, heads, width, rotated)  # type: ignore[no-untyped-call]
    return result


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, heads: int, width: int, rotated: int) -> Tensor:
        ctx.dimensions = (heads, width, rotated)
        ctx.mark_dirty(x)
        _turn(x, heads, width, rotated, 1)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # A rotation's gradient is the rotation back.
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        heads, width, rotated = ctx.dimensions
        _turn(gradient, heads, width, rotated, -1)
        return gradient, None, None, None


def _turn(x: Tensor, heads: int, width: int, rotated: int, direction: int) -> None:
    precise = torch.promote_types(x.dtype, torch.float32)
    half = rotated // 2
    frequencies = BASE ** (-torch.arange(half, device=x.device, dtype=precise) / half)
    angles = torch.arange(x.shape[1], device=x.device, dtype=precise)[:, None] * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None] * direction
    channels = torch.unflatten(x, 2, (-1, width))[:, :, :heads, width - rotated :]
    # A part of the sequence at a time: the float32 products are as large as what they turn.
    parts = (torch.split(t, POSITIONS, dim) for t, dim in ((channels, 1), (cos, 0), (sin, 0)))
    for part, near, far in zip(*parts, strict=True):
        first, second = part[..., :half], part[..., half:]
        turned = first * near - second * far
        second.copy_(second * near + first * far)
        first.copy_(turned)
        del turned
