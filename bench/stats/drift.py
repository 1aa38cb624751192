"""Tells a slow drift from a step: whether points rise or fall all along, rather than once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SLOPE_OF_EACH, SLOPE_OF_BOTH = 0.5, 1.5
"""Deviates of the slopes within either level and within both, beyond which a step may be a drift."""
STEP_MARGIN = 3.0
"""How much a step must explain beyond a straight line: n times the logarithm of the ratio of their squared errors."""
TINY = 1e-300
"""Stands for zero in logarithms."""


def is_drift(x: Array, w: Array, left: int, residual: Array) -> bool:
    """Whether the points rise or fall all along, rather than once.

    Then the levels on both sides slope the way of the step, together by more than chance, and a straight line explains
    the points about as well as the step, which may choose its place, does.
    """
    error = max(float(w @ (residual * residual)), TINY)
    way = 1.0 if float(x[left:].mean()) > float(x[:left].mean()) else -1.0
    slopes, spreads = [], []
    for side in (slice(0, left), slice(left, None)):
        place = np.arange(len(x[side]), dtype=float)
        place -= float(w[side] @ place) / float(w[side].sum())
        slopes.append(way * float((w[side] * place) @ residual[side]))
        spreads.append(float((w[side] * place) @ place))
    unit = error / (len(x) - 2)
    each = [slope / math.sqrt(spread * unit) for slope, spread in zip(slopes, spreads, strict=True)]
    both = sum(slopes) / math.sqrt(sum(spreads) * unit)
    gain = len(x) * math.log(max(_line_error(x, w), TINY) / error)
    return min(each) > SLOPE_OF_EACH and both > SLOPE_OF_BOTH and gain < STEP_MARGIN


def _line_error(x: Array, w: Array) -> float:
    """Squared error of a straight line instead of a step, which as well takes two numbers."""
    place = np.arange(len(x), dtype=float)
    total = float(w.sum())
    place -= float(w @ place) / total
    centred = x - float(w @ x) / total
    slope = float((w * place) @ centred) / float((w * place) @ place)
    rest = centred - slope * place
    return float(w @ (rest * rest))
