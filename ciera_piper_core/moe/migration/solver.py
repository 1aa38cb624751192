"""Where experts should be: the paper's swaps between the busiest and the idlest rank, and a search that does better.

A placement is the rank of each expert, ``rank_of_expert[e]``. Its load is the busiest rank's count of
token copies; the mean is the same for all placements. All experts of a layer are of one size, so what
a placement costs to reach is the number of experts that change their rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ciera_piper_core.moe.migration.paper_swaps import hill_climbing_swaps
from ciera_piper_core.moe.migration.search import searched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.moe.migration.paper_swaps import Floats, Ints

SolverName = Literal["paper", "search"]
SOLVERS: tuple[SolverName, ...] = get_args(SolverName)
"""``paper``: Algorithm 2 as it is printed. ``search``: never a higher load than it, and fewer experts moved for it."""


@dataclass(frozen=True)
class Move:
    """One expert that changes its rank.

    Attributes:
        expert: its number in the layer.
        source, target: ranks of the expert-parallel group.
    """

    expert: int
    source: int
    target: int


@dataclass(frozen=True)
class Solution:
    """A placement that a solver found, beside the one that it came from.

    Attributes:
        before, after: rank of each expert.
        counts: token copies of each expert that it was found for.
        ranks: of the group.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    counts: tuple[float, ...]
    ranks: int

    @property
    def moves(self) -> tuple[Move, ...]:
        """The experts that change their rank, by number."""
        pairs = enumerate(zip(self.before, self.after, strict=True))
        return tuple(Move(expert, old, new) for expert, (old, new) in pairs if old != new)

    @property
    def load_before(self) -> float:
        """The busiest rank's count over the mean; 1 where nothing was counted."""
        return load_factor(self.counts, self.before, self.ranks)

    @property
    def load_after(self) -> float:
        """Likewise afterwards."""
        return load_factor(self.counts, self.after, self.ranks)

    @property
    def most_sent(self) -> int:
        """Experts that leave the rank which sends the most, or reach the one which receives the most."""
        out, into = np.zeros(self.ranks, dtype=np.int64), np.zeros(self.ranks, dtype=np.int64)
        for move in self.moves:
            out[move.source] += 1
            into[move.target] += 1
        return int(max(out.max(), into.max()))


def load_factor(counts: Sequence[float] | Floats, rank_of_expert: Sequence[int], ranks: int) -> float:
    """The busiest rank's count over the mean of all ranks; 1 where nothing was counted."""
    loads = np.bincount(np.asarray(rank_of_expert), weights=np.asarray(counts, dtype=np.float64), minlength=ranks)
    return float(loads.max() * ranks / loads.sum()) if loads.sum() > 0 else 1.0


def solve(
    counts: Sequence[float] | Floats,
    rank_of_expert: Sequence[int],
    ranks: int,
    *,
    solver: SolverName = "search",
    most_experts: int | None = None,
    target: float = 1.0,
) -> Solution:
    """A placement of lower load than the current one, or the current one.

    The same numbers give the same answer on every machine, so ranks that agree on counts agree on it.

    Args:
        counts: token copies of each expert, 0 or more, ``(experts,)``.
        rank_of_expert: where they are now.
        ranks: of the group.
        solver: see ``SOLVERS``.
        most_experts: that one rank has room for; None: as many as now, so that only swaps (and cycles
            of them) are possible. The paper's solver does not use it.
        target: a load over the mean that is good enough: of all placements found at or below it, one with
            the fewest moves is taken. 1: the lowest load, up to ``search.SLACK``. The paper's solver does not use it.

    Raises:
        ValueError: counts or ranks that do not belong together, or a rank that holds more than it has room for.
    """
    counted, home = _checked(counts, rank_of_expert, ranks)
    held = np.bincount(home, minlength=ranks)
    if solver == "paper":
        after = hill_climbing_swaps(counted, home, ranks)
    elif solver == "search":
        room = held if most_experts is None else np.full(ranks, most_experts)
        if (held > room).any():
            rank = int(np.argmax(held - room))
            raise ValueError(f"rank {rank} holds {held[rank]} experts, more than the {most_experts} it has room for")
        after = searched(counted, home, room, target)
    else:
        raise ValueError(f"unknown solver {solver!r}; known: {', '.join(SOLVERS)}")
    return Solution(tuple(home.tolist()), tuple(after.tolist()), tuple(counted.tolist()), ranks)


def _checked(counts: Sequence[float] | Floats, rank_of_expert: Sequence[int], ranks: int) -> tuple[Floats, Ints]:
    counted = np.asarray(counts, dtype=np.float64)
    home = np.asarray(rank_of_expert, dtype=np.int64)
    if counted.ndim != 1 or counted.shape != home.shape or not len(counted):
        raise ValueError(f"counts of {counted.shape} experts and ranks of {home.shape} do not belong together")
    if not (np.isfinite(counted).all() and (counted >= 0).all()):
        raise ValueError("counts of experts must be finite and 0 or more")
    if ranks < 1 or home.min() < 0 or home.max() >= ranks:
        raise ValueError(f"experts are on ranks 0 to {ranks - 1}, not on {home.min()} to {home.max()}")
    return counted, home
