"""Bounded least squares on relative errors of predicted times, for the numbers that the data can tell.

Predictions are piecewise linear in the numbers (``parameters`` makes them so), so each round solves a
linear problem at the last round's derivatives, and goes as far towards its answer as that helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ciera_piper_core.simulate.parameters import Parameter

    Floats = NDArray[np.float64]

ROUNDS = 40
HALVINGS = 6

HUBER = 1.5
"""Residuals beyond so many standard deviations count less."""

LEAST_SCATTER = 0.005
"""Relative scatter of measured times; less is luck."""

VISIBLE = 0.01
"""A number can be seen where at least this share of some cell's time is its doing."""

APART = 0.05
"""Share of a number's effect on all cells that the numbers before it must not be able to imitate."""

UNSEEN = "no cell shows it"


@dataclass(frozen=True, eq=False)
class Fit:
    """The answer.

    Attributes:
        numbers: one a parameter. fitted: which of them were fitted.
        errors: relative standard errors of these; infinite for a number that is 0.
        left: for each of the others why it was not.
    """

    numbers: Floats
    fitted: tuple[int, ...]
    errors: dict[int, float]
    left: dict[int, str]


def fit(
    parameters: Sequence[Parameter], start: Floats, seconds_of: Callable[[Floats], Floats], measured: Floats
) -> Fit:
    """The numbers that predict the measured seconds best.

    Args:
        parameters: bounds and steps of the numbers, in order of preference.
        start: numbers to begin with; those that cannot be told stay so, but costs, which are then 0.
        seconds_of: predicted seconds of all cells for some numbers.
        measured: seconds of all cells.
    """
    numbers, predicted = start.copy(), seconds_of(start)
    for _ in range(ROUNDS):
        effects = _effects(parameters, numbers, predicted, seconds_of) / measured[:, np.newaxis]
        chosen, left = _told_apart(parameters, numbers, effects)
        goal = numbers.copy()
        for each in left:
            if parameters[each].cost and left[each] != UNSEEN:
                goal[each] = 0.0
        error = predicted / measured - 1
        weights = _weights(error)
        goal[chosen] = _solve(
            effects[:, chosen],
            effects @ numbers - effects @ np.where(np.isin(np.arange(len(goal)), chosen), 0.0, goal) - error,
            weights,
            [parameters[each] for each in chosen],
        )
        step = _go(numbers, goal, seconds_of, measured, weights)
        if step is None:
            break
        done = np.allclose(step[0], numbers, rtol=1e-5, atol=0)
        numbers, predicted = step
        if done:
            break
    effects = _effects(parameters, numbers, predicted, seconds_of) / measured[:, np.newaxis]
    chosen, left = _told_apart(parameters, numbers, effects)
    return Fit(numbers, tuple(chosen), _errors(effects, predicted / measured - 1, numbers, chosen), left)


def _effects(
    parameters: Sequence[Parameter], numbers: Floats, predicted: Floats, seconds_of: Callable[[Floats], Floats]
) -> Floats:
    """Seconds of each cell by each number: derivatives, shape ``(cells, numbers)``."""
    effects = np.empty((len(predicted), len(parameters)))
    for number, each in enumerate(parameters):
        step = max(each.step, 1e-4 * numbers[number])
        if numbers[number] + step > each.high:
            step = -step
        moved = numbers.copy()
        moved[number] += step
        effects[:, number] = (seconds_of(moved) - predicted) / step
    return effects


def _told_apart(parameters: Sequence[Parameter], numbers: Floats, effects: Floats) -> tuple[list[int], dict[int, str]]:
    """Numbers that the cells can tell; and for the others why not.

    Each in turn is compared with what those before it can imitate.
    """
    chosen: list[int] = []
    left: dict[int, str] = {}
    basis = np.empty((len(effects), 0))
    for number, each in enumerate(parameters):
        column = effects[:, number]
        length = float(np.linalg.norm(column))
        # How much a number that is off may change a cell is judged by the range that it may have.
        reach = max(numbers[number], min(each.high, each.visible))
        if np.abs(column).max() * reach < VISIBLE:
            left[number] = UNSEEN
            continue
        rest = column - basis @ (basis.T @ column)
        apart = float(np.linalg.norm(rest)) / length
        if apart < APART:
            alike = max(chosen, key=lambda other: _likeness(effects[:, other], column))
            left[number] = f"the cells cannot tell it from {parameters[alike].name}"
            continue
        basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
        chosen.append(number)
    return chosen, left


def _likeness(a: Floats, b: Floats) -> float:
    return abs(float(a @ b)) / float(np.linalg.norm(a) * np.linalg.norm(b))


def _scatter(error: Floats) -> float:
    return max(1.4826 * float(np.median(np.abs(error - np.median(error)))), LEAST_SCATTER)


def _weights(error: Floats) -> Floats:
    """Huber's: 1, and less for what fits worst."""
    allowed = HUBER * _scatter(error)
    return np.asarray(allowed / np.maximum(np.abs(error), allowed))


def _loss(error: Floats, weights: Floats) -> float:
    return float(weights @ error**2)


def _solve(effects: Floats, wanted: Floats, weights: Floats, parameters: Sequence[Parameter]) -> Floats:
    """Numbers within their bounds whose effects add up to ``wanted``, as nearly as weights ask for."""
    from scipy.optimize import lsq_linear

    if not parameters:
        return np.empty(0)
    root = np.sqrt(weights)
    scale = 1 / np.linalg.norm(effects * root[:, np.newaxis], axis=0)
    bounds = np.array([(each.low, each.high) for each in parameters]).T / scale
    answer = lsq_linear(effects * root[:, np.newaxis] * scale, wanted * root, bounds, method="bvls")
    return np.asarray(answer.x * scale)


def _go(
    numbers: Floats, goal: Floats, seconds_of: Callable[[Floats], Floats], measured: Floats, weights: Floats
) -> tuple[Floats, Floats] | None:
    """The goal, or a point nearer by where that predicts better; None if nothing on the way does."""
    before = _loss(seconds_of(numbers) / measured - 1, weights)
    share = 1.0
    for _ in range(HALVINGS):
        trial = numbers + share * (goal - numbers)
        predicted = seconds_of(trial)
        if _loss(predicted / measured - 1, weights) <= before * (1 + 1e-9):
            return trial, predicted
        share /= 2
    return None


def _errors(effects: Floats, error: Floats, numbers: Floats, chosen: Sequence[int]) -> dict[int, float]:
    """Relative standard errors, as if the scatter of the cells were independent."""
    active = [each for each in chosen if numbers[each] > 0]
    result = dict.fromkeys(chosen, np.inf)
    if not active:
        return result
    part = effects[:, active] * numbers[active]
    spread = max(float(error @ error) / max(len(error) - len(active), 1), LEAST_SCATTER**2)
    covariance = np.linalg.pinv(part.T @ part) * spread
    return {**result, **{each: float(np.sqrt(covariance[i, i])) for i, each in enumerate(active)}}
