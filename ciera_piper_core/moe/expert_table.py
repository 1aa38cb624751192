"""Which rank of an expert-parallel group holds which experts, and in which order."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ExpertTable:
    """A placement of experts on ranks: a value, which a migration replaces by another.

    Attributes:
        held: for each rank of the group its experts, in the order of its stacked weights (the slots).

    Raises:
        ValueError: a rank without experts, an expert that is missing or there twice.
    """

    held: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.held or not all(self.held):
            empty = [rank for rank, experts in enumerate(self.held) if not experts]
            raise ValueError(f"every rank of an expert-parallel group holds an expert; rank(s) {empty} hold none")
        named = sorted(expert for experts in self.held for expert in experts)
        if named != list(range(len(named))):
            raise ValueError(f"a table names each expert from 0 to {len(named) - 1} once, not {named}")

    @property
    def experts(self) -> int:
        """Number of experts."""
        return sum(len(experts) for experts in self.held)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.held)

    @property
    def even(self) -> bool:
        """True if all ranks hold as many."""
        return len({len(experts) for experts in self.held}) == 1

    @functools.cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        places = {expert: (rank, slot) for rank, held in enumerate(self.held) for slot, expert in enumerate(held)}
        return tuple(places[expert] for expert in range(self.experts))

    def rank_of(self, expert: int) -> int:
        """The rank that holds it."""
        return self._places[expert][0]

    def slot_of(self, expert: int) -> int:
        """Its place among those of its rank."""
        return self._places[expert][1]

    def ranks_tensor(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """``rank_of`` of every expert: ``(experts,)``, int64."""
        return torch.tensor([rank for rank, _ in self._places], device=device)

    def slots_tensor(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """``slot_of`` of every expert: ``(experts,)``, int64."""
        return torch.tensor([slot for _, slot in self._places], device=device)

    def swapped(self, one: int, other: int) -> ExpertTable:
        """The table with these two experts in each other's places."""
        new = {one: other, other: one}
        return ExpertTable(tuple(tuple(new.get(expert, expert) for expert in held) for held in self.held))


def contiguous_table(experts: int, ranks: int, *, uneven: bool = False) -> ExpertTable:
    """Neighbouring experts together, as many on each rank.

    Args:
        uneven: where they do not divide, one more on each of the first ranks instead of an error.

    Raises:
        ValueError: experts do not divide over the ranks and ``uneven`` is false, or there are fewer than ranks.
    """
    if ranks < 1 or experts < ranks:
        raise ValueError(f"{experts} experts leave some of {ranks} ranks without one; use at most {experts} ranks")
    each, more = divmod(experts, ranks)
    if more and not uneven:
        raise ValueError(
            f"{experts} experts do not divide over {ranks} ranks; choose a divisor of {experts},"
            " or ask for an uneven placement"
        )
    held, first = [], 0
    for rank in range(ranks):
        count = each + (rank < more)
        held.append(tuple(range(first, first + count)))
        first += count
    return ExpertTable(tuple(held))
