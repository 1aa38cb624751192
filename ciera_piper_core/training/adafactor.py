"""Adafactor whose statistics belong to one matrix each, so that it steps alike however stacked experts are spread.

torch's own takes norms over a whole parameter: a stack of experts would be stepped by norms of all of
its experts, which no rank has when they are spread. Here every matrix of a stack counts for itself. On a
single matrix, or a vector, it is torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor
    from torch.distributed.tensor.placement_types import Placement

DECAY = -0.8
CLIP = 1.0
LEAST_SCALE = 1e-3


class Adafactor(torch.optim.Optimizer):
    """Second moments by row and column (arXiv 1804.04235), no first moments.

    Parameters are float32: plain tensors, or DTensors that are sharded or replicated; a DTensor's
    statistics are summed over the ranks that share its matrix. A step is then collective.

    State of a parameter ``(*stack, rows, columns)``: ``step``, a number; ``row``: ``(*stack, rows)``,
    ``column``: ``(*stack, columns)``; of a vector ``step`` and ``variance``, of its shape.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        for weight in self._weights():
            self.state[weight] = new_state(weight)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient.

        Raises:
            ValueError: a closure was given.
        """
        if closure is not None:
            raise ValueError("Adafactor takes no closure")
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _step(weight, weight.grad, self.state[weight], group["lr"], group["weight_decay"])

    def _weights(self) -> Iterable[torch.nn.Parameter]:
        return (weight for group in self.param_groups for weight in group["params"])


def new_state(weight: Tensor) -> dict[str, Tensor]:
    """Of a parameter that was never stepped."""
    state = {"step": torch.zeros(())}
    if weight.dim() < 2:
        return state | {"variance": torch.zeros_like(weight)}
    return state | {"row": _without(weight, weight.dim() - 1), "column": _without(weight, weight.dim() - 2)}


def _step(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, weight_decay: float) -> None:
    own, g = _local(weight), _local(gradient)
    # Of vectors, all; of stacks, the matrix that each belongs to.
    last = tuple(range(weight.dim()))[-2:]
    elements = 1
    for dimension in last:
        elements *= weight.shape[dimension]
    state["step"] += 1
    step = float(state["step"])
    fresh = step**DECAY
    scale = _total(weight, own.square(), last).div_(elements).sqrt_().clamp_(min=LEAST_SCALE)
    rate = scale.mul_(min(lr, step**-0.5))
    if weight_decay:
        own.mul_(1 - lr * weight_decay)
    least = torch.finfo(own.dtype).eps
    squares = g.square()
    if weight.dim() < 2:
        variance = _local(state["variance"]).lerp_(squares, fresh).clone()
    else:
        rows, columns = weight.dim() - 2, weight.dim() - 1
        row, column = _local(state["row"]), _local(state["column"])
        row.lerp_(_total(weight, squares, (columns,)).squeeze(columns).div_(weight.shape[columns]), fresh)
        column.lerp_(_total(weight, squares, (rows,)).squeeze(rows).div_(weight.shape[rows]), fresh)
        mean = _total(weight, row.unsqueeze(columns), (rows,)).div_(weight.shape[rows]).clamp_(min=least)
        variance = row.unsqueeze(columns) * column.unsqueeze(rows) / mean
    update = variance.clamp_(min=least * least).rsqrt_().mul_(g)
    size = _total(weight, update.square(), last).div_(elements).sqrt_()
    own.sub_(update.mul_(rate / (size / CLIP).clamp_(min=1)))


def _total(weight: Tensor, local: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    """Sum over dimensions of the whole parameter, which stay with length 1; ``local`` is this rank's part of it."""
    total = local.sum(dimensions, keepdim=True)
    if isinstance(weight, DTensor):
        for axis, placement in enumerate(weight.placements):
            if isinstance(placement, Shard) and placement.dim % weight.dim() in dimensions:
                dist.all_reduce(total, group=weight.device_mesh.get_group(axis))
    return total


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _without(weight: Tensor, dimension: int) -> Tensor:
    """Zeros of the parameter's shape without one dimension, spread as it is."""
    shape = torch.Size(size for number, size in enumerate(weight.shape) if number != dimension)
    if not isinstance(weight, DTensor):
        return torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    own = weight.to_local().shape
    local = torch.zeros([s for n, s in enumerate(own) if n != dimension], dtype=weight.dtype, device=weight.device)
    placements = [_placement(placement, weight.dim(), dimension) for placement in weight.placements]
    strides: Any = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, weight.device_mesh, placements, run_check=False, shape=shape, stride=strides)


def _placement(placement: Placement, dimensions: int, removed: int) -> Placement:
    if not isinstance(placement, Shard):
        return placement
    at = placement.dim % dimensions
    return Replicate() if at == removed else Shard(at - (at > removed))
