"""Which part of a parameter each rank of a tensor-parallel group holds, and how the parts make the whole again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.models.attention_shape import AttentionShape


@dataclass(frozen=True)
class Cut:
    """How one parameter is cut.

    Attributes:
        dim: along which; negative, so that it also holds for one expert of a stack.
        ranges: by rank, which of the whole's indices it holds, in the order in which it holds them; some may
            be on several ranks.
    """

    dim: int
    ranges: tuple[tuple[range, ...], ...]

    def __post_init__(self) -> None:
        if self.dim >= 0:
            raise ValueError(f"a cut counts its dimension from the last: -1 or below, not {self.dim}")
        reached = 0
        for one in sorted((one for ranges in self.ranges for one in ranges), key=lambda one: one.start):
            if one.start > reached:
                raise ValueError(f"a cut leaves indices {reached} to {one.start - 1} to no rank")
            reached = max(reached, one.stop)

    @property
    def size(self) -> int:
        """Of the whole along ``dim``."""
        return max(one.stop for ranges in self.ranges for one in ranges)

    def part(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A copy of what ``rank`` holds."""
        if whole.shape[self.dim] != self.size:
            raise ValueError(f"the cut is of a dimension of {self.size}, the parameter has {tuple(whole.shape)}")
        pieces = [whole.narrow(self.dim, one.start, len(one)) for one in self.ranges[rank]]
        return torch.cat(pieces, self.dim).clone(memory_format=torch.contiguous_format)

    def whole(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The parameter from the parts of all ranks; of what several hold, the first one's."""
        first = parts[0]
        shape = list(first.shape)
        shape[self.dim] = self.size
        result = first.new_empty(shape)
        for rank in reversed(range(len(self.ranges))):
            at = 0
            for one in self.ranges[rank]:
                result.narrow(self.dim, one.start, len(one)).copy_(parts[rank].narrow(self.dim, at, len(one)))
                at += len(one)
        return result

    def counted(self, part: torch.Tensor, rank: int) -> list[torch.Tensor]:
        """Views of those of ``rank``'s parts that no rank before it holds: of all ranks together, each index once."""
        seen = {one for ranges in self.ranges[:rank] for one in ranges}
        views, at = [], 0
        for one in self.ranges[rank]:
            if one not in seen:
                views.append(part.narrow(self.dim, at, len(one)))
            at += len(one)
        return views

    @property
    def copied(self) -> bool:
        """Whether some of it is on several ranks."""
        held = [one for ranges in self.ranges for one in ranges]
        return len(set(held)) < len(held)


def even_cut(dim: int, size: int, ranks: int) -> Cut:
    """Blocks of equal size.

    Raises:
        ValueError: they do not come out whole.
    """
    if size % ranks:
        raise ValueError(f"a dimension of {size} does not divide over {ranks} ranks")
    return share_cut(dim, (size // ranks,) * ranks)


def attention_cuts(shape: AttentionShape, ranks: int) -> dict[str, Cut]:
    """Of an attention's projections, by heads; what is not named stays whole on every rank.

    Key/value heads that are fewer than ranks are copied; MLA's projections down to the latents stay whole.

    Raises:
        ValueError: the heads do not divide.
    """
    shape.shard(ranks)
    output = {"output": even_cut(-1, shape.heads * shape.v_dim, ranks)}
    if shape.mla is None:
        return {"qkv": Cut(-2, tuple(_qkv_ranges(shape, ranks, rank) for rank in range(ranks)))} | output
    query = "q_up" if shape.mla.q_lora else "q"
    values = shape.heads * (shape.mla.qk_nope + shape.mla.v_head)
    return {
        query: even_cut(-2, shape.heads * shape.qk_dim, ranks),
        "kv_up": even_cut(-2, values, ranks),
    } | output


def _qkv_ranges(shape: AttentionShape, ranks: int, rank: int) -> tuple[range, ...]:
    width, heads = shape.qk_dim, shape.heads // ranks
    kv_heads = max(1, shape.kv_heads // ranks)
    first = rank * shape.kv_heads // ranks
    keys, values = shape.heads * width, (shape.heads + shape.kv_heads) * width
    return (
        range(rank * heads * width, (rank + 1) * heads * width),
        range(keys + first * width, keys + (first + kv_heads) * width),
        range(values + first * shape.v_dim, values + (first + kv_heads) * shape.v_dim),
    )


def share_cut(dim: int, shares: Sequence[int]) -> Cut:
    """Blocks of these sizes, one for each rank."""
    edges = pairwise(accumulate(shares, initial=0))
    return Cut(dim, tuple((range(first, last),) for first, last in edges))


INNER_DIMENSION = {"up": -2, "gate": -2, "down": -1}
"""Of a feed-forward block's matrices, and of a stack of experts': the inner width's."""

INNER_UNITS = (8, 4, 2, 1)
"""The inner width is cut between blocks of one of these sizes, the largest that will do. 8 elements of 16 bits are
16 bytes, of which the grouped product wants the rows of experts to be a multiple."""


def inner_shares(width: int, ranks: int, *, grouped: bool) -> tuple[int, ...]:
    """The inner width of each rank, as even as whole blocks can be; the first have one block more.

    Args:
        grouped: of experts: their blocks are no smaller than need be.

    Raises:
        ValueError: fewer blocks than ranks.
    """
    units = [unit for unit in INNER_UNITS if width % unit == 0]
    unit = units[0] if grouped else next((unit for unit in units if width // unit >= ranks), 1)
    each, more = divmod(width // unit, ranks)
    if not each:
        raise ValueError(f"an inner width of {width} has {width // unit} blocks of {unit}, too few for {ranks} ranks")
    return tuple((each + (rank < more)) * unit for rank in range(ranks))


def feed_forward_cuts(shares: Sequence[int], matrices: Sequence[str]) -> dict[str, Cut]:
    """Of the matrices of a feed-forward block, or of a stack of them, by the inner width."""
    return {name: share_cut(INNER_DIMENSION[name], shares) for name in matrices}
