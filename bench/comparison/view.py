"""What of a comparison is shown, and how its numbers are written; the same for terminal and page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bench.comparison.contract import parted
from bench.definitions import format_bytes
from bench.report.formatting import number, percent, unit_sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.comparison.outcome import Outcome
    from bench.comparison.processes import Record
    from bench.comparison.speedup import Speedup
    from bench.store.row import Row
    from bench.suite import Agreement, Value

TAILS = (0.05, 0.95)
NONE = "-"
"""Stands where there is no value."""


@dataclass(frozen=True)
class Column:
    """A metric in the table of sides.

    Attributes:
        heading: short. metric: its name. where: parameters of its rows, where it has several.
        share: written as a percentage. bare: without the unit, which the heading says.
    """

    heading: str
    metric: str
    where: Mapping[str, Value] = field(default_factory=dict)
    share: bool = False
    bare: bool = False


@dataclass(frozen=True)
class Matrix:
    """A metric with a value for each value of a parameter: bytes by kind of message, say.

    Attributes:
        title: of the table. metric, param: by what it is made. remark: what the numbers mean.
        least_one: columns in which all sides have zero are left out.
    """

    title: str
    metric: str
    param: str
    remark: str = ""
    least_one: bool = True


@dataclass(frozen=True)
class View:
    """What is shown of a comparison.

    Attributes:
        title: of the page. side: what a side is called, in the singular.
        columns: beside the time and the speedup. further: metrics in a table of their own.
        matrices: further tables.
        curves: series that are plotted, by name, with the title of their axis.
        parts: title of the breakdown of an iteration. residual: the part that nothing explains.
        remarks: how the numbers are to be read, a sentence each.
    """

    title: str = "Comparison"
    side: str = "side"
    columns: tuple[Column, ...] = ()
    further: tuple[Column, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    curves: Mapping[str, str] = field(default_factory=dict)
    parts: str = "Where an iteration's time goes"
    residual: str = "residual"
    remarks: tuple[str, ...] = ()


def find_row(outcome: Outcome, record: Record, metric: str, where: Mapping[str, Value] | None = None) -> Row | None:
    """The row of a side's metric with these parameters; the first one."""
    for row in outcome.rows_of(record):
        if row.metric == metric and all(row.params.get(name) == value for name, value in (where or {}).items()):
            return row
    return None


def cell(outcome: Outcome, record: Record, column: Column) -> str:
    """A side's value of a column; a dash where there is none."""
    row = find_row(outcome, record, column.metric, column.where)
    if row is None or row.value is None:
        return NONE
    if column.share:
        return percent(row.value)
    return number(row.value) if column.bare else value_text(row.value, row.unit)


def shown(outcome: Outcome, columns: Iterable[Column]) -> list[Column]:
    """The columns in which some side has a value."""
    return [column for column in columns if any(cell(outcome, one, column) != NONE for one in outcome.timed)]


def value_text(value: float, unit: str) -> str:
    """A value with its unit, in a size that reads well."""
    if unit == "s":
        return duration(value)
    if unit == "B":
        return format_bytes(round(value))
    return f"{number(value)} {unit_sign(unit)}".rstrip()


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    if seconds >= 1 or seconds == 0:
        return f"{number(seconds)} s"
    return f"{number(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{number(seconds * 1e6)} µs"


def duration_range(low: float, high: float) -> str:
    """Two durations, s, with the unit once where both have the same: ``31.2 to 48.0 ms``."""
    first, second = duration(low), duration(high)
    value, unit = first.rsplit(" ", 1)
    return f"{value if second.endswith(f' {unit}') else first} to {second}"


def times(outcome: Outcome, record: Record) -> tuple[float, float, float] | None:
    """The 5th percentile, the median and the 95th percentile of a side's iterations, s; None without any."""
    if record.ending:
        return None
    seconds = [sample for turn in outcome.seconds(record) for sample in turn]
    if not seconds:
        return None
    low, middle, high = np.quantile(seconds, (TAILS[0], 0.5, TAILS[1]))
    return float(low), float(middle), float(high)


def speedup_text(speedup: Speedup) -> str:
    """``1.32 x (1.28 to 1.36)``."""
    return f"{speedup.value:.2f} x ({interval_text(speedup)})"


def interval_text(speedup: Speedup) -> str:
    """``1.28 to 1.36``."""
    if not (speedup.low > 0 and np.isfinite(speedup.high)):
        return "too few turns"
    return f"{speedup.low:.2f} to {speedup.high:.2f}"


def matrix_values(outcome: Outcome, matrix: Matrix) -> tuple[list[str], dict[str, dict[str, Row]]]:
    """The columns of a matrix, and its rows by side and column; only sides that have some."""
    found: dict[str, dict[str, Row]] = {}
    for record in outcome.timed:
        cells = {
            str(row.params[matrix.param]): row
            for row in outcome.rows_of(record)
            if row.metric == matrix.metric and matrix.param in row.params and row.value is not None
        }
        if cells:
            found[record.label] = cells
    names = dict.fromkeys(name for cells in found.values() for name in cells)
    kept = [
        name
        for name in names
        if not matrix.least_one or any(cells[name].value for cells in found.values() if name in cells)
    ]
    return kept, found


def prediction_texts(outcome: Outcome, record: Record) -> tuple[str, str]:
    """A side's predicted time, and how far it is off the measured one: ``31.2 ms``, ``-7.4 %``."""
    if record.forecast is None or record.forecast.reason:
        return NONE, NONE
    error = outcome.prediction_error(record)
    return duration(record.forecast.total), NONE if error is None else f"{100 * error:+.1f} %"


def predicted_parts(outcome: Outcome) -> tuple[list[str], dict[str, dict[str, float]]]:
    """The parts of predicted iterations, and by side what each takes; empty where there are none."""
    sizes = {
        record.label: dict(record.forecast.seconds)
        for record in outcome.timed
        if record.forecast is not None and not record.forecast.reason
    }
    return list(dict.fromkeys(name for found in sizes.values() for name in found)), sizes


def prediction_lines(outcome: Outcome) -> list[str]:
    """From which profile sides were predicted and how, or why they were not, a sentence each."""
    known = {record.label: record.forecast for record in outcome.timed if record.forecast is not None}
    profiles = dict.fromkeys(one.profile for one in known.values() if not one.reason)
    lines = [f"predicted from the profile of {profile}, before the first iteration" for profile in profiles]
    lines += dict.fromkeys(line for one in known.values() for line in one.basis)
    lines += [f"{label} is not predicted: {one.reason}" for label, one in known.items() if one.reason]
    return lines


def headline(outcome: Outcome) -> str:
    """What a comparison found, in a sentence or two."""
    speeds = {record.label: outcome.speedup(record) for record in outcome.timed}
    known = {label: speedup for label, speedup in speeds.items() if speedup is not None}
    lost = [record for record in outcome.records if record.ending]
    parts = []
    if outcome.interrupted:
        parts.append("ended early; what was measured is kept")
    if outcome.reference.ending:
        parts.append(f"the reference {outcome.reference.label} has no speed, so there are no speedups")
    if known:
        label, best = max(known.items(), key=lambda item: item[1].value)
        if best.low > 1:
            parts.append(f"{label} is the fastest: {speedup_text(best)} over {outcome.reference.label}")
        elif best.value <= 1 and best.high < 1:
            parts.append(f"{outcome.reference.label} is the fastest; next is {label}: {speedup_text(best)}")
        else:
            parts.append(
                f"none is clearly faster than {outcome.reference.label}; {label} comes to {speedup_text(best)}"
            )
    if lost:
        unfair = [record.label for record in lost if record.ending and not record.ending.fair]
        broken = [record.label for record in lost if record.ending and record.ending.fair]
        if unfair:
            parts.append(f"not compared, since it does not do the same: {', '.join(unfair)}")
        if broken:
            parts.append(f"no number of: {', '.join(broken)}")
    return "; ".join(parts) or "one side alone: nothing to compare it with"


def contract_lines(outcome: Outcome) -> list[str]:
    """What was held against what and how closely, a sentence each."""
    right = outcome.right
    if right is None:
        return []
    lines = [f"conditions and series are held against {right.label}"]
    if right.label != outcome.request.right:
        lines[0] += f", since {outcome.request.right} has none"
    if outcome.reference is not right and not outcome.reference.ending:
        lines[0] += f", and against {outcome.reference.label} by the same rules"
    allowed: dict[Agreement, list[str]] = {}
    for record in outcome.records:
        if record is not right:
            for agreement in outcome.suite.agreements(record.side.case, right.side.case):
                allowed.setdefault(agreement, []).append(record.label)
    for agreement, labels in allowed.items():
        how = f"within {agreement.tolerance:.3g} of its value" if agreement.tolerance else "to the last bit"
        first = f" in the first {agreement.first} iterations" if agreement.first else ""
        if parting := agreement.parting:
            first += (
                f", or within {parting.tolerance:.3g} once {parting.of} part by rounding (not before iteration"
                f" {parting.after + 1}, and {parting.share:.2%} of them at most)"
            )
        lines.append(f"{agreement.series.replace('_', ' ')} of {', '.join(labels)}: must agree {how}{first}")
    return lines + _partings(outcome, right)


def _partings(outcome: Outcome, right: Record) -> list[str]:
    """Where the sides' choices part."""
    lines = []
    for record in outcome.records:
        where = parted(record.course.choices, right.course.choices)
        agreements = outcome.suite.agreements(record.side.case, right.side.case) if where and not record.ending else ()
        for of in dict.fromkeys(agreement.parting.of for agreement in agreements if agreement.parting):
            assert where is not None
            lines.append(
                f"{of} of {record.label} part from those of {right.label} in iteration {where.iteration + 1}:"
                f" {where.share:.2g} of them"
            )
    return lines


def parts_of(outcome: Outcome, residual: str) -> tuple[list[str], dict[str, dict[str, float]]]:
    """The parts of an iteration, the residual last, and by side what each takes; empty where there are none."""
    if outcome.suite.parts is None:
        return [], {}
    metric, param = outcome.suite.parts
    names, rows = matrix_values(outcome, Matrix("", metric, param))
    names.sort(key=lambda name: name == residual)
    sizes = {
        label: {name: float(cells[name].value or 0.0) for name in names if name in cells}
        for label, cells in rows.items()
    }
    return names, sizes
