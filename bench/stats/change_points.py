"""Change points in histories: which steps of a series are real, since when, how large, and how sure.

The same points give the same answer; nothing is drawn at random. A series is judged again after
every new point, so significance allows for all splits of a series and for all those looks, and for
all series that are judged together. ``docs/history.md`` tells how the constants were found.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import UsageError
from bench.stats.drift import is_drift, line_through
from bench.stats.findings import ChangePoint, Drift, Findings
from bench.stats.segmentation import LEAST_INNER, LEAST_LAST, RESOLUTION, bound_outliers, candidate_splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEAST_POINTS = 12
"""Points before which a series is not judged: nine to know the noise by, and three new ones."""
CONFIRM_POINTS = 10
"""Points on both sides from which on a change is confirmed: no few bad runs in a row can be it, and its effect is
known to half a standard deviation of the points."""
MULTIPLICITY = 18.0
"""A p-value of one split, times the square of its normal deviate, times this: the p-value of all splits and looks.

The chance that the largest of many related deviates passes z grows as z squared times the chance of one (Siegmund,
Sequential Analysis, 1985). The factor is simulated: with 18, 23 of 8,000 steady series (0.29 %, 95 % interval 0.18
to 0.43 %) alarm between the 20th and the 60th point; the rest allows for the error of that figure. Of 3,000 longer
ones 10 alarm first between the 80th and the 120th: the old splits of a long series were looked at before."""
COMMON_DEGREES = 16.0
"""Weight, in points, of the whole series in the variance of the two levels that are compared."""
PRIOR_DEGREES = 8.0
"""Weight, in points, of the common variance in that of either level: few points tell little about noise."""
LOCATION_RISE = 5.94
"""Rise of the squared error, in variances, within which the true first point lies in 90 % of cases: the limit law of
the likelihood ratio, (1 - exp(-x / 2)) squared (Yao, Annals of Statistics 15, 1987)."""
NEAR = 1
"""Points by which a place may miss and still serve: a commit more to look at."""
EXACT = 0.1
"""How much more an exact place is worth than one that is near. Without it, a clear step would be placed as
well a point beside its own; with 1, hardly more places are near than those of maximum likelihood."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise."""


@dataclass(frozen=True)
class Settings:
    """What counts as a change.

    Attributes:
        significance: chance that a family of series without any change ever shows one, over 40 new points.
        minimum_effect: least relative change of the level that is worth telling.
        confirm_points: points on both sides that confirm a change.
    """

    significance: float = 0.005
    minimum_effect: float = 0.01
    confirm_points: int = CONFIRM_POINTS

    def __post_init__(self) -> None:
        if not 0 < self.significance < 1:
            raise UsageError(f"a significance lies between 0 and 1, not at {self.significance:g}")
        if not 0 <= self.minimum_effect < math.inf:
            raise UsageError(f"a least effect is 0 or more, 0.01 for 1 %, not {self.minimum_effect:g}")
        if self.confirm_points < LEAST_LAST:
            raise UsageError(f"confirming takes at least {LEAST_LAST} points, not {self.confirm_points}")


def find_changes(
    series: Sequence[Sequence[float] | Array],
    errors: Sequence[Sequence[float] | Array] | None = None,
    settings: Settings | None = None,
    *,
    together: bool = True,
) -> list[Findings]:
    """The changes of each series.

    Args:
        series: values in the order of time; NaN where nothing was measured, which is left out and never filled in.
        errors: standard error of each value, in its unit; NaN where unknown. A value that is known much worse than
            the others of its series counts less.
        settings: what counts as a change.
        together: correct for the number of series (Benjamini-Hochberg); else each is judged as if it were alone.

    Returns:
        findings, one a series.
    """
    settings = settings or Settings()
    prepared = _prepare(series, errors)
    family = len(prepared) if together else 1
    level = settings.significance
    kept = [_eliminate(one, one.splits, level, settings) for one in prepared]
    # Benjamini-Hochberg, step up: the level at which as many series show a change as it allows for.
    while family > 1:
        showing = sum(bool(splits or one.drifts) for one, splits in zip(prepared, kept, strict=True))
        fitting = settings.significance * max(showing, 1) / family
        if fitting >= level:
            break
        level = fitting
        kept = [
            _eliminate(one, splits, level, settings) if splits or one.drifts else splits
            for one, splits in zip(prepared, kept, strict=True)
        ]
    return [_findings(one, splits, settings) for one, splits in zip(prepared, kept, strict=True)]


class _Series:
    """One series on the scale that it is judged on: logarithms where all values are positive."""

    def __init__(self, values: Array, errors: Array | None) -> None:
        self.places = np.flatnonzero(np.isfinite(values))
        present = values[self.places]
        self.logarithmic = bool(present.size) and bool((present > 0).all())
        self.unit = 1.0
        if not self.logarithmic:
            # Steps of a series that touches zero are measured against its typical size.
            sizes = np.abs(present) if present.size else np.ones(1)
            self.unit = float(np.median(sizes)) or float(sizes.max()) or 1.0
        self.raw: Array = np.log(present) if self.logarithmic else present / self.unit
        scale = present if self.logarithmic else np.full(present.size, self.unit)
        self.errors: Array | None = None if errors is None else np.abs(errors[self.places] / scale)
        self.values: Array = self.raw
        self.weights: Array = np.ones(present.size)
        self.splits: list[int] = []
        self.slopes: set[int] = set()
        self.drifts: list[Drift] = []

    @property
    def points(self) -> int:
        return len(self.raw)

    def level(self, value: float) -> float:
        """A level in the unit of the series."""
        return math.exp(value) if self.logarithmic else value * self.unit

    def effect(self, before: float, difference: float) -> float:
        """The relative change that a difference of levels is."""
        if self.logarithmic:
            return math.expm1(difference)
        return difference / abs(before) if before else math.copysign(math.inf, difference)


def _prepare(
    series: Sequence[Sequence[float] | Array], errors: Sequence[Sequence[float] | Array] | None
) -> list[_Series]:
    """All series with outliers bounded, weights set and candidates found; those of one length at once."""
    made = [
        _Series(np.asarray(values, dtype=float), None if errors is None else np.asarray(errors[number], dtype=float))
        for number, values in enumerate(series)
    ]
    by_length: dict[int, list[_Series]] = {}
    for one in made:
        by_length.setdefault(one.points, []).append(one)
    for points, alike in by_length.items():
        if points < LEAST_POINTS:
            continue
        values, scale = bound_outliers(np.stack([one.raw for one in alike]))
        weights = np.stack([_weights(one, float(width)) for one, width in zip(alike, scale, strict=True)])
        splits = candidate_splits(values, weights, scale)
        for number, one in enumerate(alike):
            one.values, one.weights, one.splits = values[number], weights[number], splits[number]
    return made


def _weights(one: _Series, scale: float) -> Array:
    """One for a point as well known as most; less for one whose own error adds to the scatter of the series.

    Points that seem better known than most get no more: what varies from run to run is not in their error.
    """
    if one.errors is None:
        return np.ones(one.points)
    known = np.where(np.isfinite(one.errors), one.errors, 0.0)
    usual = float(np.median(known[known > 0])) if (known > 0).any() else 0.0
    weights: Array = 1.0 / (1.0 + np.maximum(known**2 - usual**2, 0.0) / scale**2)
    return weights


@dataclass(frozen=True)
class _Test:
    """A split of one stretch: medians of both sides on the judged scale, and how sure it is that they differ."""

    before: float
    after: float
    error: float
    p_value: float
    degrees: float
    is_drift: bool


def _tests(one: _Series, splits: list[int]) -> list[_Test]:
    """Compare the pieces on both sides of each split."""
    edges = [0, *splits, one.points]
    x, w = one.values, one.weights
    residual = x.copy()
    levels, weights, squares = [], [], []
    for begin, end in itertools.pairwise(edges):
        weight = float(w[begin:end].sum())
        level = float(w[begin:end] @ x[begin:end]) / weight
        residual[begin:end] -= level
        levels.append(level)
        weights.append(weight)
        squares.append(float(w[begin:end] @ residual[begin:end] ** 2))
    everywhere = sum(squares) / (one.points - len(levels))
    rising = [after > before for before, after in itertools.pairwise(levels)]
    # Steps that all go one way may together be a slope; of k steps, k levels more and k places.
    sloping = len(set(rising)) == 1 and is_drift(x, w, residual, 2 * len(splits) - 1)
    found = []
    for number in range(len(splits)):
        begin, split, end = edges[number : number + 3]
        here = squares[number] + squares[number + 1]
        degrees = end - begin - 2
        # The quietest of many stretches is quiet by chance, so the rest of the series has a say.
        pooled = (here + COMMON_DEGREES * everywhere) / (degrees + COMMON_DEGREES)
        common = max(here / degrees, pooled, RESOLUTION**2)
        one_by_one = [
            (PRIOR_DEGREES * common + squares[side]) / (PRIOR_DEGREES + count - 1) / weights[side]
            for side, count in ((number, split - begin), (number + 1, end - split))
        ]
        variance = max(common / weights[number] + common / weights[number + 1], sum(one_by_one))
        error = math.sqrt(variance * _inflation(residual[begin:end]))
        difference = levels[number + 1] - levels[number]
        p_value = _p_value(abs(difference) / error, degrees)
        drifts = sloping or is_drift(x[begin:end], w[begin:end], residual[begin:end])
        # The first points of a large step are bounded as outliers are, so sizes are told by medians of all points.
        before, after = float(np.median(one.raw[begin:split])), float(np.median(one.raw[split:end]))
        found.append(_Test(before, after, error, p_value, degrees, drifts))
    return found


def _inflation(residual: Array) -> float:
    """How much larger the variance of a mean is when neighbours are alike: (1 + r) / (1 - r), r less its own error."""
    square = float(residual @ residual)
    if square <= 0:
        return 1.0
    alike = float(residual[1:] @ residual[:-1]) / square - 1 / math.sqrt(len(residual))
    alike = min(max(alike, 0.0), 0.9)
    return (1 + alike) / (1 - alike)


def _p_value(deviate: float, degrees: float) -> float:
    from scipy.special import ndtri, stdtr

    single = 2.0 * float(stdtr(degrees, -deviate))
    if single <= 0:
        return 0.0
    z = float(ndtri(single / 2))
    return min(1.0, MULTIPLICITY * max(1.0, z * z) * single)


def _eliminate(one: _Series, splits: list[int], level: float, settings: Settings) -> list[int]:
    """Drop the weakest split, move its neighbours to their best places, and again until all that remain hold.

    Of k splits each may be k times as doubtful as one alone: so few of those that are shown are false (Benjamini and
    Hochberg), and a series without any change shows none as rarely as before.
    """
    kept = list(splits)
    while kept:
        tests = _tests(one, kept)
        allowed = level * len(kept)
        weak = [
            (test.p_value, number)
            for number, test in enumerate(tests)
            if test.p_value > allowed
            or test.is_drift
            or abs(one.effect(test.before, test.after - test.before)) < settings.minimum_effect
        ]
        if not weak:
            moved = _relocate(one, kept)
            if moved == kept:
                break
            kept = moved
            continue
        number = max(weak)[1]
        if tests[number].is_drift and tests[number].p_value <= level:
            one.slopes.add(kept[number])
        del kept[number]
        kept = _relocate(one, kept)
    one.drifts = _drifts(one, kept, level, settings)
    return kept


def _drifts(one: _Series, splits: list[int], level: float, settings: Settings) -> list[Drift]:
    """The pieces that took the place of a step which was none, where their slope is as sure as a step has to be."""
    found = []
    for begin, end in itertools.pairwise([0, *splits, one.points]):
        if any(begin < split < end for split in one.slopes):
            drift = _drift(one, begin, end, settings)
            if drift.p_value <= level and abs(drift.effect) >= settings.minimum_effect:
                found.append(drift)
    return found


def _drift(one: _Series, begin: int, end: int, settings: Settings) -> Drift:
    from scipy.special import stdtrit

    w = one.weights[begin:end]
    line = line_through(one.values[begin:end], w)
    degrees = end - begin - 2
    variance = max(float(w @ line.residual**2) / degrees, RESOLUTION**2) * _inflation(line.residual)
    error = math.sqrt(variance * line.leverage)
    difference = line.end - line.begin
    reach = float(stdtrit(degrees, 0.975)) * error
    return Drift(
        first=int(one.places[begin]),
        last=int(one.places[end - 1]),
        before=one.level(line.begin),
        after=one.level(line.end),
        effect=one.effect(line.begin, difference),
        interval=(one.effect(line.begin, difference - reach), one.effect(line.begin, difference + reach)),
        p_value=_p_value(abs(difference) / error, degrees),
        points=end - begin,
        status="confirmed" if end - begin >= 2 * settings.confirm_points else "suspected",
    )


def _relocate(one: _Series, splits: list[int]) -> list[int]:
    """Each split at the place between its neighbours where the squared error is least."""
    moved = list(splits)
    for number in range(len(moved)):
        begin = moved[number - 1] if number else 0
        end = moved[number + 1] if number + 1 < len(moved) else one.points
        errors, first = _split_errors(one, begin, end)
        moved[number] = first + int(errors.argmin())
    return moved


def _split_errors(one: _Series, begin: int, end: int) -> tuple[Array, int]:
    """Squared error for each place of one split between two edges, and the first such place."""
    x, w = one.values[begin:end], one.weights[begin:end]
    last = LEAST_LAST if end == one.points else LEAST_INNER
    places = slice(LEAST_INNER - 1, len(x) - last)
    x = x - x.mean()
    weight, level = np.cumsum(w), np.cumsum(w * x)
    total_w, total_x = weight[-1], level[-1]
    weight, level = weight[places], level[places]
    explained = level**2 / weight + (total_x - level) ** 2 / (total_w - weight)
    return float(w @ (x * x)) - explained, begin + LEAST_INNER


def _findings(one: _Series, splits: list[int], settings: Settings) -> Findings:
    if one.points < LEAST_POINTS:
        return Findings(judged=False)
    edges = [0, *splits, one.points]
    tests = _tests(one, splits)
    places: list[tuple[int, int, int]] = []
    for number, test in enumerate(tests):
        # From the step before on, where that was placed, so that no two of them can cross.
        places.append(_likeliest(one, places[-1][0] if places else 0, edges[number + 2], test))
    placed = [0, *(place for place, _, _ in places), one.points]
    changes = [
        _change(one, test, placed[number : number + 3], places[number], settings) for number, test in enumerate(tests)
    ]
    return Findings(tuple(changes), tuple(one.drifts))


def _likeliest(one: _Series, begin: int, end: int, test: _Test) -> tuple[int, int, int]:
    """Where a step of the points between two edges began: the place, and the first and the last likely one.

    The place is the one that most probably is at most ``NEAR`` points off, an exact hit counting ``EXACT`` more, given
    the points and that every place was as likely before. The likeliest one, where the squared error is least, is as
    near less often.
    """
    errors, first = _split_errors(one, begin, end)
    errors = np.maximum(errors, 0.0)
    rise = (errors - errors.min()) / max(float(errors.min()) / test.degrees, RESOLUTION**2)
    chances = np.exp(-rise / 2)
    # Not in mode "same", which gives as many as the window has where there are fewer places.
    near = np.convolve(chances, np.ones(2 * NEAR + 1))[NEAR:][: len(chances)]
    place = first + int((near + EXACT * chances).argmax())
    likely = first + np.flatnonzero(rise <= LOCATION_RISE)
    return place, min(place, int(likely[0])), max(place, int(likely[-1]))


def _change(
    one: _Series, test: _Test, edges: Sequence[int], place: tuple[int, int, int], settings: Settings
) -> ChangePoint:
    from scipy.special import stdtrit

    begin, split, end = edges
    before, after = float(np.median(one.raw[begin:split])), float(np.median(one.raw[split:end]))
    difference = after - before
    reach = MEDIAN_ERROR * float(stdtrit(test.degrees, 0.975)) * test.error
    return ChangePoint(
        index=int(one.places[place[0]]),
        earliest=int(one.places[place[1]]),
        latest=int(one.places[place[2]]),
        before=one.level(before),
        after=one.level(after),
        effect=one.effect(before, difference),
        interval=(one.effect(before, difference - reach), one.effect(before, difference + reach)),
        p_value=test.p_value,
        points_before=split - begin,
        points_after=end - split,
        status="confirmed" if min(split - begin, end - split) >= settings.confirm_points else "suspected",
    )
