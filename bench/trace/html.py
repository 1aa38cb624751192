"""A breakdown as a page of its own, in the report's style, without scripts or a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.gate_output.text import visible
from bench.report.document import document, links, section, write_document
from bench.report.formatting import counted, percent
from bench.report.markup import Markup, element, joined
from bench.trace.overview import PARTS
from bench.trace.terminal import headline, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bench.trace.breakdown import Breakdown
    from bench.trace.overview import Overview

MEANINGS = {
    "compute": "Something computes; communication may run beside it.",
    "exposed": "Something communicates, and nothing computes: what a step would save if it were hidden.",
    "copies": "A copy or a fill runs on the device, and neither of the above.",
    "idle": "Nothing runs.",
    "residual": "What the trace does not explain: device events of no known sort, or, without a device, "
    "marked regions in which no op runs.",
}


def write_html(path: Path, overview: Overview) -> Path:
    """Write the page.

    Raises:
        BenchError: it cannot be written there.
    """
    return write_document(path, render(overview))


def render(overview: Overview) -> str:
    """The breakdown as one HTML document."""
    ranks = [(visible(rank.label), overview.shown(rank)) for rank in overview.ranks]
    if len(ranks) > 1:
        ranks.append(("mean", overview.mean))
    sections = [section("ranks", "Ranks", _shares("Rank", ranks))]
    if overview.mean.collectives:
        sections.append(section("communication", "Communication", _collectives(overview)))
    if overview.steps:
        steps = [(str(step.step), step) for step in overview.steps]
        over = ", mean over ranks" if len(overview.ranks) > 1 else ""
        sections.append(section("steps", f"Steps{over}", _shares("Step", steps)))
    names = [("summary", "Summary"), *((name, name.capitalize()) for name in _ids(overview)), ("legend", "Legend")]
    remarks = [element("li", visible(remark)) for remark in overview.remarks]
    sources = dict.fromkeys(rank.source for rank in overview.ranks)
    headline_text = (
        _capitalized(headline(overview)) if overview.mean.collectives else "No communication in these traces"
    )
    return document(
        title="Where the time went",
        subtitle=joined(
            [
                f"{counted(len(overview.ranks), 'rank')}, {overview.scope_words}, from ",
                *(joined([", " if place else "", element("code", visible(s))]) for place, s in enumerate(sources)),
            ]
        ),
        headline=element("p", headline_text, class_="verdict", id="summary"),
        navigation=links((target, text, "") for target, text in names),
        body=joined(
            [
                element("ul", *remarks, class_="quiet") if remarks else None,
                *sections,
                section("legend", "Legend", _legend()),
            ]
        ),
        styles=[("bench.trace", "breakdown.css")],
    )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ids(overview: Overview) -> list[str]:
    return [
        "ranks",
        *(["communication"] if overview.mean.collectives else []),
        *(["steps"] if overview.steps else []),
    ]


def _shares(first: str, rows: Sequence[tuple[str, Breakdown]]) -> Markup:
    head = (first, "Time", "", *(words.capitalize() for _, words in PARTS), "Overlapped")
    body = []
    for name, one in rows:
        shares = [percent(max(0.0, one.share(getattr(one, f"{part}_us")))) for part, _ in PARTS]
        body.append(
            element(
                "tr",
                element("td", name),
                element("td", milliseconds(one.duration_us), class_="number"),
                element("td", _bar(one), class_="bar"),
                *(element("td", share, class_="number") for share in (*shares, percent(one.share(one.overlap_us)))),
                class_="mean" if name == "mean" else None,
            )
        )
    return _table(head, ("", first), body)


def _bar(one: Breakdown) -> Markup:
    """The parts of the time as one bar."""
    shapes, reached = [], 0.0
    for part, words in PARTS:
        share = min(1.0, max(0.0, one.share(getattr(one, f"{part}_us"))))
        title = element("title", f"{words} {percent(share)}")
        shapes.append(
            element(
                "rect", title, class_=part, x=f"{1000 * reached:.1f}", y="0", width=f"{1000 * share:.1f}", height="16"
            )
        )
        reached += share
    label = ", ".join(f"{words} {percent(max(0.0, one.share(getattr(one, f'{part}_us'))))}" for part, words in PARTS)
    return element(
        "svg",
        *shapes,
        class_="breakdown-bar",
        viewBox="0 0 1000 16",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _collectives(overview: Overview) -> Markup:
    mean = overview.mean
    head = ("Collective", "Calls, all traces", "Time", "Of communication", "Exposed", "Exposed, of time")
    body = [
        element(
            "tr",
            element("td", collective.name),
            *(
                element("td", text, class_="number")
                for text in (
                    f"{overview.calls.get(collective.name, 0):,}",
                    milliseconds(collective.time_us),
                    percent(mean.communication_share(collective.name)),
                    milliseconds(collective.exposed_us),
                    percent(mean.share(collective.exposed_us)),
                )
            ),
        )
        for collective in mean.collectives
    ]
    return _table(head, ("Collective",), body)


def _table(head: Iterable[str], texts: Sequence[str], body: list[Markup]) -> Markup:
    cells = [element("th", name, scope="col", class_=None if name in texts else "number") for name in head]
    table = element("table", element("thead", element("tr", *cells)), element("tbody", *body))
    return element("div", element("div", table, class_="scroll"), class_="data-table breakdown-table")


def _legend() -> Markup:
    items = [
        joined([element("dt", element("span", class_=f"swatch {part}"), words), element("dd", MEANINGS[part])])
        for part, words in PARTS
    ]
    more = joined([element("dt", "overlapped"), element("dd", "Something communicates while something computes.")])
    return element("dl", *items, more, class_="legend")
