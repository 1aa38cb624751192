"""What is drawn against what: a few declared rules by suite, and inference from the rows for every other suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.report.cases import varying_names
from bench.report.formatting import is_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report.cases import CaseResult, SuiteResults

Kind = Literal["curves", "heat", "bars"]

MAX_SERIES = 8
"""Series that one plot holds before a parameter moves to plots of its own."""
MIN_AXIS_VALUES = 3
"""Values that a numeric parameter needs to be an axis, and either side of a heat map."""
LOG_AXIS_RATIO = 8
"""A positive axis whose last value is this many times its first is drawn in logarithms."""
PLACE = ("scope", "lab", "device")
"""Parameters that never share a plot, so that an emulated number is not read as hardware's."""
TIME_UNITS = ("ns", "us", "s")


@dataclass(frozen=True)
class Rule:
    """How a suite's results are drawn, where the inference from rows would do worse.

    Attributes:
        x: axis of the curves, or categories of the bars; empty, or the same in all cases: inferred.
        panels: parameters that get a plot for each value.
        series: the parameters to tell apart within a plot, the most important first.
        heat_x, heat_y: axes of a heat map; empty: none.
        metrics: the most telling first, which is the one shown at first; the others follow.
    """

    x: str = ""
    panels: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    heat_x: str = ""
    heat_y: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


RULES: dict[str, Rule] = {
    "collectives": Rule("bytes", ("op",), ("algorithm", "ranks", "dtype"), metrics=("busbw", "latency")),
    "alltoall": Rule("bytes", (), ("algorithm", "traffic", "ranks"), metrics=("busbw", "speedup_over_flat", "latency")),
    "allgather_latency": Rule("bytes", (), ("algorithm", "ranks"), metrics=("latency",)),
    "attention": Rule(
        "sequence", ("direction", "dtype"), ("model", "heads"), heat_x="sequence", heat_y=("model", "heads")
    ),
    "expert_gemm": Rule(
        "tokens",
        ("model", "experts", "direction", "dtype"),
        ("method", "distribution"),
        heat_x="tokens",
        heat_y=("distribution", "method"),
    ),
    "matmul_peak": Rule("size", (), ("dtype", "shape")),
    "memory": Rule("kernel", (), ("threads",)),
}


@dataclass(frozen=True)
class View:
    """One family of plots of a suite.

    Attributes:
        kind: curves over a numeric axis, heat maps, or bars over categories.
        x: parameter along the axis; y: parameters down a heat map, else empty.
        log_x: whether the axis is drawn in logarithms to base 2.
        panels: parameters that get a plot for each combination of values.
        series: parameters told apart within a plot.
    """

    kind: Kind
    x: str
    y: tuple[str, ...] = ()
    log_x: bool = False
    panels: tuple[str, ...] = ()
    series: tuple[str, ...] = ()


def metric_order(suite: SuiteResults) -> list[str]:
    """The suite's metrics, the most telling first."""
    first = RULES.get(suite.name, Rule()).metrics
    names = [metric.name for metric in suite.metrics]
    return [name for name in first if name in names] + [name for name in names if name not in first]


def suite_order(suites: Sequence[SuiteResults]) -> list[SuiteResults]:
    """The suites with rules in the order of the rules, then all others by name."""
    known = list(RULES)
    return sorted(
        suites, key=lambda suite: (known.index(suite.name) if suite.name in RULES else len(known), suite.name)
    )


def views(suite: SuiteResults) -> list[View]:
    """What to draw of the suite's measured cases; nothing where no metric has two values."""
    measured = [case for case in suite.cases if case.measured]
    points = Counter(row.metric for case in measured for row in case.measured)
    rule = RULES.get(suite.name, Rule())
    varying = telling(suite.name, measured)
    if not varying or max(points.values()) < 2:
        return []
    values = {name: _values(measured, name) for name in varying}
    found = []
    if rule.heat_x in varying and any(name in varying for name in rule.heat_y):
        y = tuple(name for name in rule.heat_y if name in varying)
        found.append(View("heat", rule.heat_x, y, panels=tuple(n for n in varying if n not in (rule.heat_x, *y))))
    axis = rule.x if rule.x in varying and _is_numeric(values[rule.x]) else _numeric_axis(values)
    if axis:
        panels, series = _split(rule, measured, varying, axis)
        if suite.name not in RULES:
            found += _inferred_heat(values, axis)
        found.append(View("curves", axis, (), _is_log(values[axis]), panels, series))
        return found
    if found:
        return found
    categories = [name for name in varying if name not in PLACE] or varying
    axis = rule.x if rule.x in categories else max(categories, key=lambda name: len(values[name]))
    panels, series = _split(rule, measured, varying, axis)
    return _inferred_heat(values, axis) or [View("bars", axis, (), False, panels, series)]


def telling(suite: str, cases: Sequence[CaseResult]) -> list[str]:
    """Parameters that vary, without those that follow from the ones before them (m, n, k from size and shape)."""
    rule = RULES.get(suite, Rule())
    kept: list[str] = []
    for name in varying_names(cases):
        named = name in (rule.x, rule.heat_x, *rule.panels, *rule.series, *rule.heat_y, *PLACE)
        if named or _combinations(cases, [*kept, name]) > _combinations(cases, kept):
            kept.append(name)
    return kept


def _values(cases: Sequence[CaseResult], name: str) -> list[object]:
    """Distinct values of a parameter; None stands for its absence."""
    return list({(type(value), value): value for case in cases for value in [case.params.get(name)]}.values())


def _numeric_axis(values: dict[str, list[object]]) -> str:
    """The numeric parameter with the most values, sizes first on a tie; empty if none has enough."""
    numeric = [name for name, found in values.items() if _is_numeric(found) and len(found) >= MIN_AXIS_VALUES]
    return max(numeric, key=lambda name: (len(values[name]), is_size(name)), default="")


def _is_numeric(values: Sequence[object]) -> bool:
    """True if all are numbers; cases without the parameter do not count against it."""
    present = [value for value in values if value is not None]
    return len(present) > 1 and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in present
    )


def _is_log(values: Sequence[object]) -> bool:
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    return min(numbers) > 0 and max(numbers) >= LOG_AXIS_RATIO * min(numbers)


def _inferred_heat(values: dict[str, list[object]], axis: str) -> list[View]:
    """A heat map where exactly two parameters vary, beside the place, and both have enough values."""
    rest = [name for name in values if name != axis and name not in PLACE]
    if len(rest) != 1 or min(len(values[rest[0]]), len(values[axis])) < MIN_AXIS_VALUES:
        return []
    panels = tuple(name for name in values if name in PLACE and name != axis)
    return [View("heat", axis, (rest[0],), panels=panels)]


def _split(
    rule: Rule, cases: Sequence[CaseResult], varying: Sequence[str], axis: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parameters with plots of their own, and those that are series, at most ``MAX_SERIES`` series a plot."""
    others = [name for name in varying if name != axis]
    panels = [name for name in others if name in rule.panels or name in PLACE]
    rest = [name for name in others if name not in panels]
    rest.sort(key=lambda name: rule.series.index(name) if name in rule.series else len(rule.series))
    series: list[str] = []
    for name in rest:
        # The plot, or the place along its axis, may already tell the value.
        if any(_combinations(cases, [*known, name]) == _combinations(cases, known) for known in (panels, [axis])):
            continue
        (series if _combinations(cases, [*series, name]) <= MAX_SERIES else panels).append(name)
    return tuple(panels), tuple(series)


def _combinations(cases: Sequence[CaseResult], names: Sequence[str]) -> int:
    """Number of combinations of the parameters' values that occur."""
    return len({tuple(case.params.get(name) for name in names) for case in cases})
