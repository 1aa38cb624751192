"""Embedding, output projection and cross-entropy whose vocabulary is divided over ranks: no rank sees whole logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ciera_piper_core.models.loss import ROWS
from ciera_piper_core.models.tensor_collectives import REGION, TensorRanks, summed
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from torch import Tensor

    from ciera_piper_core.models.tensor_cuts import Cut


class CutEmbedding(torch.nn.Module):
    """This rank's rows of an embedding.

    Attributes:
        weight: ``(rows, hidden)``. first: the token of the first row.
    """

    def __init__(self, weight: torch.nn.Parameter, cut: Cut, ranks: TensorRanks) -> None:
        super().__init__()
        self.weight, self.ranks = weight, ranks
        self.first = cut.ranges[ranks.rank][0].start

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 ``(...)`` to ``(..., hidden)``, the same on all ranks."""
        local = tokens - self.first
        elsewhere = (local < 0) | (local >= len(self.weight))
        if not len(self.weight):
            # Nothing can be looked up, but the sum needs every rank.
            rows = self.weight.new_zeros(*tokens.shape, self.weight.shape[1]) + self.weight.sum()
            return summed(rows, self.ranks)
        rows = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return summed(rows.masked_fill(elsewhere[..., None], 0), self.ranks)


class CutOutput(torch.nn.Module):
    """This rank's rows of an output projection; who multiplies with them spreads the tokens before.

    Attributes:
        weight: ``(rows, hidden)``. cut: of the whole.
    """

    def __init__(self, weight: torch.nn.Parameter, cut: Cut) -> None:
        super().__init__()
        self.weight, self.cut = weight, cut

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., hidden)`` to this rank's logits ``(..., rows)``."""
        return F.linear(x, self.weight)


def cut_token_loss(logits: Tensor, targets: Tensor, ranks: TensorRanks, cut: Cut) -> Tensor:
    """``models.loss.token_loss`` of logits whose vocabulary is divided (collective).

    Args:
        logits: ``(..., rows)``: of this rank's part of the vocabulary.
        targets: ``(...)``, int64: of the whole.
        cut: of the output projection.

    Returns:
        A scalar, float32, the same on all ranks.
    """
    loss: Tensor = _CutCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), targets.flatten(), ranks, cut.ranges[ranks.rank][0].start
    )
    return loss


class _CutCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ranks: TensorRanks, first: int) -> Tensor:
        precise = torch.promote_types(logits.dtype, torch.float32)
        local = targets - first
        here = (local >= 0) & (local < logits.shape[1])
        if logits.shape[1]:
            own = torch.cat([part.to(precise).logsumexp(-1) for part in torch.split(logits, ROWS)])
            of_target = logits.gather(-1, local.where(here, 0)[:, None]).squeeze(-1).to(precise).where(here, 0)
        else:
            own = logits.new_full((len(targets),), -torch.inf, dtype=precise)
            of_target = torch.zeros_like(own)
        largest = own.clone()
        with region(REGION):
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=ranks.group)
        both = torch.stack([(own - largest).exp_(), of_target])
        with region(REGION):
            dist.all_reduce(both, group=ranks.group)
        log_sums = both[0].log_().add_(largest)
        # No target here: a row that does not exist.
        ctx.save_for_backward(logits, local.where(here, -1), log_sums)
        return (log_sums - both[1]).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        logits, local, log_sums = ctx.saved_tensors
        share = gradient / len(local)
        of_logits = torch.empty_like(logits)
        for out, part, target, log_sum in zip(
            *(torch.split(t, ROWS) for t in (of_logits, logits, local, log_sums)), strict=True
        ):
            wide = part.to(log_sum.dtype).sub_(log_sum[:, None]).exp_()
            (here,) = (target >= 0).nonzero(as_tuple=True)
            wide[here, target[here]] -= 1
            out.copy_(wide.mul_(share))
            # Before the next part is widened, not after.
            del wide
        return of_logits, None, None, None
