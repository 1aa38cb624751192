"""The global gradient norm, with each parameter in it once however parameters are spread, and clipping to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ciera_piper_core.alltoall.counts import group_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """Gradients that are spread over ranks in the same way.

    Attributes:
        gradients: this rank's; plain tensors, or DTensors, which know themselves over which ranks they are
            sharded. An empty list where this rank has none: it still takes part.
        groups: ranks that hold *other* parameters (or parts of the same ones): sums of squares are added
            over these groups one after the other. Empty: every rank has these gradients, all the same.
    """

    gradients: Sequence[Tensor]
    groups: tuple[dist.ProcessGroup, ...] = ()


def gradient_norm(parts: Sequence[Spread]) -> float:
    """The 2-norm over all parameters (collective over the parts' groups, in order; on all their ranks the same).

    For example: what is replicated over data ranks in a stage of a pipeline has ``groups=(stages,)``, the
    stage's experts ``(expert_peers, stages)``. Sums are taken in float64.

    Args:
        parts: the same number, with the same kinds of groups, on all ranks.
    """
    total = 0.0
    for part in parts:
        squares = _sum_of_squares(part.gradients)
        if part.groups and not part.gradients:
            squares = squares.to(group_device(part.groups[0]))
        for group in part.groups:
            if dist.get_world_size(group) > 1:
                dist.all_reduce(squares, group=group)
        total += float(squares)
    return math.sqrt(total)


def _sum_of_squares(gradients: Sequence[Tensor]) -> Tensor:
    """In float64, without dimensions; of DTensors over all ranks that they are sharded on."""
    sums: dict[tuple[dist.ProcessGroup, ...], Tensor] = {}
    for gradient in gradients:
        groups, local = _shards(gradient)
        square = torch.linalg.vector_norm(local, dtype=torch.float64).square()
        sums[groups] = sums[groups] + square if groups in sums else square
    device = gradients[0].device if gradients else torch.device("cpu")
    total = torch.zeros((), dtype=torch.float64, device=device)
    for groups, summed in sums.items():
        for group in groups:
            if dist.get_world_size(group) > 1:
                dist.all_reduce(summed, group=group)
        total = total + summed
    return total


def _shards(gradient: Tensor) -> tuple[tuple[dist.ProcessGroup, ...], Tensor]:
    """The groups that a gradient is sharded over, and this rank's shard."""
    if not isinstance(gradient, DTensor):
        return (), gradient
    mesh = gradient.device_mesh
    groups = tuple(
        mesh.get_group(dimension) for dimension, placement in enumerate(gradient.placements) if placement.is_shard()
    )
    return groups, gradient.to_local()


def clip_factor(norm: float, clip_norm: float) -> float:
    """What gradients of that norm are multiplied with: ``clip_norm / (norm + 1e-6)``, at most 1; 1 for no clipping."""
    return min(1.0, clip_norm / (norm + 1e-6)) if clip_norm else 1.0


def scale_gradients(gradients: Iterable[Tensor], factor: float) -> None:
    """Multiply gradients in place; 1 costs nothing."""
    if factor != 1.0:
        for gradient in gradients:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.mul_(factor)
