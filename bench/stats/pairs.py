"""Comparison of two sets of samples, many pairs at once: by how much they differ, and whether by chance.

What is compared are *units* that are independent of each other. In which way, follows from how the
samples were taken, never from their values:

- ``paired``: blocks of both sides were measured by turns. Block i of one is compared with block i
  of the other where the two share what the machine did meanwhile; then drift cancels out.
- ``units``: each side has at least ``LEAST_BLOCKS`` independent blocks (rounds, runs, or single
  samples of a process each). A block of several samples counts as one unit, its median.
- ``serial``: fewer blocks, mostly one. Samples that follow each other are worth fewer independent
  ones (``bench.stats.serial``), and nothing in them tells what another process would have given.

Values that are all positive are compared on their logarithms: a shift is a ratio. Others are compared
as they are, relative to the size of the baseline's median.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.errors import UsageError
from bench.stats.rank_tests import least_p_value, mann_whitney, signed_rank
from bench.stats.serial import inflation
from bench.stats.shifts import one_sample_shift, two_sample_shift

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from bench.store.row import Row

    Array = NDArray[np.float64]

Way = Literal["paired", "units", "serial"]

LEAST_BLOCKS = 4
"""Of fewer blocks a side, no rank test of the blocks can show a difference; their samples have to."""
LEAST_PAIRS = 8
"""Of fewer pairs, signed ranks show less than the two sides as such."""
SHARED_RATIO = 2.0
"""Pairs are used if their sums vary so much more than their differences: that is what both sides share."""
CONFIDENCE = 0.95
"""Of every interval."""


@dataclass(frozen=True)
class Samples:
    """Samples of one side, in the order that they were taken.

    Attributes:
        values: shape ``(n,)``, in ``unit``.
        blocks: how many of them each independent block (round, run) has; empty for a single block.
        unit: as in rows.

    Raises:
        UsageError: the blocks do not add up to the samples.
    """

    values: NDArray[np.float64]
    blocks: tuple[int, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float64)
        if values.ndim != 1:
            raise UsageError(f"samples are a list of numbers, not an array of shape {values.shape}")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if self.blocks and (min(self.blocks) < 1 or sum(self.blocks) != values.size):
            raise UsageError(f"blocks of {sum(self.blocks)} samples in all, but there are {values.size}")

    @classmethod
    def from_blocks(cls, blocks: Iterable[Sequence[float]], unit: str = "") -> Samples:
        """Samples of several independent blocks, for example of one run each; empty ones are left out."""
        kept = [np.asarray(block, dtype=np.float64) for block in blocks if len(block)]
        values = np.concatenate(kept) if kept else np.empty(0)
        return cls(values, tuple(len(block) for block in kept), unit)

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Samples:
        """The samples of a metric of one case from a row, or from the rows of several runs in their order.

        Raises:
            UsageError: the rows are not in one unit.
        """
        units = sorted({row.unit for row in rows})
        if len(units) != 1:
            raise UsageError(f"samples in {', '.join(units) or 'no unit'} are no one series; take rows of one unit")
        sizes = [size for row in rows if row.samples for size in (row.rounds or [len(row.samples)])]
        return cls(np.array([sample for row in rows for sample in row.samples]), tuple(sizes), units[0])

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Sizes of the independent blocks, one of them if nothing else is known; empty without samples."""
        return self.blocks or ((self.values.size,) if self.values.size else ())

    def block_medians(self) -> NDArray[np.float64]:
        """The median of each block, shape ``(blocks,)``."""
        if len(self.block_sizes) == self.values.size:
            return self.values
        return np.array([np.median(block) for block in np.split(self.values, np.cumsum(self.block_sizes)[:-1])])


@dataclass(frozen=True)
class Pair:
    """A case's two sides.

    Attributes:
        name: names the case in messages, and nothing else.
        baseline, candidate: the samples.
        interleaved: block i of the one was measured next to block i of the other.
    """

    name: str
    baseline: Samples
    candidate: Samples
    interleaved: bool = False


@dataclass(frozen=True)
class Comparison:
    """What the samples of a pair say, before any policy.

    Attributes:
        way: how they were compared; None where they cannot be, and ``problem`` says why.
        problem: ``no_samples``, ``not_finite``, ``units_differ`` or ``zero_baseline``, or empty.
        shift: from baseline to candidate: of logarithms, or relative where ``is_ratio`` is False.
        low, high: interval of the shift, infinite where there are too few samples.
        error: standard error of the shift; infinite where unknown.
        p_value: two-sided, of the rank test.
        normal_p_value: of Welch's (or the paired) t-test of the units; 1 for serial samples.
        least_p_value: the least that the rank test could give for so many units.
        units: independent units of the smaller side; samples where ``way`` is serial.
        samples_a_unit: median number of samples in a unit.
        correlation: between samples that follow each other, where ``way`` is serial.
        baseline_median, candidate_median: medians of the units, in the samples' unit.
    """

    way: Way | None
    problem: str = ""
    shift: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    error: float = math.inf
    p_value: float = 1.0
    normal_p_value: float = 1.0
    least_p_value: float = 1.0
    units: int = 0
    samples_a_unit: int = 1
    correlation: float = 0.0
    baseline_median: float = math.nan
    candidate_median: float = math.nan
    is_ratio: bool = True

    def relative(self, shift: float) -> float:
        """A shift as ``candidate / baseline - 1``."""
        if not self.is_ratio:
            return shift
        return math.expm1(shift) if shift < 700 else math.inf


@dataclass(frozen=True)
class _Prepared:
    """A pair as units of two sides, on the scale that they are compared on."""

    way: Way
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_blocks: tuple[int, ...]
    y_blocks: tuple[int, ...]
    is_ratio: bool
    samples_a_unit: int
    baseline_median: float
    candidate_median: float


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """Compare every pair; pairs of one shape go through numpy together, so that many cost little."""
    found: list[Comparison | None] = [None] * len(pairs)
    groups: dict[tuple[object, ...], list[tuple[int, _Prepared]]] = {}
    for index, pair in enumerate(pairs):
        prepared = _prepare(pair)
        if isinstance(prepared, Comparison):
            found[index] = prepared
            continue
        layout = (prepared.x_blocks, prepared.y_blocks) if prepared.way == "serial" else ()
        groups.setdefault((prepared.way, prepared.x.size, prepared.y.size, layout), []).append((index, prepared))
    for members in groups.values():
        _compare_group(members, found)
    return [comparison for comparison in found if comparison is not None]


def _prepare(pair: Pair) -> _Prepared | Comparison:
    """The pair's units, or why it cannot be compared."""
    one, other = pair.baseline, pair.candidate
    if one.unit != other.unit:
        return Comparison(None, "units_differ")
    if not (one.values.size and other.values.size):
        return Comparison(None, "no_samples")
    if not (np.isfinite(one.values).all() and np.isfinite(other.values).all()):
        return Comparison(None, "not_finite")
    x_blocks, y_blocks = one.block_sizes, other.block_sizes
    interleaved = pair.interleaved and len(x_blocks) == len(y_blocks)
    way: Way = "units" if min(len(x_blocks), len(y_blocks)) >= LEAST_BLOCKS else "serial"
    if way == "units" and interleaved and len(x_blocks) >= LEAST_PAIRS:
        way = "paired"
    medians = one.block_medians(), other.block_medians()
    x, y = (one.values, other.values) if way == "serial" else medians
    center, other_center = float(np.median(medians[0])), float(np.median(medians[1]))
    is_ratio = bool(min(one.values.min(), other.values.min()) > 0)
    if is_ratio:
        x, y = np.log(x), np.log(y)
    elif center == 0:
        same = bool((x == 0).all() and (y == 0).all())
        if not same:
            return Comparison(
                None, "zero_baseline", baseline_median=center, candidate_median=other_center, is_ratio=False
            )
    else:
        x, y = x / abs(center), y / abs(center)
    samples_a_unit = 1 if way == "serial" else int(np.median((*x_blocks, *y_blocks)))
    return _Prepared(way, x, y, x_blocks, y_blocks, is_ratio, samples_a_unit, center, other_center)


def _compare_group(members: Sequence[tuple[int, _Prepared]], found: list[Comparison | None]) -> None:
    """Compare prepared pairs of one way and shape, and put each at its index."""
    x = np.stack([prepared.x for _, prepared in members])
    y = np.stack([prepared.y for _, prepared in members])
    way = members[0][1].way
    if way == "paired":
        shares = _share_what_the_machine_did(x, y)
        for rows, compute in ((shares, _paired), (~shares, _of_units)):
            if rows.any():
                _keep(
                    [member for member, row in zip(members, rows, strict=True) if row], compute(x[rows], y[rows]), found
                )
        return
    if way == "units":
        _keep(members, _of_units(x, y), found)
        return
    _keep(members, _serial(x, y, members[0][1].x_blocks, members[0][1].y_blocks), found)


def _share_what_the_machine_did(x: Array, y: Array) -> NDArray[np.bool_]:
    """Whether pairs help. Swapping the sides of a pair changes nothing here, so the signed ranks stay exact."""
    sums, differences = x + y, y - x
    return np.asarray(sums.var(axis=1, ddof=1) >= SHARED_RATIO * (differences**2).mean(axis=1))


@dataclass(frozen=True)
class _Found:
    """Arrays of a group, each of shape ``(cases,)``, as in ``Comparison``."""

    way: Way
    units: int
    least_p_value: float
    shift: Array
    low: Array
    high: Array
    error: Array
    p_value: Array
    normal_p_value: Array
    correlation: Array


def _paired(x: Array, y: Array) -> _Found:
    differences = y - x
    n = differences.shape[1]
    error = differences.std(axis=1, ddof=1) / math.sqrt(n)
    normal = _t_test(differences.mean(axis=1), error, np.full(len(x), n - 1.0))
    return _Found(
        "paired",
        n,
        least_p_value(n, n, paired=True),
        *one_sample_shift(differences, CONFIDENCE),
        error=error,
        p_value=signed_rank(differences),
        normal_p_value=normal,
        correlation=np.zeros(len(x)),
    )


def _of_units(x: Array, y: Array) -> _Found:
    n_x, n_y = x.shape[1], y.shape[1]
    x_part, y_part = x.var(axis=1, ddof=1) / n_x, y.var(axis=1, ddof=1) / n_y
    variance = x_part + y_part
    # Welch and Satterthwaite's degrees of freedom; of no variance at all, those of equal ones.
    spread = x_part**2 / (n_x - 1) + y_part**2 / (n_y - 1)
    degrees = np.divide(variance**2, spread, out=np.full(len(x), n_x + n_y - 2.0), where=spread > 0)
    error = np.sqrt(variance)
    return _Found(
        "units",
        min(n_x, n_y),
        least_p_value(n_x, n_y),
        *two_sample_shift(x, y, CONFIDENCE, np.ones(len(x))),
        error=error,
        p_value=mann_whitney(x, y),
        normal_p_value=_t_test(y.mean(axis=1) - x.mean(axis=1), error, degrees),
        correlation=np.zeros(len(x)),
    )


def _serial(x: Array, y: Array, x_blocks: Sequence[int], y_blocks: Sequence[int]) -> _Found:
    from scipy.special import ndtri, stdtr, stdtrit

    n_x, n_y = x.shape[1], y.shape[1]
    found = inflation(x, y, x_blocks, y_blocks)
    widening = np.sqrt(found.of_shift(n_x, n_y))
    p_value = mann_whitney(x, y)
    dependent = widening > 1
    # The exact test's p-value as a normal deviate, which dependence shrinks; how well it is known limits its degrees.
    z = -ndtri(p_value[dependent] / 2) / widening[dependent]
    degrees = np.minimum(found.degrees[dependent], 1e6)
    p_value[dependent] = np.maximum(p_value[dependent], 2 * stdtr(degrees, -z))
    wider = np.ones(len(x))
    tail = (1 - CONFIDENCE) / 2
    wider[dependent] = widening[dependent] * stdtrit(degrees, tail) / float(ndtri(tail))
    shift, low, high = two_sample_shift(x, y, CONFIDENCE, wider)
    if min(n_x, n_y) > 1:
        error = np.sqrt(x.var(axis=1, ddof=1) / n_x * found.x + y.var(axis=1, ddof=1) / n_y * found.y)
    else:
        error = np.full(len(x), np.inf)
    ones = np.ones(len(x))
    return _Found(
        "serial", min(n_x, n_y), least_p_value(n_x, n_y), shift, low, high, error, p_value, ones, found.correlation
    )


def _t_test(shift: Array, error: Array, degrees: Array) -> Array:
    """Two-sided p-values; without any variance, 0 for a shift and 1 for none."""
    from scipy.special import stdtr

    # Equal units have a variance of rounding alone.
    error = np.where(error > 1e-14, error, 0.0)
    t = np.divide(np.abs(shift), error, out=np.where(shift == 0, 0.0, np.inf), where=error > 0)
    return np.asarray(2 * stdtr(degrees, -t))


def _keep(members: Sequence[tuple[int, _Prepared]], group: _Found, found: list[Comparison | None]) -> None:
    columns = zip(
        members,
        *(
            column.tolist()
            for column in (
                group.shift,
                group.low,
                group.high,
                group.error,
                group.p_value,
                group.normal_p_value,
                group.correlation,
            )
        ),
        strict=True,
    )
    for (index, prepared), shift, low, high, error, p_value, normal_p_value, correlation in columns:
        found[index] = Comparison(
            group.way,
            "",
            shift,
            low,
            high,
            error,
            p_value,
            normal_p_value,
            group.least_p_value,
            group.units,
            prepared.samples_a_unit,
            correlation,
            prepared.baseline_median,
            prepared.candidate_median,
            prepared.is_ratio,
        )
