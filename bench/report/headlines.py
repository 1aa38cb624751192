"""The numbers that a reader looks for first: peaks, bandwidths and base latencies, by declared rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.report.cases import is_settled
from bench.report.formatting import parameters
from bench.report.layout import telling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.report.cases import CaseResult, SuiteResults
    from bench.store.row import Row

MAX_LINES = 8
"""Lines of one card; the tables hold the rest."""


@dataclass(frozen=True)
class HeadlineRule:
    """One card: the best value of a metric for each value of a parameter.

    Attributes:
        suites: names that it looks at; the first that has measured rows is used.
        metric, by: name of the metric, and of the parameter that gets a line for each value.
        place: show hardware (or this host), or the emulated cluster; never the two in one card.
    """

    title: str
    suites: tuple[str, ...]
    metric: str
    by: str
    place: Literal["real", "emulated"] = "real"


RULES = (
    HeadlineRule("Peak matmul rate", ("matmul_peak",), "throughput", "dtype"),
    HeadlineRule("Memory bandwidth", ("memory",), "bandwidth", "kernel"),
    HeadlineRule("Best bus bandwidth", ("collectives", "alltoall"), "busbw", "op"),
    HeadlineRule("Base latency", ("collectives", "allgather_latency", "alltoall"), "latency", "op"),
    HeadlineRule("Attention", ("attention",), "throughput", "model"),
    HeadlineRule("Expert GEMM", ("expert_gemm",), "throughput", "method"),
    HeadlineRule("Best bus bandwidth", ("collectives", "alltoall"), "busbw", "op", "emulated"),
    HeadlineRule("Base latency", ("collectives", "allgather_latency", "alltoall"), "latency", "op", "emulated"),
)


@dataclass(frozen=True)
class HeadlineLine:
    """A line of a card: what it is for, the best row, and where that was reached."""

    label: str
    row: Row
    where: str
    settled: bool


@dataclass
class Headline:
    """A card; the lines with the best value first."""

    title: str
    suite: str
    emulated: bool
    lines: list[HeadlineLine] = field(default_factory=list)


def headlines(suites: Iterable[SuiteResults]) -> list[Headline]:
    """The cards of the rules, then those of all other suites; what the emulated cluster measured comes last."""
    by_name = {suite.name: suite for suite in suites}
    cards = [card for rule in RULES if (card := _ruled(rule, by_name))]
    named = {name for rule in RULES for name in rule.suites}
    shown = {card.suite for card in cards} | named
    cards += [card for suite in by_name.values() if suite.name not in shown for card in _inferred(suite)]
    return sorted(cards, key=lambda card: card.emulated)


def _ruled(rule: HeadlineRule, suites: dict[str, SuiteResults]) -> Headline | None:
    for name in rule.suites:
        if name not in suites:
            continue
        cases = [case for case in suites[name].cases if case.emulated == (rule.place == "emulated")]
        if lines := _lines(cases, rule.metric, rule.by, telling(name, cases)):
            return Headline(rule.title, name, rule.place == "emulated", lines)
    return None


def _inferred(suite: SuiteResults) -> list[Headline]:
    """A suite without a rule: the best value of each of its metrics, apart by place."""
    cards = []
    for emulated in (False, True):
        cases = [case for case in suite.cases if case.emulated == emulated]
        lines = [
            HeadlineLine(metric.name, line.row, line.where, line.settled)
            for metric in suite.metrics
            for line in _lines(cases, metric.name, "", telling(suite.name, cases))
        ]
        if lines:
            cards.append(Headline(suite.name, suite.name, emulated, lines[:MAX_LINES]))
    return cards


def _lines(cases: Iterable[CaseResult], metric: str, by: str, names: Sequence[str]) -> list[HeadlineLine]:
    """The best measured row for each value of the parameter ``by``, the best of all first."""
    # Only what differs between cases tells where the best one was; the place is the card's own.
    where = [name for name in names if name not in (by, "lab", "scope")]
    best: dict[str, tuple[CaseResult, Row]] = {}
    for case in cases:
        row = case.rows.get(metric)
        if row is None or row.status != "ok":
            continue
        label = str(case.params.get(by, metric))
        if label not in best or _goodness(row) > _goodness(best[label][1]):
            best[label] = (case, row)
    ranked = sorted(best.items(), key=lambda item: -_goodness(item[1][1]))
    return [
        HeadlineLine(label, row, parameters(case.params, where), is_settled(row))
        for label, (case, row) in ranked[:MAX_LINES]
    ]


def _goodness(row: Row) -> float:
    value = row.value or 0.0
    return value if row.better == "higher" else -value
