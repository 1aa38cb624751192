"""The search behind ``solver.solve``: swaps, moves and rings with any rank, several starts, and experts brought home.

Candidates come from descents: from where the experts are, from where Algorithm 2 leaves them, and from
the largest-first placement, whose groups go to the ranks that hold most of their experts already. A descent
takes the best step that changes the busiest rank, goes on over worse ones for a while (a tabu search), and
hands over every placement of lower load on its way, since early ones move less. Of each candidate, experts
go home again as far as its load allows. The cheapest one of the lowest load wins, or of the load that was asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ciera_piper_core.moe.migration.paper_swaps import Floats, Ints, hill_climbing_swaps

SLACK = 0.002
"""How far above the lowest load found a placement may be, as a share of it, if fewer experts move for that."""

PATIENCE = 12
"""Steps of a descent without a lower load before it ends."""

MOST_STEPS = 400
"""Of one descent."""

MOST_CYCLES = 200_000
"""Rings that one step looks at; where there are more, it looks at none."""

Bools = NDArray[np.bool_]


def searched(counts: Floats, home: Ints, room: Ints, target: float) -> Ints:
    """The placement; see ``solver.solve``.

    Args:
        counts: ``(experts,)``. home: the rank of each expert, ``(experts,)``. room: experts that each rank may hold.
    """
    ranks = len(room)
    mean = counts.sum() / ranks
    if ranks == 1 or not mean > 0:
        return home
    paper = hill_climbing_swaps(counts, home, ranks)
    starts = [home, paper, _largest_first(counts, home, room)]
    # Swaps alone cannot leave the numbers of experts that a start has, and these must have room.
    candidates = [start for start in starts if (np.bincount(start, minlength=ranks) <= room).all()]
    for start in list(candidates):
        for cycles in (False, True):
            candidates += _descent(counts, start, room, cycles=cycles)
    candidates = _distinct([_brought_home(counts, places, home, room) for places in candidates])
    loads = np.array([_load(counts, places, ranks) for places in candidates])
    moved = np.array([np.count_nonzero(places != home) for places in candidates])
    # Never above Algorithm 2's; and whatever it reaches, never with more moves than it needs.
    allowed = max(min(loads.min() * (1 + SLACK), _load(counts, paper, ranks)), target * mean)
    good = np.flatnonzero(loads <= allowed * (1 + 1e-12))
    return candidates[int(good[np.lexsort((loads[good], moved[good]))[0]])]


def _loads(counts: Floats, places: Ints, ranks: int) -> Floats:
    return np.asarray(np.bincount(places, weights=counts, minlength=ranks), dtype=np.float64)


def _load(counts: Floats, places: Ints, ranks: int) -> float:
    return float(_loads(counts, places, ranks).max())


def _distinct(candidates: list[Ints]) -> list[Ints]:
    return list({places.tobytes(): places for places in candidates}.values())


def _largest_first(counts: Floats, home: Ints, room: Ints) -> Ints:
    """Each expert, the largest first, to the rank with the least load that has room; groups then go where they
    move the least."""
    ranks = len(room)
    groups = np.empty_like(home)
    loads, held = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    for expert in np.argsort(-counts, kind="stable"):
        free = held < room
        rank = int(np.flatnonzero(free)[loads[free].argmin()])
        groups[expert] = rank
        loads[rank] += counts[expert]
        held[rank] += 1
    staying = np.zeros((ranks, ranks))
    np.add.at(staying, (groups, home), 1)
    # A group only goes to a rank that has room for it.
    staying[held[:, None] > room[None, :]] = -len(counts)
    _, rank_of_group = linear_sum_assignment(staying, maximize=True)
    return np.asarray(rank_of_group, dtype=np.int64)[groups]


def _descent(counts: Floats, start: Ints, room: Ints, *, cycles: bool) -> list[Ints]:
    """Placements on the way down from ``start``, each of lower load than the one before.

    Args:
        cycles: also try three experts that change places in a ring, which costs less than two swaps.
    """
    ranks = len(room)
    places = start.copy()
    loads = _loads(counts, places, ranks)
    lowest, found, waited = loads.max(), [], 0
    forbidden = np.zeros(len(counts), dtype=np.int64)
    for step in range(1, MOST_STEPS + 1):
        # Only what changes the busiest rank can lower the load: one of its experts goes, perhaps another comes.
        busiest = int(loads.argmax())
        allowed = forbidden < step
        held = np.bincount(places, minlength=ranks)
        steps = [_best_swap(counts, places, loads, busiest, allowed)]
        if held[busiest] > 1:
            steps.append(_best_move(counts, places, loads, busiest, allowed, held < room))
        if cycles:
            steps.append(_best_cycle(counts, places, loads, busiest, allowed))
        _, changes = min(steps, key=lambda step: step[0])
        if not changes:
            break
        for expert, rank in changes:
            places[expert] = rank
            forbidden[expert] = step + 1 + len(counts) // 8
        loads = _loads(counts, places, ranks)
        waited += 1
        if loads.max() < lowest * (1 - 1e-12):
            lowest, waited = loads.max(), 0
            found.append(places.copy())
        elif waited > PATIENCE:
            break
    return found


Step = tuple[float, list[tuple[int, int]]]
"""What the sum of squared loads changes by, and experts with their new ranks; none if there is no such step."""

NO_STEP: Step = (np.inf, [])


def _best_swap(counts: Floats, places: Ints, loads: Floats, busiest: int, allowed: Bools) -> Step:
    ours, theirs = np.flatnonzero((places == busiest) & allowed), np.flatnonzero((places != busiest) & allowed)
    if not len(ours) or not len(theirs):
        return NO_STEP
    change = counts[ours][:, None] - counts[theirs][None, :]
    cost = 2 * change * (change - loads[busiest] + loads[places[theirs]][None, :])
    row, column = np.unravel_index(int(cost.argmin()), cost.shape)
    leaving, coming = int(ours[row]), int(theirs[column])
    return float(cost[row, column]), [(leaving, int(places[coming])), (coming, busiest)]


def _best_move(counts: Floats, places: Ints, loads: Floats, busiest: int, allowed: Bools, free: Bools) -> Step:
    ours = np.flatnonzero((places == busiest) & allowed)
    targets = np.flatnonzero(free & (np.arange(len(loads)) != busiest))
    if not len(ours) or not len(targets):
        return NO_STEP
    change = counts[ours][:, None]
    cost = 2 * change * (change - loads[busiest] + loads[targets][None, :])
    row, column = np.unravel_index(int(cost.argmin()), cost.shape)
    return float(cost[row, column]), [(int(ours[row]), int(targets[column]))]


def _best_cycle(counts: Floats, places: Ints, loads: Floats, busiest: int, allowed: Bools) -> Step:
    """One of the busiest rank's experts to a second rank, one of that to a third, one of that to the busiest."""
    ours, theirs = np.flatnonzero((places == busiest) & allowed), np.flatnonzero((places != busiest) & allowed)
    if not len(ours) or not len(theirs) or len(ours) * len(theirs) ** 2 > MOST_CYCLES:
        return NO_STEP
    leaving, second, third = counts[ours][:, None, None], counts[theirs][None, :, None], counts[theirs][None, None, :]
    of_second, of_third = loads[places[theirs]][None, :, None], loads[places[theirs]][None, None, :]
    cost = _squares(loads[busiest], third - leaving) + _squares(of_second, leaving - second)
    cost = cost + _squares(of_third, second - third)
    cost[:, places[theirs][:, None] == places[theirs][None, :]] = np.inf
    best = np.unravel_index(int(cost.argmin()), cost.shape)
    if not np.isfinite(cost[best]):
        return NO_STEP
    first, other, last = int(ours[best[0]]), int(theirs[best[1]]), int(theirs[best[2]])
    return float(cost[best]), [(first, int(places[other])), (other, int(places[last])), (last, busiest)]


def _squares(load: Floats | float, change: Floats) -> Floats:
    """What a rank's squared load changes by."""
    return np.asarray(change * (change + 2 * load))


def _brought_home(counts: Floats, places: Ints, home: Ints, room: Ints) -> Ints:
    """``places`` with experts back where they came from, as many as its load allows."""
    ranks = len(room)
    places = places.copy()
    limit = _load(counts, places, ranks) * (1 + 1e-12)
    while True:
        loads, held = _loads(counts, places, ranks), np.bincount(places, minlength=ranks)
        away = np.flatnonzero(places != home)
        step = _back_alone(counts, places, home, loads, held, room, away, limit)
        step = step or _back_for_another(counts, places, home, loads, away, limit)
        if step is None:
            return places
        for expert, rank in step:
            places[expert] = rank


def _back_alone(
    counts: Floats, places: Ints, home: Ints, loads: Floats, held: Ints, room: Ints, away: Ints, limit: float
) -> list[tuple[int, int]] | None:
    """One expert that may go home as it is, and needs nobody to make room."""
    for expert in away[np.argsort(counts[away], kind="stable")]:
        target = home[expert]
        if held[target] < room[target] and held[places[expert]] > 1 and loads[target] + counts[expert] <= limit:
            return [(int(expert), int(target))]
    return None


def _back_for_another(
    counts: Floats, places: Ints, home: Ints, loads: Floats, away: Ints, limit: float
) -> list[tuple[int, int]] | None:
    """One expert that goes home and takes the place of one that is away too: the pair with the most at home after."""
    best: tuple[int, list[tuple[int, int]]] | None = None
    for expert in away:
        source, target = int(places[expert]), int(home[expert])
        guests = away[places[away] == target]
        change = counts[expert] - counts[guests]
        fits = (loads[target] + change <= limit) & (loads[source] - change <= limit)
        for guest in guests[fits]:
            homes = 1 + int(home[guest] == source)
            if best is None or homes > best[0]:
                best = homes, [(int(expert), target), (int(guest), source)]
                if homes == 2:
                    return best[1]
    return None if best is None else best[1]
