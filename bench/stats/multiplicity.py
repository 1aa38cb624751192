"""Many tests at once: the false discovery rate of Benjamini and Hochberg (1995), and Fisher's joint p-value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_P = 1e-300
"""A p-value of zero is one that arithmetic cannot hold."""


def adjusted_p_values(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Benjamini and Hochberg's adjusted p-values: those up to ``q`` have at most a share ``q`` of false ones.

    Where nothing changed at all, the chance that any is up to ``q`` is at most ``q``. Holds for
    independent tests and for those that depend on each other positively, as cases of one machine do.

    Args:
        p_values: shape ``(m,)``; NaN for a case without a test, which counts for nothing and stays NaN.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if ((p < 0) | (p > 1)).any():
        raise ValueError("p-values are between 0 and 1")
    adjusted = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    if known.size == 0:
        return adjusted
    order = known[np.argsort(p[known], kind="stable")]
    scaled = p[order] * known.size / np.arange(1, known.size + 1)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted


def joint_p_value(one: float, other: float) -> float:
    """Fisher's p-value of two independent ones: how often chance alone makes their product so small."""
    product = max(one, LEAST_P) * max(other, LEAST_P)
    return float(min(1.0, product * (1.0 - np.log(product)))) if product > 0 else 0.0
