"""Sets of time intervals: merged, cut, intersected, and shared out among those that hold them together.

A set is an array of shape ``(n, 2)``, float64, of beginnings and ends in any one unit, sorted and
disjoint. ``merged`` makes one of anything; the other functions take and give such sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Intervals = NDArray[np.float64]

EMPTY: Intervals = np.empty((0, 2))


def merged(pairs: Sequence[tuple[float, float]] | Intervals) -> Intervals:
    """The set that any intervals cover together; empty and reversed ones cover nothing."""
    array = np.asarray(pairs, dtype=np.float64).reshape(-1, 2)
    array = array[array[:, 1] > array[:, 0]]
    if not len(array):
        return EMPTY
    array = array[np.argsort(array[:, 0], kind="stable")]
    reach = np.maximum.accumulate(array[:, 1])
    first = np.concatenate([[True], array[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([array[first, 0], reach[last]])


def union(*sets: Intervals) -> Intervals:
    """What any of the sets covers."""
    return merged(np.concatenate(sets)) if sets else EMPTY


def length(intervals: Intervals) -> float:
    """How much a set covers."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def complement(intervals: Intervals) -> Intervals:
    """All of time that the set leaves out, from minus to plus infinity."""
    edges = np.concatenate([[-np.inf], intervals.ravel(), [np.inf]])
    return edges.reshape(-1, 2)


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """What both sets cover."""
    if not len(one) or not len(other):
        return EMPTY
    edges = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    both = covers(one, edges) & covers(other, edges)
    return merged(np.column_stack([edges[:-1][both], edges[1:][both]]))


def difference(one: Intervals, other: Intervals) -> Intervals:
    """What the first set covers and the second does not."""
    return intersection(one, complement(other)) if len(other) else one


def covers(intervals: Intervals, edges: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a set covers each piece between neighbours of ``edges``.

    Args:
        edges: sorted, shape ``(m,)``, with every edge of the set that lies between the first and the last.

    Returns:
        shape ``(m - 1,)``.
    """
    begun = np.searchsorted(intervals[:, 0], edges[:-1], side="right")
    ended = np.searchsorted(intervals[:, 1], edges[:-1], side="right")
    return begun > ended


def shared_out(holders: Mapping[str, Intervals], within: Intervals) -> dict[str, float]:
    """How much of ``within`` each holder has, where several that hold a moment together share it evenly.

    The shares add up to what the holders cover of ``within``, so nothing is counted twice.
    """
    shares = dict.fromkeys(holders, 0.0)
    parts = {name: intersection(held, within) for name, held in holders.items()}
    sets = [part for part in parts.values() if len(part)]
    if not sets:
        return shares
    edges = np.unique(np.concatenate([part.ravel() for part in sets]))
    pieces, count = np.diff(edges), np.zeros(len(edges) - 1)
    held = {name: covers(part, edges) for name, part in parts.items() if len(part)}
    for cover in held.values():
        count += cover
    weight = np.divide(pieces, count, out=np.zeros_like(pieces), where=count > 0)
    return {**shares, **{name: float(weight[cover].sum()) for name, cover in held.items()}}
