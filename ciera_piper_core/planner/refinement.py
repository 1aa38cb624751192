"""The best of a ranking once more: their steps simulated over the stages as they are, and ranked by that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.estimate import Estimates
from ciera_piper_core.planner.schedule_batch import operation_count
from ciera_piper_core.planner.schedules import SCHEDULES
from ciera_piper_core.planner.strategy import CHOICES, NUMBERS
from ciera_piper_core.planner.unique import Unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.planner.estimate import Estimator
    from ciera_piper_core.planner.strategy import Strategies

    Ints = NDArray[np.int64]

BATCH = 128
"""Strategies that are simulated at a time, the best first. Where all were simulated instead, of several models and
machines, the ten best were among the first 40 by the estimate."""

SURE = 24
"""So many at the top are simulated before the ranking stands, as far as ``MOST_OPERATIONS`` goes."""

MOST_OPERATIONS = 50_000
"""Operations of the different orders that one search simulates, about 0.2 s. Strategies whose order would exceed what
is left keep their estimate. It counts operations and not time, so that the same question has the same answer."""


@dataclass(frozen=True)
class Refined:
    """A ranking with the steps of its best simulated.

    Attributes:
        estimates: in the order that was given.
        simulated: whose step is that of the schedule's operations over the stages as they are; shape ``(strategies,)``.
        order: places of the strategies, best first.
    """

    estimates: Estimates
    simulated: NDArray[np.bool_]
    order: Ints


def refine(estimator: Estimator, strategies: Strategies, estimates: Estimates) -> Refined:
    """Rank by MFU, simulate the best, and rank again, until the best are all simulated.

    A pipeline of one stage needs no simulation: its estimate is exact.
    """
    simulated = strategies.pp == 1
    left = MOST_OPERATIONS
    # Of an order that is too long no strategy is simulated.
    open_ = ~simulated
    while True:
        order = ranking(strategies, estimates)
        if not open_[order[:SURE]].any():
            return Refined(estimates, simulated, order)
        wanted = order[open_[order]][:BATCH]
        chosen, left = _affordable(strategies.take(wanted), left)
        open_[wanted] = False
        here = wanted[chosen]
        if len(here):
            estimates = _simulated(estimator, strategies, estimates, here)
            simulated[here] = True


def ranking(strategies: Strategies, estimates: Estimates) -> Ints:
    """Places of the strategies, best first: by MFU, then less memory, then dimension by dimension."""
    ties = [getattr(strategies, name) for name in reversed((*NUMBERS, *CHOICES))]
    # The last key of lexsort counts most.
    return np.lexsort([*ties, estimates.peak_memory_bytes, -estimates.mfu])


def _affordable(strategies: Strategies, left: int) -> tuple[NDArray[np.bool_], int]:
    """Which strategies have an order of operations that is within what is left, and what is left then."""
    orders = Unique(strategies.schedule, strategies.pp, strategies.microbatches)
    affordable = np.zeros(len(orders.keys), dtype=np.bool_)
    # The order of the best strategy comes first.
    for number in np.argsort(orders.first):
        schedule, pp, microbatches = orders.keys[number]
        count = operation_count(SCHEDULES[schedule], pp, microbatches)
        if count <= left:
            affordable[number] = True
            left -= count
    return affordable[orders.places], left


def _simulated(estimator: Estimator, strategies: Strategies, estimates: Estimates, here: Ints) -> Estimates:
    """The estimates with the simulated steps of some strategies."""
    seconds = estimates.step_seconds.copy()
    seconds[here] = estimator.simulated_step_seconds(strategies.take(here))
    mfu, hfu = estimator.utilisation(strategies, seconds)
    return Estimates(estimates.peak_memory_bytes, estimates.fullest_rank, seconds, mfu, hfu)
