"""How much samples that follow each other are worth: autocorrelation, and what it makes of a variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.stats.rank_tests import midranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MOST_CORRELATION = 0.98
LEAST_SERIES = 4
"""Of fewer samples in a row nothing is said about their correlation."""
LEAST_INDEPENDENT = 6
"""What is estimated from one run never makes its samples worth fewer: from so few, no estimate is good enough to
overrule that six against six do not overlap."""


@dataclass(frozen=True)
class Inflation:
    """Per case, how many samples of each side are worth one independent one, at least 1; shapes ``(cases,)``.

    Attributes:
        x, y: of the two sides.
        correlation: from one sample to the next, 0 or above.
        degrees: of freedom of the estimate, where it is that of few blocks; else infinite.
    """

    x: Array
    y: Array
    correlation: Array
    degrees: Array

    def of_shift(self, n_x: int, n_y: int) -> Array:
        """By how much the variance of a shift between the sides is larger than for independent samples."""
        return np.asarray((self.x / n_x + self.y / n_y) / (1 / n_x + 1 / n_y))


def inflation(x: Array, y: Array, x_blocks: Sequence[int], y_blocks: Sequence[int]) -> Inflation:
    """The inflation of both sides' variances, from the correlation of neighbours and the spread between blocks.

    Both sides measure the same thing on the same machine, so they share one correlation, which
    makes it known better. It is that of ranks, as an outlier would hide it, and it is raised by what
    an estimate from so few samples lacks in the mean (Kendall 1954). A drift looks like a high
    correlation, and is treated as one. Where a side has several blocks, they may differ by more
    than that explains: the larger inflation counts.

    Args:
        x, y: samples in order, shapes ``(cases, n_x)`` and ``(cases, n_y)``.
        x_blocks, y_blocks: sizes of the independent blocks that the samples are in.
    """
    r, _ = lag_correlation([*_split(x, x_blocks), *_split(y, y_blocks)])
    degrees = np.full(len(x), np.inf)
    most = max(1.0, min(x.shape[1], y.shape[1]) / LEAST_INDEPENDENT)
    within = np.minimum((1 + r) / (1 - r), most)
    x_between, y_between = _between(x, x_blocks), _between(y, y_blocks)
    for between, sizes in ((x_between, x_blocks), (y_between, y_blocks)):
        degrees = np.where(between > within, np.minimum(degrees, max(1, len(sizes) - 1)), degrees)
    return Inflation(np.maximum(within, x_between), np.maximum(within, y_between), r, degrees)


def lag_correlation(blocks: Sequence[Array]) -> tuple[Array, int]:
    """Rank correlation of neighbours within blocks, 0 or above, shape ``(cases,)``; and the samples that it is from.

    Args:
        blocks: samples of each, in order, shape ``(cases, n)`` with an ``n`` of its own; short ones say nothing.
    """
    products, squares = np.zeros(len(blocks[0])), np.zeros(len(blocks[0]))
    samples, series = 0, 0
    for block in blocks:
        n = block.shape[1]
        if n < LEAST_SERIES:
            continue
        ranks, _ = midranks(block)
        # Ranks of blocks of different lengths are brought to one scale.
        ranks = (ranks - (n + 1) / 2) / n
        products += (ranks[:, :-1] * ranks[:, 1:]).sum(axis=1)
        squares += (ranks**2).sum(axis=1)
        samples += n
        series += 1
    if not series:
        return products, 0
    raw = np.divide(products, squares, out=np.zeros(len(products)), where=squares > 0)
    raised = np.where(squares > 0, raw + (1 + 3 * raw) * series / samples, 0.0)
    return np.clip(raised, 0.0, MOST_CORRELATION), samples


def _split(samples: Array, sizes: Sequence[int]) -> list[Array]:
    return np.split(samples, np.cumsum(sizes)[:-1], axis=1)


def _between(samples: Array, sizes: Sequence[int]) -> Array:
    """How much more the blocks' means vary than independent samples would make them; 0 for a single block."""
    if len(sizes) < 2:
        return np.zeros(len(samples))
    ranks, _ = midranks(samples)
    means = np.stack([block.mean(axis=1) for block in _split(ranks, sizes)], axis=1)
    mean_size = samples.shape[1] / len(sizes)
    variance = ranks.var(axis=1, ddof=1) if ranks.shape[1] > 1 else np.zeros(len(samples))
    between = mean_size * means.var(axis=1, ddof=1)
    return np.asarray(np.divide(between, variance, out=np.zeros(len(samples)), where=variance > 0))
