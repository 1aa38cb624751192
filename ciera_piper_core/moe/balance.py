"""What keeps experts equally loaded: the auxiliary loss over one sequence, and the bias that follows the load.

The auxiliary loss is not added to the loss: its gradient enters the backward pass at an identity node
on the router's weights. So it works wherever a layer runs, also in a pipeline stage that never sees
the loss, or inside of another library's engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from torch import Tensor


class AuxiliaryScale:
    """What the gradient of the auxiliary loss is multiplied with; one object for all layers of a model.

    It is read in the backward pass. A system sets it to what its loss is multiplied with before
    ``backward``: the loss scale, divided by the microbatches whose gradients are summed.

    Attributes:
        value: the factor; a number or a tensor without dimensions.
    """

    def __init__(self, value: float | Tensor = 1.0) -> None:
        self.value: float | Tensor = value


def balance_loss(probabilities: Tensor, experts: Tensor) -> Tensor:
    """Mean over sequences of ``E * sum_e share_e * p_e``: 1 where all experts have the same, E where one has all.

    ``share_e`` is the part of a sequence's choices that went to expert e, ``p_e`` the mean of its
    probability over the sequence (Switch Transformer, arXiv 2101.03961, equations 4 to 6, with k choices
    a token). Nothing in it depends on how a batch is cut over ranks and microbatches.

    Args:
        probabilities: ``(batch, sequence, experts)``, float32; differentiable.
        experts: ``(batch, sequence, k)``, int64: all choices, also those that are dropped later.

    Returns:
        A scalar, float32.
    """
    batch, _, count = probabilities.shape
    chosen = experts.flatten(1)
    shares = torch.zeros(batch, count, dtype=probabilities.dtype, device=probabilities.device)
    shares.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=probabilities.dtype))
    shares = shares / chosen.shape[1]
    return count * (shares * probabilities.mean(1)).sum(-1).mean()


def attach(x: Tensor, auxiliary: Tensor, scale: AuxiliaryScale) -> Tensor:
    """``x`` unchanged; its backward pass hands ``scale.value`` to ``auxiliary``, a scalar, as its gradient."""
    attached: Tensor = _Attach.apply(x, auxiliary, scale)  # type: ignore[no-untyped-call]
    return attached


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, auxiliary: Tensor, scale: AuxiliaryScale) -> Tensor:
        ctx.scale, ctx.dtype, ctx.device = scale, auxiliary.dtype, auxiliary.device
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        value = torch.as_tensor(ctx.scale.value, dtype=ctx.dtype, device=ctx.device)
        return gradients[0], value, None


def update_biases(model: torch.nn.Module, groups: Iterable[dist.ProcessGroup] = (), *, applied: bool = True) -> None:
    """Move the bias of every ``loss_free`` router towards the mean load, and count anew (collective over ``groups``).

    An expert with more than the mean of the step's choices loses ``bias_rate``, one with fewer gains it
    (arXiv 2408.15664, algorithm 1). To be called once after each step.

    Args:
        model: whose routers have counted the tokens of this rank.
        groups: ranks that routed other tokens of the same step with the same routers; counts are summed
            over them one after the other. All ranks have the same biases afterwards.
        applied: False if the step was left out (its gradients were not finite): counts are forgotten.
    """
    from ciera_piper_core.moe.router import Router

    routers = [part for part in model.modules() if isinstance(part, Router) and part.bias is not None]
    if not routers:
        return
    counted = [router.take_counts() for router in routers]
    if not applied:
        return
    # One exchange for all layers, which may have different numbers of experts.
    counts = torch.cat(counted)
    for group in groups:
        dist.all_reduce(counts, group=group)
    for router, part in zip(routers, torch.split(counts, [len(count) for count in counted]), strict=True):
        assert router.bias is not None
        wanted = torch.sign(part.double().mean() - part.double())
        router.bias.add_(wanted.to(router.bias.dtype), alpha=router.routing.bias_rate)
