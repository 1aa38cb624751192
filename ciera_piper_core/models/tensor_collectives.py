"""What the ranks that share a matrix say to each other, forward and backward.

A tensor is *copied* if every rank of the group has the same one, and so the same gradient; it is
*partial* if the true one is the sum over the ranks; it is *divided* if each has some rows of it.
Each operation here turns one into another, and its backward pass is the operation that goes back:
none may be left out on one rank, whatever it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Exchange: TypeAlias = Callable[[torch.Tensor, "TensorRanks", tuple[int, ...]], torch.Tensor]

REGION = "tensor_parallel"


@dataclass(frozen=True)
class TensorRanks:
    """The ranks that share matrices, as one of them sees them.

    Attributes:
        group: of them. rank, size: this one's number in it, and how many there are.
    """

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> TensorRanks:
        """This process's view of a group that it is in."""
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def shares(self, rows: int) -> tuple[int, ...]:
        """So many rows for each rank, as even as can be; the first have one more."""
        each, rest = divmod(rows, self.size)
        return tuple(each + (rank < rest) for rank in range(self.size))

    def counts(self, rows: int, device: torch.device) -> tuple[int, ...]:
        """How many rows each rank has, from all of them (collective)."""
        if self.size == 1:
            return (rows,)
        mine = torch.tensor([rows], dtype=torch.int64, device=device)
        everyone = mine.new_empty(self.size)
        with region(REGION):
            dist.all_gather_single(everyone, mine, group=self.group)
        return tuple(everyone.tolist())


def spread(x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    """A copied tensor for parts of a matrix to read: unchanged; its gradients, which are partial, are summed."""
    if ranks.size == 1:
        return x
    result: torch.Tensor = _Spread.apply(x, ranks)  # type: ignore[no-untyped-call]
    return result


def summed(x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    """A copied tensor from a partial one, in place: the sum over the ranks; gradients pass unchanged.

    Args:
        x: changed, so nothing that an earlier operation keeps, and no view.
    """
    if ranks.size == 1:
        return x
    result: torch.Tensor = _Summed.apply(x, ranks)  # type: ignore[no-untyped-call]
    return result


def own_rows(x: torch.Tensor, ranks: TensorRanks, counts: Sequence[int]) -> torch.Tensor:
    """From a copied tensor this rank's rows; gradients are gathered.

    Args:
        x: ``(sum(counts), ...)``. counts: rows of each rank.
    """
    return _exchanged(x, ranks, counts, _take, _gather)


def all_rows(x: torch.Tensor, ranks: TensorRanks, counts: Sequence[int]) -> torch.Tensor:
    """A copied tensor from a divided one, rank by rank; of the gradient, which is copied, each takes its rows."""
    return _exchanged(x, ranks, counts, _gather, _take)


def all_rows_for_parts(x: torch.Tensor, ranks: TensorRanks, counts: Sequence[int]) -> torch.Tensor:
    """``all_rows`` for parts of a matrix to read: gradients are partial, so each rank gets the sum of its rows'."""
    return _exchanged(x, ranks, counts, _gather, _reduce_scatter)


def own_rows_summed(x: torch.Tensor, ranks: TensorRanks, counts: Sequence[int]) -> torch.Tensor:
    """From a partial tensor this rank's rows of the sum; gradients are gathered."""
    return _exchanged(x, ranks, counts, _reduce_scatter, _gather)


def _exchanged(
    x: torch.Tensor, ranks: TensorRanks, counts: Sequence[int], there: Exchange, back: Exchange
) -> torch.Tensor:
    if ranks.size == 1:
        return x
    result: torch.Tensor = _Rows.apply(x, ranks, tuple(counts), there, back)  # type: ignore[no-untyped-call]
    return result


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # A copy: the gradient may be someone else's too.
        return _sum_(gradient.clone(memory_format=torch.contiguous_format), ctx.ranks), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
        ctx.mark_dirty(x)
        return _sum_(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Rows(torch.autograd.Function):
    """One exchange of rows forward, and another backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, ranks: TensorRanks, counts: tuple[int, ...], there: Exchange, back: Exchange
    ) -> torch.Tensor:
        ctx.ranks, ctx.counts, ctx.back = ranks, counts, back
        return there(x, ranks, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        return ctx.back(gradient, ctx.ranks, ctx.counts), None, None, None, None


def _sum_(x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    with region(REGION):
        dist.all_reduce(x, group=ranks.group)
    return x


def _take(x: torch.Tensor, ranks: TensorRanks, counts: tuple[int, ...]) -> torch.Tensor:
    if len(x) != sum(counts):
        raise ValueError(f"{len(x)} rows cannot be divided into {counts}")
    # A copy, so that the whole is not kept for its sake.
    return x.narrow(0, sum(counts[: ranks.rank]), counts[ranks.rank]).clone()


def _gather(x: torch.Tensor, ranks: TensorRanks, counts: tuple[int, ...]) -> torch.Tensor:
    x = x.contiguous()
    whole = x.new_empty((sum(counts), *x.shape[1:]))
    with region(REGION):
        if len(set(counts)) == 1:
            dist.all_gather_single(whole, x, group=ranks.group)
        else:
            # No library gathers rows of different numbers; every rank sends all of its own to each instead.
            repeated = x.repeat(ranks.size, *(1,) * (x.dim() - 1))
            dist.all_to_all_single(whole, repeated, list(counts), [len(x)] * ranks.size, group=ranks.group)
    return whole


def _reduce_scatter(x: torch.Tensor, ranks: TensorRanks, counts: tuple[int, ...]) -> torch.Tensor:
    if len(x) != sum(counts):
        raise ValueError(f"{len(x)} rows cannot be divided into {counts}")
    x = x.contiguous()
    mine = counts[ranks.rank]
    with region(REGION):
        if len(set(counts)) == 1:
            result = x.new_empty((mine, *x.shape[1:]))
            dist.reduce_scatter_single(result, x, group=ranks.group)
            return result
        parts = x.new_empty((mine * ranks.size, *x.shape[1:]))
        dist.all_to_all_single(parts, x, [mine] * ranks.size, list(counts), group=ranks.group)
        return parts.view(ranks.size, mine, *x.shape[1:]).sum(0, dtype=_precise(x.dtype)).to(x.dtype)


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def offsets(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Where each share begins and ends."""
    return list(pairwise(accumulate(counts, initial=0)))
