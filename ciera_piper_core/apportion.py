"""Whole numbers in proportion to weights, by largest remainder: exact, and the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZIPF_SCALE = 1 << 24
"""Weight of the first under Zipf's law; the k-th has this over k, rounded down."""

MOST = 1 << 62
"""Total times largest weight: its products stay within signed 64-bit integers."""


def zipf_weights(count: int) -> NDArray[np.int64]:
    """Weights in proportion to ``1, 1/2, 1/3, ...``, shape ``(count,)``, int64."""
    return np.asarray(ZIPF_SCALE // np.arange(1, count + 1, dtype=np.int64))


def apportion(total: int, weights: NDArray[np.int64], first: int = 0) -> NDArray[np.int64]:
    """``total`` in proportion to ``weights``: shape ``(len(weights),)``, int64, adds up to ``total``.

    What rounding down leaves over goes to the largest remainders, a unit each; equal remainders
    are served from index ``first`` on, then from 0.

    Args:
        weights: integers from 0 up, not all of them 0.

    Raises:
        ValueError: a total below zero, or too large for exact products with these weights.
    """
    largest = int(weights.max())
    if not 0 <= total * largest <= MOST:
        raise ValueError(
            f"{total} units cannot be shared out by weights up to {largest}; it takes 0 to {MOST // largest}"
        )
    shares, remainders = np.divmod(total * weights, weights.sum())
    distance = (np.arange(len(weights)) - first) % len(weights)
    most_in_need = np.lexsort((distance, -remainders))
    shares[most_in_need[: total - int(shares.sum())]] += 1
    return np.asarray(shares)
