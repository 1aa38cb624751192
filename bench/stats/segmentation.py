"""Cuts series into pieces of constant level: outliers bounded, then exact dynamic programming over many series at once.

What comes out are candidates. ``bench.stats.change_points`` decides which of them are changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEAST_INNER = 6
"""Points of a piece that has another one after it. Less could be a few outliers in a row."""
LEAST_LAST = 3
"""Points of the last piece, so that two bad runs in a row are not yet a change."""
WINDOW = 7
"""Points of the running median. At the end of a series it follows a new level from the fourth point on; until then
the level's points count as outliers do, with at most ``BOUND`` deviations each."""
BOUND = 3.0
"""How many standard deviations from the running median a point may have; what is beyond is moved there."""
PENALTY = 9.0
"""What a further piece must save of the squared error, in variances. A change that is believed in the end saves about
twice as much, so none is lost here."""
RESOLUTION = 1e-7
"""Least standard deviation in relative units. Scatter below it is rounding, not noise."""
GAUSSIAN_MAD = 1.4826
RESIDUAL_SCALE = 1.21
"""A normal sample scatters this much more than its distances from a running median of ``WINDOW`` points."""
BATCH = 1024
"""Series that are cut together: few enough for their tables to stay in cache."""


def bound_outliers(values: Array) -> tuple[Array, Array]:
    """Points moved to within ``BOUND`` standard deviations of the running median, so that steps stay and spikes go.

    Args:
        values: shape (series, points), at least ``WINDOW`` points.

    Returns:
        the bounded values; and a standard deviation for each series that neither steps nor spikes inflate.
    """
    points = values.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=1)
    centre = np.partition(windows, WINDOW // 2, axis=2)[:, :, WINDOW // 2]
    running = centre[:, np.clip(np.arange(points) - WINDOW // 2, 0, points - WINDOW)]
    distance = np.abs(values - running)
    scale = GAUSSIAN_MAD * RESIDUAL_SCALE * np.median(distance, axis=1)
    # Coarse clocks make most points equal, and their median distance zero.
    coarse = scale < RESOLUTION
    scale[coarse] = distance[coarse].mean(axis=1) * np.sqrt(np.pi / 2)
    scale = np.maximum(scale, RESOLUTION)
    reach = BOUND * scale[:, None]
    return np.clip(values, running - reach, running + reach), scale


def candidate_splits(values: Array, weights: Array, scale: Array) -> list[list[int]]:
    """The cuts of each series with the least squared error plus ``PENALTY`` a piece, over all possible cuts.

    Args:
        values, weights: shape (series, points).
        scale: standard deviation of each series.

    Returns:
        for each series the first point of every piece but the first, rising.
    """
    found: list[list[int]] = []
    for first in range(0, len(values), BATCH):
        batch = slice(first, first + BATCH)
        found += _cut(values[batch], weights[batch], scale[batch])
    return found


def _cut(values: Array, weights: Array, scale: Array) -> list[list[int]]:
    series, points = values.shape
    # Sums of squares of large numbers would drown the differences between pieces.
    centred = (values - np.median(values, axis=1, keepdims=True)) / scale[:, None]
    total_w, total_x, total_xx = (
        np.concatenate([np.zeros((series, 1)), np.cumsum(part, axis=1)], axis=1)
        for part in (weights, weights * centred, weights * centred**2)
    )
    # best[:, end]: least cost of the points before end, less one penalty, with end - 1 the last of a piece.
    best = np.full((series, points + 1), np.inf)
    best[:, 0] = -PENALTY
    begin = np.zeros((series, points + 1), dtype=np.intp)
    rows = np.arange(series)
    for end in (*range(LEAST_INNER, points - LEAST_LAST + 1), points):
        starts = slice(0, end - (LEAST_LAST if end == points else LEAST_INNER) + 1)
        weight = total_w[:, end, None] - total_w[:, starts]
        level = total_x[:, end, None] - total_x[:, starts]
        cost = total_xx[:, end, None] - total_xx[:, starts] - level * level / weight
        cost += best[:, starts] + PENALTY
        begin[:, end] = cost.argmin(axis=1)
        best[:, end] = cost[rows, begin[:, end]]
    return [_walk_back(starts, points) for starts in begin.tolist()]


def _walk_back(starts: list[int], points: int) -> list[int]:
    splits = []
    end = starts[points]
    while end:
        splits.append(end)
        end = starts[end]
    return splits[::-1]
