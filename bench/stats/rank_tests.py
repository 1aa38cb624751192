"""Rank tests of many cases at once: Mann-Whitney and Wilcoxon's signed ranks, with exact distributions and ties.

A case is a row of an array; all rows of a call have the same number of samples. p-values are
two-sided. Without ties the distribution is exact as long as it fits a table; with ties, and few
samples, it is the exact one of these very ranks over all ways to deal them out; otherwise it is the
normal one, with the variance that the ties leave and half a step of continuity correction. That one
is too careful in its far tail, never too bold.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MOST_PAIRS_EXACT = 2500
"""Mann-Whitney's table is exact up to this number of pairs of a sample of one side and one of the other."""
MOST_SIGNED_EXACT = 60
"""Signed ranks' table is exact up to so many differences."""
MOST_TIED_EXACT = 24
"""With ties the distribution belongs to one case alone; of more samples the normal one is used."""
_SLOT_BITS = 64


def midranks(values: Array) -> tuple[Array, Array]:
    """Ranks within each row, from 1, equal values sharing their mean, shape ``(cases, n)``; and each row's tie term.

    The tie term is the sum of ``t**3 - t`` over groups of ``t`` equal values, shape ``(cases,)``.
    """
    cases, n = values.shape
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    starts = np.ones((cases, n), dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    group = np.cumsum(starts.ravel()) - 1
    sizes = np.bincount(group)
    first = np.tile(np.arange(n), cases)[starts.ravel()]
    shared = (first + (sizes + 1) / 2)[group].reshape(cases, n)
    ranks = np.empty_like(shared)
    np.put_along_axis(ranks, order, shared, axis=1)
    tie_term = np.zeros(cases)
    np.add.at(tie_term, np.flatnonzero(starts.ravel()) // n, sizes.astype(np.float64) ** 3 - sizes)
    return ranks, tie_term


@lru_cache(maxsize=256)
def mann_whitney_cdf(n_x: int, n_y: int) -> Array:
    """``P(U <= u)`` for u from 0 to ``n_x * n_y`` where both sides are the same and nothing is tied."""
    n_x, n_y = min(n_x, n_y), max(n_x, n_y)
    counts = np.zeros((n_x + 1, n_x * n_y + 1))
    counts[0, 0] = 1.0
    # Taking rank r as the k-th of x puts r - k samples of y before it.
    for rank in range(1, n_x + n_y + 1):
        for k in range(min(n_x, rank), 0, -1):
            before = rank - k
            if before <= n_y:
                counts[k, before:] += counts[k - 1, : counts.shape[1] - before]
    cdf: Array = np.cumsum(counts[n_x]) / counts[n_x].sum()
    cdf.setflags(write=False)
    return cdf


@lru_cache(maxsize=256)
def signed_rank_cdf(n: int) -> Array:
    """``P(W <= w)``, W the sum of the ranks of positive differences, for w from 0 to ``n (n + 1) / 2``."""
    counts = np.zeros(n * (n + 1) // 2 + 1)
    counts[0] = 1.0
    for rank in range(1, n + 1):
        counts[rank:] += counts[:-rank].copy()
    cdf: Array = np.cumsum(counts) / counts.sum()
    cdf.setflags(write=False)
    return cdf


def least_p_value(n_x: int, n_y: int, *, paired: bool = False) -> float:
    """The least two-sided p-value that so many samples can reach: that of sides which do not overlap."""
    if min(n_x, n_y) < 1:
        return 1.0
    return min(1.0, 2 / (2**n_x if paired else comb(n_x + n_y, n_x)))


def mann_whitney(x: Array, y: Array) -> Array:
    """p-values of whether y tends to be above or below x, shape ``(cases,)``.

    Args:
        x, y: samples, shapes ``(cases, n_x)`` and ``(cases, n_y)``.
    """
    cases, n_x, n_y = len(x), x.shape[1], y.shape[1]
    total = n_x + n_y
    ranks, tie_term = midranks(np.concatenate([x, y], axis=1))
    u = ranks[:, n_x:].sum(axis=1) - n_y * (n_y + 1) / 2
    low = np.minimum(u, n_x * n_y - u)
    tied = tie_term > 0
    p = np.ones(cases)
    fits = n_x * n_y <= MOST_PAIRS_EXACT
    if fits and not tied.all():
        p[~tied] = 2 * mann_whitney_cdf(n_x, n_y)[np.rint(low[~tied]).astype(int)]
    if total <= MOST_TIED_EXACT:
        for case in np.flatnonzero(tied):
            p[case] = _exact_of_subset(tuple(np.rint(2 * ranks[case]).astype(int).tolist()), n_y, total)
    rest = tied & (total > MOST_TIED_EXACT) if fits else tied & (total > MOST_TIED_EXACT) | ~tied
    variance = n_x * n_y / 12 * (total + 1 - tie_term[rest] / (total * (total - 1)))
    p[rest] = _normal_p(n_x * n_y / 2 - low[rest], variance)
    return np.minimum(p, 1.0)


def signed_rank(differences: Array) -> Array:
    """p-values of whether differences tend to be above or below zero, shape ``(cases,)``.

    Differences of exactly zero are left out (Wilcoxon 1945), so each such case has fewer.

    Args:
        differences: shape ``(cases, n)``.
    """
    p = np.ones(len(differences))
    zeros = (differences == 0).sum(axis=1)
    for dropped in np.unique(zeros):
        rows = np.flatnonzero(zeros == dropped)
        n = differences.shape[1] - int(dropped)
        if n == 0:
            continue
        kept = differences[rows]
        kept = kept[kept != 0].reshape(len(rows), n)
        p[rows] = _signed_rank_without_zeros(kept)
    return p


def _signed_rank_without_zeros(differences: Array) -> Array:
    cases, n = differences.shape
    ranks, tie_term = midranks(np.abs(differences))
    w = np.where(differences > 0, ranks, 0.0).sum(axis=1)
    low = np.minimum(w, n * (n + 1) / 2 - w)
    tied = tie_term > 0
    p = np.ones(cases)
    if n <= MOST_SIGNED_EXACT:
        p[~tied] = 2 * signed_rank_cdf(n)[np.rint(low[~tied]).astype(int)]
    if n <= MOST_TIED_EXACT:
        for case in np.flatnonzero(tied):
            p[case] = _exact_of_signs(tuple(np.rint(2 * ranks[case]).astype(int).tolist()), round(2 * low[case]))
    rest = (tied if n <= MOST_SIGNED_EXACT else np.ones(cases, dtype=bool)) & ~(tied & (n <= MOST_TIED_EXACT))
    variance = n * (n + 1) * (2 * n + 1) / 24 - tie_term[rest] / 48
    p[rest] = _normal_p(n * (n + 1) / 4 - low[rest], variance)
    return np.minimum(p, 1.0)


def _normal_p(distance: Array, variance: Array) -> Array:
    from scipy.special import ndtr

    z = np.maximum(distance - 0.5, 0.0) / np.sqrt(np.maximum(variance, 1e-12))
    return np.asarray(np.where(variance > 0, 2 * ndtr(-z), 1.0))


def _exact_of_subset(doubled_ranks: Sequence[int], chosen: int, total: int) -> float:
    """Share of all ways to choose so many ranks whose sum is as far from the mean as that of the last ones.

    A polynomial's coefficients are slots of one large integer, so that a shift and a sum add them all.
    """
    observed, mean_doubled = sum(doubled_ranks[-chosen:]), chosen * sum(doubled_ranks)
    ways = [1] + [0] * chosen
    for i, rank in enumerate(doubled_ranks):
        for k in range(min(chosen, i + 1), 0, -1):
            ways[k] += ways[k - 1] << (rank * _SLOT_BITS)
    counts = _slots(ways[chosen])
    # The mean is kept times ``total``, so that all of this is in whole numbers.
    far = np.abs(np.arange(len(counts)) * total - mean_doubled) >= abs(observed * total - mean_doubled)
    return float(counts[far].sum() / counts.sum())


def _exact_of_signs(doubled_ranks: Sequence[int], low_doubled: int) -> float:
    """Share of all ways to give signs to the ranks whose lesser sum is at most the observed one."""
    ways = 1
    for rank in doubled_ranks:
        ways += ways << (rank * _SLOT_BITS)
    counts = _slots(ways)
    return float(min(1.0, 2 * counts[: low_doubled + 1].sum() / counts.sum()))


def _slots(number: int) -> Array:
    width = _SLOT_BITS // 8
    length = -(-number.bit_length() // _SLOT_BITS)
    return np.frombuffer(number.to_bytes(length * width, "little"), dtype="<u8").astype(np.float64)
