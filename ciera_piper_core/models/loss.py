"""Cross-entropy of next tokens that keeps the logits in their own dtype and no float32 copy of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.function import once_differentiable

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

ROWS = 256
"""Tokens whose logits are widened to float32 at a time."""


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of ``-log softmax(logits)[target]`` over all tokens, in float32.

    Args:
        logits: ``(..., vocab)``. targets: ``(...)``, int64.

    Returns:
        A scalar, float32.
    """
    loss: Tensor = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten())  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_sums = torch.cat([part.to(precise).logsumexp(-1) for part in torch.split(logits, ROWS)])
        ctx.save_for_backward(logits, targets, log_sums)
        of_target = logits.gather(-1, targets[:, None]).squeeze(-1)
        return (log_sums - of_target).mean()

    @staticmethod
    @once_differentiable
    @region("loss")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, targets, log_sums = ctx.saved_tensors
        share = gradients[0] / len(targets)
        of_logits = torch.empty_like(logits)
        parts = zip(*(torch.split(t, ROWS) for t in (of_logits, logits, targets, log_sums)), strict=True)
        for out, part, target, log_sum in parts:
            wide = part.to(log_sum.dtype).sub_(log_sum[:, None]).exp_()
            wide.scatter_add_(-1, target[:, None], -torch.ones_like(log_sum)[:, None])
            out.copy_(wide.mul_(share))
            # Before the next part is widened, not after.
            del wide
        return of_logits, None
