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
DOUBLINGS = 24

BETTER = 0.8
"""Share of its error that a fit must be left with to be preferred although a link must first be slower."""

HUBER = 1.5
"""Residuals beyond so many standard deviations count less."""

LEAST_SCATTER = 0.005
"""Relative scatter of measured times; less is luck."""

VISIBLE = 1e-11
"""Share of a cell's time that a step of a number must change; less is rounding."""

NEGLIGIBLE = 1e-5
"""Share of a cell's time below which what a number makes of each is nothing."""

APART = 0.05
"""Share of a number's effect on all cells that the numbers before it must not be able to imitate."""

UNCLEAR = 0.5
"""Relative standard error above which nothing is known of a number."""

UNSEEN = "no cell shows it"


@dataclass(frozen=True, eq=False)
class Fit:
    """The answer.

    Attributes:
        numbers: one a parameter. fitted: which of them were fitted.
        errors: relative standard errors of these; infinite for a number that is 0.
        left: for each of the others why it was not.
        error: mean of the cells' relative errors, without sign, each as far as it is trusted.
    """

    numbers: Floats
    fitted: tuple[int, ...]
    errors: dict[int, float]
    left: dict[int, str]
    error: float


def fit(
    parameters: Sequence[Parameter],
    start: Floats,
    seconds_of: Callable[[Floats], Floats],
    measured: Floats,
    trust: Floats | None = None,
) -> Fit:
    """The numbers that predict the measured seconds best.

    A number that is not clear is left, the least clear first: at 0 if it may be 0, else where it began.

    Args:
        parameters: bounds and steps of the numbers, in order of preference.
        start: numbers to begin with; those that cannot be told stay so, but costs, which are then 0.
        seconds_of: predicted seconds of all cells for some numbers.
        measured: seconds of all cells.
        trust: how much each cell counts, from 0 to 1; all alike if None.
    """
    trust = np.ones(len(measured)) if trust is None else trust
    unclear: list[int] = []
    begin = start
    while True:
        found = _fit(parameters, begin, seconds_of, measured, trust, unclear)
        found = _woken(found, parameters, seconds_of, measured, trust, unclear)
        doubtful = {
            each: error
            for each, error in found.errors.items()
            if found.numbers[each] > 0 and not _is_clear(parameters[each], found.numbers[each], error)
        }
        if not doubtful:
            return found
        least_clear = max(doubtful, key=lambda each: doubtful[each])
        unclear.append(least_clear)
        begin = found.numbers.copy()
        begin[least_clear] = 0.0 if parameters[least_clear].low == 0 else start[least_clear]


def _fit(
    parameters: Sequence[Parameter],
    start: Floats,
    seconds_of: Callable[[Floats], Floats],
    measured: Floats,
    trust: Floats,
    unclear: Sequence[int],
) -> Fit:
    """The same without a number that is not clear."""
    numbers, predicted = start.copy(), seconds_of(start)
    for _ in range(ROUNDS):
        effects = _effects(parameters, numbers, predicted, seconds_of) / measured[:, np.newaxis]
        chosen, left = _told_apart(parameters, numbers, effects, unclear)
        goal = numbers.copy()
        for each, why in left.items():
            if parameters[each].cost and why != UNSEEN:
                goal[each] = 0.0
        error = predicted / measured - 1
        weights = trust * _weights(error)
        rest = goal.copy()
        rest[chosen] = 0.0
        wanted = effects @ (numbers - rest) - error
        goal[chosen] = _solve(effects[:, chosen], wanted, weights, [parameters[each] for each in chosen])
        moved = _go(numbers, goal, seconds_of, measured, weights)
        if moved is None:
            break
        done = np.allclose(moved[0], numbers, rtol=1e-4, atol=0)
        numbers, predicted = moved
        if done:
            break
    effects = _effects(parameters, numbers, predicted, seconds_of) / measured[:, np.newaxis]
    chosen, left = _told_apart(parameters, numbers, effects, unclear)
    for each in chosen:
        if parameters[each].low == 0 and np.abs(effects[:, each]).max() * numbers[each] < NEGLIGIBLE:
            numbers[each] = 0.0
    error = predicted / measured - 1
    errors = _errors(effects, error, trust * _weights(error), numbers, chosen)
    return Fit(numbers, tuple(chosen), errors, left, float(trust @ np.abs(error) / trust.sum()))


def _is_clear(parameter: Parameter, number: float, error: float) -> bool:
    """A rate at the end of its range was pushed there by errors of other numbers; a share may be all."""
    return error <= UNCLEAR and (number != parameter.low or parameter.low == 0)


def _woken(
    found: Fit,
    parameters: Sequence[Parameter],
    seconds_of: Callable[[Floats], Floats],
    measured: Floats,
    trust: Floats,
    unclear: Sequence[int],
) -> Fit:
    """A better fit, if there is one in which a link binds that no cell showed because the fit began far from it."""
    for each, why in found.left.items():
        if why != UNSEEN or found.numbers[each] == 0 or parameters[each].cost:
            continue
        predicted, trial = seconds_of(found.numbers), found.numbers.copy()
        for _ in range(DOUBLINGS):
            trial[each] = min(2 * trial[each], parameters[each].high)
            if not np.allclose(seconds_of(trial), predicted, rtol=1e-3, atol=0):
                other = _fit(parameters, trial, seconds_of, measured, trust, unclear)
                if other.error < BETTER * found.error:
                    return other
                break
    return found


def _effects(
    parameters: Sequence[Parameter], numbers: Floats, predicted: Floats, seconds_of: Callable[[Floats], Floats]
) -> Floats:
    """Seconds of each cell by each number: derivatives, shape ``(cells, numbers)``."""
    effects = np.empty((len(predicted), len(parameters)))
    for number, each in enumerate(parameters):
        step = _step(each, numbers[number])
        if numbers[number] + step > each.high:
            step = -step
        moved = numbers.copy()
        moved[number] += step
        effects[:, number] = (seconds_of(moved) - predicted) / step
    return effects


def _step(parameter: Parameter, number: float) -> float:
    return max(parameter.step, 1e-4 * number)


def _told_apart(
    parameters: Sequence[Parameter], numbers: Floats, effects: Floats, unclear: Sequence[int]
) -> tuple[list[int], dict[int, str]]:
    """Numbers that the cells can tell; and for the others why not.

    Each in turn is compared with what those before it can imitate.
    """
    chosen: list[int] = []
    left: dict[int, str] = {}
    basis = np.empty((len(effects), 0))
    for number, each in enumerate(parameters):
        if number in unclear:
            left[number] = "no more than what noise makes"
            continue
        column = effects[:, number]
        length = float(np.linalg.norm(column))
        if np.abs(column).max() * _step(each, numbers[number]) < VISIBLE:
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
    low, high = np.array([(each.low, each.high) for each in parameters]).T
    scaled = effects * root[:, np.newaxis] * scale
    answer = lsq_linear(scaled, wanted * root, (low / scale, high / scale), method="bvls")
    return np.asarray(np.clip(answer.x * scale, low, high))


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


def _errors(
    effects: Floats, error: Floats, weights: Floats, numbers: Floats, chosen: Sequence[int]
) -> dict[int, float]:
    """Relative standard errors, as if the scatter of the cells were independent."""
    active = [each for each in chosen if numbers[each] > 0]
    result = dict.fromkeys(chosen, np.inf)
    if not active:
        return result
    part = effects[:, active] * numbers[active]
    spread = max(float(weights @ error**2) / max(float(weights.sum()) - len(active), 1.0), LEAST_SCATTER**2)
    covariance = np.linalg.pinv(part.T @ (part * weights[:, np.newaxis])) * spread
    return {**result, **{each: float(np.sqrt(max(covariance[i, i], 0.0))) for i, each in enumerate(active)}}
