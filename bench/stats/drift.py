"""Tells a slow drift from a step: whether points rise or fall all along, rather than once, and how far they went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TINY = 1e-300
"""Stands for zero in logarithms."""


def is_drift(x: Array, w: Array, residual: Array, spare: int = 0) -> bool:
    """Whether a straight line explains points as well as steps do, so that nobody can say that they changed at once.

    Args:
        x, w: points and their weights, shape ``(points,)``.
        residual: what the steps leave of them.
        spare: how many more numbers the steps have than a line has. Each has to explain what a number that is fitted
            to n points is worth, the logarithm of n (Schwarz, Annals of Statistics 6, 1978).
    """
    line = line_through(x, w).residual
    of_line, of_steps = max(float(w @ (line * line)), TINY), max(float(w @ (residual * residual)), TINY)
    return len(x) * math.log(of_line / of_steps) < spare * math.log(len(x))


@dataclass(frozen=True)
class Line:
    """The straight line through a stretch of points, on the scale that they are judged on.

    Attributes:
        begin, end: its values at the first and the last point.
        residual: of the points, shape ``(points,)``.
        leverage: variance of ``end - begin`` for points of variance one.
    """

    begin: float
    end: float
    residual: Array
    leverage: float


def line_through(x: Array, w: Array) -> Line:
    """The line with the least squared error.

    Args:
        x, w: points and their weights, shape ``(points,)``, two at least.
    """
    place = np.arange(len(x), dtype=float)
    total = float(w.sum())
    place -= float(w @ place) / total
    level = float(w @ x) / total
    spread = float((w * place) @ place)
    slope = float((w * place) @ (x - level)) / spread
    begin, end = level + slope * float(place[0]), level + slope * float(place[-1])
    return Line(begin, end, x - level - slope * place, (len(x) - 1) ** 2 / spread)
