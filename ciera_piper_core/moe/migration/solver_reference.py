"""The best that any solver can do, for a few experts: every placement is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EXPERTS = 12
"""More would take minutes."""


def lowest_loads(counts: Sequence[float], rank_of_expert: Sequence[int], room: Sequence[int]) -> list[float]:
    """For each number of experts that change their rank, from 0, the lowest load of the busiest rank.

    Args:
        counts: of each expert. rank_of_expert: where they are. room: experts that each rank may hold.

    Returns:
        ``len(counts) + 1`` loads, none above the one before: with *at most* so many moved.

    Raises:
        ValueError: more experts than ``MOST_EXPERTS``.
    """
    experts, ranks = len(counts), len(room)
    if experts > MOST_EXPERTS:
        raise ValueError(f"{experts} experts are too many for every placement to be looked at; at most {MOST_EXPERTS}")
    best = np.full(experts + 1, np.inf)
    order = sorted(range(experts), key=lambda expert: -counts[expert])
    loads, held = [0.0] * ranks, [0] * ranks

    def place(depth: int, moved: int, highest: float) -> None:
        if highest >= best[moved]:
            return
        if depth == experts:
            if all(held):
                best[moved:] = np.minimum(best[moved:], highest)
            return
        expert = order[depth]
        for rank in range(ranks):
            if held[rank] == room[rank]:
                continue
            loads[rank] += counts[expert]
            held[rank] += 1
            place(depth + 1, moved + (rank != rank_of_expert[expert]), max(highest, loads[rank]))
            held[rank] -= 1
            loads[rank] -= counts[expert]

    place(0, 0, 0.0)
    return [float(load) for load in best]
