"""Fits latency against size with the alpha-beta model, in one segment or two.

Loss: the mean of ``|log(predicted / measured)|``. It is relative, so that 1 KiB counts as much as
1 GiB; symmetric, so that half and double weigh the same; and one bad point moves it little.

Search: an absolute-error line passes through two of the points (or through one, where alpha or the
slope is zero), so all such lines are tried. No starting value, no iteration, no failure to converge.

Two segments, as where a protocol changes from eager to rendezvous, are taken only if the Bayesian
information criterion of Laplace residuals falls by ``CLEAR_BIC_GAIN``, each has ``MIN_SEGMENT_POINTS``
and the prediction does not fall at the seam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MIN_POINTS = 3
MIN_SEGMENT_POINTS = 4
CLEAR_BIC_GAIN = 10.0
"""Difference that Kass and Raftery (1995) call very strong evidence."""
RESIDUAL_FLOOR = 0.01
"""A mean residual below 1 % is not improved upon: no measurement here is better than that."""
MIN_SIZE_SHARE = 0.05
"""A slope must make up this share of the latency at a segment's largest size; else the segment is flat."""
MAX_ANCHORS = 48
"""Lines go through at most so many of the points, evenly spread, to bound the search."""


class UnfittableError(ValueError):
    """The points do not carry a fit; the message says why."""


@dataclass(frozen=True)
class Line:
    """``latency_us = alpha_us + us_per_byte * bytes`` for ``min_bytes < bytes <= max_bytes``."""

    min_bytes: int
    max_bytes: int
    alpha_us: float
    us_per_byte: float

    @property
    def beta_gb_s(self) -> float | None:
        """Decimal GB/s, or None for a flat line."""
        return 1e-3 / self.us_per_byte if self.us_per_byte else None


def fit_alpha_beta(sizes: Sequence[int], latencies_us: Sequence[float]) -> tuple[Line, ...]:
    """The one or two lines that fit best, by size, with alpha >= 0 and slope >= 0.

    Args:
        sizes: bytes, strictly ascending.
        latencies_us: positive, as many.

    Raises:
        UnfittableError: fewer than ``MIN_POINTS`` points.
        ValueError: unsorted sizes or a latency that is not positive.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(latencies_us, dtype=np.float64)
    if x.shape != y.shape or np.any(np.diff(x) <= 0) or np.any(x <= 0) or not np.all(np.isfinite(y) & (y > 0)):
        raise ValueError("sizes must ascend strictly from above 0, latencies be finite and above 0")
    if len(x) < MIN_POINTS:
        raise UnfittableError(f"{len(x)} size(s) measured; a fit needs {MIN_POINTS}")
    alpha, slope = _candidate_lines(x, y)
    with np.errstate(over="ignore"):
        residuals = np.abs(np.log((alpha[:, None] + slope[:, None] * x) / y))
    # loss[c, i]: of line c over the first i + 1 points; the sums of any run of points follow from it.
    loss = np.cumsum(residuals, axis=1)
    size_term = slope[:, None] * x
    idle_slope = (slope[:, None] > 0) & (size_term < MIN_SIZE_SHARE * (alpha[:, None] + size_term))
    whole = np.where(idle_slope[:, -1], np.inf, loss[:, -1])
    one = int(np.argmin(whole))
    two = _best_split(x, alpha, slope, loss, idle_slope, float(whole[one]))
    return two or (Line(int(x[0]), int(x[-1]), float(alpha[one]), float(slope[one])),)


def _candidate_lines(x: Array, y: Array) -> tuple[Array, Array]:
    """Alpha and slope of all lines through two anchors, through the origin and one, and flat through one."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), MAX_ANCHORS)).round().astype(int))
    x, y = x[keep], y[keep]
    left, right = np.triu_indices(len(x), k=1)
    slope = (y[right] - y[left]) / (x[right] - x[left])
    alpha = y[left] - slope * x[left]
    physical = (slope > 0) & (alpha >= 0)
    zeros = np.zeros_like(x)
    return np.concatenate([alpha[physical], zeros, y]), np.concatenate([slope[physical], y / x, zeros])


def _best_split(
    x: Array, alpha: Array, slope: Array, loss: Array, idle_slope: NDArray[np.bool_], one_loss: float
) -> tuple[Line, Line] | None:
    """The best two lines that join without a fall, if they are clearly better than one; else None."""
    n = len(x)
    if n < 2 * MIN_SEGMENT_POINTS:
        return None
    last = np.arange(MIN_SEGMENT_POINTS - 1, n - MIN_SEGMENT_POINTS)  # index of the first segment's last point
    first_loss = np.where(idle_slope[:, last], np.inf, loss[:, last])
    second_loss = np.where(idle_slope[:, -1:], np.inf, loss[:, -1:] - loss[:, last])
    first, second = np.argmin(first_loss, axis=0), np.argmin(second_loss, axis=0)
    split_loss = first_loss[first, np.arange(len(last))] + second_loss[second, np.arange(len(last))]
    one_bic = _bic(one_loss, n, parameters=2)
    for index in np.argsort(split_loss, kind="stable"):
        # Two lines and the place where they part make five parameters.
        if one_bic - _bic(float(split_loss[index]), n, parameters=5) < CLEAR_BIC_GAIN:
            return None
        f, s, k = first[index], second[index], last[index]
        seam = _seam(alpha[s] - alpha[f], slope[s] - slope[f], int(x[k]), int(x[k + 1]))
        if seam is not None:
            return (
                Line(int(x[0]), seam, float(alpha[f]), float(slope[f])),
                Line(seam, int(x[-1]), float(alpha[s]), float(slope[s])),
            )
    return None


def _seam(alpha_step: float, slope_step: float, low: int, high: int) -> int | None:
    """Least size in ``low..high`` where the second line is not below the first, or None."""
    if alpha_step + slope_step * low >= 0:
        return low
    if alpha_step + slope_step * high < 0:
        return None
    return min(high, math.ceil(-alpha_step / slope_step))


def _bic(total_loss: float, n: int, parameters: int) -> float:
    """Bayesian information criterion of ``n`` Laplace residuals, up to a constant."""
    return 2 * n * math.log(max(total_loss / n, RESIDUAL_FLOOR)) + parameters * math.log(n)
