"""The gate's result as a page of its own, in the report's style, without scripts or a network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.gate_output.text import (
    CaseNames,
    case_name,
    change_text,
    change_title,
    share_text,
    threshold_text,
    value_text,
    visible,
    why,
)
from bench.gate_result import SEVERITY
from bench.report.document import document, legend, links, section
from bench.report.formatting import counted
from bench.report.markup import Markup, element, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.gate_result import Comparison, GateResult

FOLDED = ("new", "pass")
PLOT_WIDTH, PLOT_HEIGHT = 140, 18
LEAST_SPAN = 0.02
"""Half the width of a plot's axis is at least this share."""
COLUMNS = ("Verdict", "Metric", "Case", "Baseline", "Candidate", "Change", "", "Counts from", "Samples")
NUMERIC = ("Baseline", "Candidate", "Change", "Counts from", "Samples")
MEANINGS = (
    ("Change", "The candidate over the baseline, less one, and its 95 % interval, by the numbers as they are."),
    (
        "Change by turns",
        "The median of what each turn differs from the turn beside it. Baseline and candidate are medians of all turns,"
        " with the machine's drift in them, so their ratio may be another.",
    ),
    ("Plot", "The interval and the change; the band is what does not count, its middle line is no change."),
    ("Counts from", "The least change that counts: the larger of the policy's and the measured A/A noise."),
    ("pass", "Any change that counts is excluded."),
    ("improved", "A change for the better that counts, and is significant."),
    ("regressed", "A change for the worse that counts, is significant, and was confirmed where it could be."),
    ("inconclusive", "Too few or too scattered samples to tell a change that counts from none."),
    ("new", "Measured, with nothing to compare with: the reason says why."),
    ("missing", "The baseline has it, or the policy requires it, and the candidate did not measure it."),
    ("failed", "The candidate broke where it should have measured."),
)


def render(result: GateResult, title: str = "Performance gate") -> str:
    """The result as one HTML document."""
    suites: dict[str, list[Comparison]] = {}
    for comparison in result.comparisons:
        suites.setdefault(comparison.suite, []).append(comparison)
    names = CaseNames(result.comparisons)
    return document(
        title=title,
        subtitle=_subtitle(result),
        headline=element("div", _verdict(result), id="summary"),
        summary="the verdict",
        navigation=_navigation(suites),
        body=joined(
            [
                _remarks(result),
                *(_suite(place, name, found, names) for place, (name, found) in enumerate(suites.items())),
                section("legend", "Legend", legend(MEANINGS)),
            ]
        ),
        styles=[("bench.gate_output", "gate.css")],
    )


def _navigation(suites: dict[str, list[Comparison]]) -> Markup:
    named = [(f"suite-{place}", visible(name), f"{len(found):,}") for place, (name, found) in enumerate(suites.items())]
    return links([("summary", "Verdict", ""), *named, ("legend", "Legend", "")])


def _subtitle(result: GateResult) -> Markup:
    sides = (("Baseline", result.baseline), ("candidate", result.candidate), ("policy", result.policy.source))
    return joined(
        [
            joined([", " if place else "", f"{name} ", element("code", visible(text))])
            for place, (name, text) in enumerate(sides)
        ]
    )


def _verdict(result: GateResult) -> Markup:
    tone = {0: "good", 3: "warn"}.get(result.exit_code, "bad")
    chips = [
        element("span", f"{result.counts[verdict]:,} {verdict}", class_=f"chip {_chip(verdict)}")
        for verdict in SEVERITY
        if result.counts[verdict]
    ]
    extra = [(result.waived, "waived"), (result.not_judged, "left out by the policy"), (result.skipped, "skipped")]
    chips += [element("span", f"{count:,} {word}", class_="chip") for count, word in extra if count]
    text = f"{result.verdict.capitalize()}: {counted(result.compared, 'metric')} compared"
    if result.interrupted:
        text += "; interrupted"
    headline = element("strong", text)
    return element("p", element("span", class_="dot"), headline, *chips, class_=f"verdict {tone}", id="verdict")


def _remarks(result: GateResult) -> Markup:
    errors = [element("p", visible(error), class_="gate-error") for error in result.errors]
    notes = [element("li", visible(note)) for note in result.notes]
    return joined([*errors, element("ul", *notes, class_="quiet gate-notes") if notes else None])


def _suite(place: int, name: str, comparisons: Sequence[Comparison], names: CaseNames) -> Markup:
    loud = [comparison for comparison in comparisons if comparison.verdict not in FOLDED]
    quiet = [comparison for comparison in comparisons if comparison.verdict in FOLDED]
    title = f"{counted(len(quiet), 'metric')} without a change to look at"
    folded = element("details", element("summary", title), _table(quiet, names), open=not loud) if quiet else None
    shared = names.shared(name)
    return element(
        "section",
        element("h2", visible(name)),
        element("p", "All cases: ", element("code", shared), class_="fixed") if shared else None,
        _table(loud, names) if loud else None,
        folded,
        id=f"suite-{place}",
    )


def _table(comparisons: Sequence[Comparison], names: CaseNames) -> Markup:
    titles = [(change_title(comparisons).capitalize() if name == "Change" else name, name) for name in COLUMNS]
    head = element(
        "tr",
        *(element("th", title, scope="col", class_="number" if name in NUMERIC else None) for title, name in titles),
    )
    body = element("tbody", *(_row(comparison, names) for comparison in comparisons))
    table = element("div", element("table", element("thead", head), body), class_="scroll")
    return element("div", table, class_="data-table gate-table")


def _row(comparison: Comparison, names: CaseNames) -> Markup:
    """The numbers, and below them, over the whole width, the reason; a pass needs no reason but on hover."""
    reason = joined([element("code", comparison.reason_code), " ", why(comparison)])
    told = comparison.verdict != "pass"
    chip = element(
        "span",
        comparison.outcome,
        class_=f"chip {_chip(comparison.verdict, comparison.waived)}",
        title=None if told else f"{comparison.reason_code}: {why(comparison)}",
    )
    samples = f"{comparison.baseline_samples:,} / {comparison.candidate_samples:,}"
    numbers = element(
        "tr",
        element("td", chip),
        element("td", visible(comparison.metric)),
        element("td", names.of(comparison), class_="wrap", title=case_name(comparison)),
        element("td", value_text(comparison.baseline_value, comparison.unit), class_="number"),
        element("td", value_text(comparison.candidate_value, comparison.unit), class_="number"),
        element("td", change_text(comparison), class_="number", title=_details(comparison)),
        element("td", _plot(comparison)),
        element("td", threshold_text(comparison), class_="number"),
        element("td", samples, class_="number"),
    )
    below = element("td", reason, colspan=str(len(COLUMNS)), class_="wrap gate-why")
    return joined([numbers, element("tr", below) if told else None])


def _details(comparison: Comparison) -> str:
    """What the change rests on, on hover."""
    p_value = "" if comparison.adjusted_p_value is None else f"p {comparison.adjusted_p_value:.2g} among all cases; "
    detectable = comparison.minimum_detectable_effect
    tells = "" if detectable is None else f"least detectable slowdown {share_text(detectable)}; "
    return f"{p_value}{tells}definition {visible(comparison.definition)}, method version {comparison.method_version}"


def _chip(verdict: str, waived: bool = False) -> str:
    """The report's class of a chip for a verdict."""
    if waived:
        return "unsettled"
    tones = {"regressed": "failed", "missing": "failed", "failed": "failed", "inconclusive": "unsettled"}
    return tones.get(verdict, "ok" if verdict in ("improved", "pass") else "")


def _plot(comparison: Comparison) -> Markup | None:
    """Interval and change on an axis around no change, with the band of what does not count."""
    change = comparison.change
    if change is None:
        return None
    threshold = comparison.threshold or 0.0
    ends = [end for end in comparison.change_interval or () if math.isfinite(end)] or [change]
    span = max(LEAST_SPAN, 1.5 * threshold, *(1.1 * abs(end) for end in (*ends, change)))

    def across(share: float) -> float:
        return (share / span + 1) / 2 * PLOT_WIDTH

    middle = PLOT_HEIGHT / 2
    left, right = across(min(ends)), across(max(ends))
    return element(
        "svg",
        _shape("rect", class_="band", x=across(-threshold), y=0.0, width=threshold / span * PLOT_WIDTH, height=18.0),
        _shape("line", class_="zero", x1=PLOT_WIDTH / 2, x2=PLOT_WIDTH / 2, y1=0.0, y2=float(PLOT_HEIGHT)),
        _shape("line", class_="interval", x1=left, x2=max(right, left + 1), y1=middle, y2=middle),
        _shape("circle", class_="effect", cx=across(change), cy=middle, r=3.5),
        class_=f"gate-plot {comparison.verdict}",
        viewBox=f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}",
        role="img",
        aria_label=change_text(comparison),
    )


def _shape(name: str, class_: str, **places: float) -> Markup:
    return element(name, class_=class_, **{key: f"{value:.1f}" for key, value in places.items()})
