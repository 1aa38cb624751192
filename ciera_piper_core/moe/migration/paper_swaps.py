"""The paper's Algorithm 2: swaps between the busiest and the idlest rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_ROUNDS = 100
"""The most swaps of Algorithm 2."""


def hill_climbing_swaps(counts: Floats, home: Ints, ranks: int, rounds: int = MOST_ROUNDS) -> Ints:
    """Algorithm 2 of the paper: swap an expert of the busiest rank with one of the idlest, whichever
    pair brings the two closest together, until no pair does or ``rounds`` are over.

    It knows no other rank than these two, so it may stop where swaps with a third would still help.
    """
    places = home.copy()
    for _ in range(rounds):
        loads = np.bincount(places, weights=counts, minlength=ranks)
        busiest, idlest = int(loads.argmax()), int(loads.argmin())
        difference = loads[busiest] - loads[idlest]
        ours, theirs = np.flatnonzero(places == busiest), np.flatnonzero(places == idlest)
        if not len(ours) or not len(theirs):
            break
        left = np.abs(difference - 2 * (counts[ours][:, None] - counts[theirs][None, :]))
        if not left.min() < difference:
            break
        ours_best, theirs_best = np.unravel_index(int(left.argmin()), left.shape)
        places[ours[ours_best]], places[theirs[theirs_best]] = idlest, busiest
    return places
