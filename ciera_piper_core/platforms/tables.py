"""Measured points to functions: monotone curves in one size, and blends of curves over shapes.

All interpolation is linear with both axes logarithmic, as the platform profile asks for. A curve of
seconds never falls as its size grows: of those curves it is the one that fits the measured points best, by
least squares of logarithms. Neighbours that fall are so given their geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

EXACT_DISTANCE = 1e-9
"""Shapes that are nearer than this (in octaves) are the same shape."""


@dataclass(frozen=True)
class SecondsCurve:
    """Seconds against a size.

    Attributes:
        sizes: ascending, above 0.
        seconds: as many, above 0, not falling.
        below: what holds under the least size: ``constant`` (a fixed cost rules) or ``proportional``.
            Above the largest size, seconds always grow in proportion.
    """

    sizes: Array
    seconds: Array
    below: Literal["constant", "proportional"] = "constant"

    @classmethod
    def from_points(
        cls, points: Sequence[tuple[float, float]], below: Literal["constant", "proportional"] = "constant"
    ) -> SecondsCurve:
        """A curve through ``(size, seconds)``; of equal sizes the fastest counts.

        Raises:
            ValueError: no point, or one that is not above 0.
        """
        fastest: dict[float, float] = {}
        for size, seconds in points:
            if not (0 < size < np.inf and 0 < seconds < np.inf):
                raise ValueError(f"a size and its seconds must be finite and above 0, not {size!r} and {seconds!r}")
            fastest[size] = min(seconds, fastest.get(size, seconds))
        if not fastest:
            raise ValueError("a curve needs at least one point")
        sizes = np.array(sorted(fastest), dtype=np.float64)
        # Imported here: it takes longer than a plan.
        from scipy.optimize import isotonic_regression

        logarithms = np.log([fastest[size] for size in sorted(fastest)])
        return cls(sizes, np.exp(isotonic_regression(logarithms).x), below)

    def scaled(self, factor: float) -> SecondsCurve:
        """The same curve with all seconds times ``factor``."""
        return SecondsCurve(self.sizes, self.seconds * factor, self.below)

    def seconds_at(self, size: ArrayLike) -> Array:
        """Seconds for sizes above 0, in the shape of ``size``."""
        wanted = np.asarray(size, dtype=np.float64)
        inside = np.exp(np.interp(np.log(wanted), np.log(self.sizes), np.log(self.seconds)))
        beyond = np.maximum(wanted / self.sizes[-1], 1.0)
        if self.below == "proportional":
            beyond = beyond * np.minimum(wanted / self.sizes[0], 1.0)
        return np.asarray(inside * beyond)

    def covers(self, size: ArrayLike) -> NDArray[np.bool_]:
        """Where the size is within what was measured."""
        wanted = np.asarray(size, dtype=np.float64)
        return np.asarray((wanted >= self.sizes[0]) & (wanted <= self.sizes[-1]))


@dataclass(frozen=True)
class RateCurve:
    """A rate against a size; beyond its ends the rate stays.

    Attributes:
        sizes: ascending, above 0. rates: as many, above 0.
    """

    sizes: Array
    rates: Array

    @classmethod
    def from_points(cls, points: Sequence[tuple[float, float]]) -> RateCurve:
        """A curve through ``(size, rate)``; of equal sizes the best rate counts.

        Raises:
            ValueError: no point, or one that is not above 0.
        """
        best: dict[float, float] = {}
        for size, rate in points:
            if not (0 < size < np.inf and 0 < rate < np.inf):
                raise ValueError(f"a size and its rate must be finite and above 0, not {size!r} and {rate!r}")
            best[size] = max(rate, best.get(size, rate))
        if not best:
            raise ValueError("a curve needs at least one point")
        return cls(np.array(sorted(best), dtype=np.float64), np.array([best[size] for size in sorted(best)]))

    def rate_at(self, size: ArrayLike) -> Array:
        """The rate for sizes above 0, in the shape of ``size``."""
        wanted = np.log(np.asarray(size, dtype=np.float64))
        return np.asarray(np.exp(np.interp(wanted, np.log(self.sizes), np.log(self.rates))))

    def covers(self, size: float) -> bool:
        """Whether the size is within what was measured."""
        return bool(self.sizes[0] <= size <= self.sizes[-1])


def blend_weights(target: Sequence[float], known: Sequence[Sequence[float]]) -> Array:
    """How much each known shape says about ``target``: shape ``(len(known),)``, adds up to 1.

    Weights fall with the square of the distance between the shapes' dimensions in octaves. Where
    ``target`` itself was measured, it alone counts.

    Args:
        target: dimensions, above 0.
        known: dimensions of the measured shapes, as many each; at least one shape.
    """
    distance = np.linalg.norm(np.log2(np.asarray(known, float)) - np.log2(np.asarray(target, float)), axis=1)
    same = distance < EXACT_DISTANCE
    weights = same.astype(np.float64) if same.any() else distance**-2.0
    return np.asarray(weights / weights.sum())
