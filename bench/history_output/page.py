"""A history as a page of its own: a plot a series with levels, changes and gaps, in the report's style, offline."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING, Any

from bench.gate_output.text import visible
from bench.history_output.text import (
    case_text,
    change_text,
    share,
    since_text,
    slope_text,
    span_text,
    state_text,
    value_text,
    verdict,
)
from bench.report.document import document, legend, links, own_script, section, write_document
from bench.report.formatting import counted, unit_sign
from bench.report.markup import Markup, element, joined

if TYPE_CHECKING:
    from pathlib import Path

    from bench.history_series import History, Point, Series

MOST_GAPS = 20
"""Gaps of a series that are listed with their reasons; more are counted."""
LEGEND = (
    ("Points", "The number of a run: its median over iterations; a bar where rounds tell its standard error."),
    ("Level", "The thick line: the median between two changes."),
    (
        "Change",
        "A vertical line where a new level begins: solid when confirmed, dashed when suspected. The shade is where "
        "it began in 90 % of such cases, and the commits given are those of the shade.",
    ),
    ("confirmed", "At least ten points on both sides. Before that a change is suspected."),
    ("Dotted line", "A gap: a run that failed, or did not measure the case. Nothing is filled in."),
    ("New series", "A new method version, definition or machine begins one; numbers are never compared across."),
    ("Drift", "A slanting line: a slope explains the points as well as a step, so no point or commit is named."),
)


def write_page(path: Path, history: History) -> Path:
    """Write the page to ``path``, making its folder; a reader never sees a part of the file.

    Raises:
        BenchError: the file cannot be written.
    """
    return write_document(path, render(history))


def render(history: History) -> str:
    """The history as one HTML document."""
    from plotly.offline import get_plotlyjs

    names = _names(history)
    series = [_section(number, name, one) for number, (name, one) in enumerate(zip(names, history.series, strict=True))]
    return document(
        title=f"History of {visible(history.metric)}",
        subtitle=_subtitle(history),
        headline=_verdict(history),
        summary="the changes",
        navigation=_navigation(names),
        body=joined(
            [section("summary", "Changes", _changes(history)), *series, section("legend", "Legend", legend(LEGEND))]
        ),
        styles=[("bench.history_output", "history.css")],
        data={"series": [_payload(one) for one in history.series]},
        scripts=[get_plotlyjs(), own_script("bench.history_output", "history.js")],
    )


def _names(history: History) -> list[str]:
    return [f"{visible(one.suite)} {case_text(one)}" for one in history.series]


def _navigation(names: list[str]) -> Markup:
    series = [(f"series-{number}", name, "") for number, name in enumerate(names)]
    return links([("summary", "Changes", ""), *series, ("legend", "Legend", "")])


def _subtitle(history: History) -> Markup:
    times = sorted(point.started_at[:10] for one in history.series for point in one.shown)
    runs = len({point.run_id for one in history.series for point in one.shown})
    span = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    return joined([f"{visible(span)} · {counted(runs, 'run')} · {counted(len(history.series), 'series', 'series')}"])


def _verdict(history: History) -> Markup:
    text, tone = verdict(history)
    return element("p", element("span", class_="dot"), element("strong", text), class_=f"verdict {tone}")


def _changes(history: History) -> Markup:
    items = [
        element(
            "li",
            element("span", what, class_=kind),
            " in ",
            element("a", case_text(one), href=f"#series-{number}"),
            ", ",
            where,
        )
        for number, one in enumerate(history.series)
        for what, where, kind in (
            *((change_text(one, change), since_text(one, change), change.kind) for change in one.changes),
            *((slope_text(one, slope), span_text(one, slope), slope.kind) for slope in one.slopes),
        )
    ]
    return element("ul", *items, class_="history-list") if items else element("p", "None was found.", class_="quiet")


def _section(number: int, name: str, one: Series) -> Markup:
    trend = "" if one.trend is None else f", {share(one.trend)} against the first points"
    facts = [
        f"now {value_text(one.level, visible(one.unit))}{trend}; better: {visible(one.better)}",
        f"method version {one.method_version}, definition {visible(one.definition)}, machine {one.machine}",
    ]
    if state := state_text(one):
        facts.append(state)
    if one.began:
        facts.append(f"new series: {visible(one.began)}")
    return element(
        "section",
        element("h2", name),
        *(element("p", fact, class_="quiet") for fact in facts),
        element("div", class_="plot history-plot", data_series=str(number)),
        element("noscript", "The plot needs JavaScript."),
        _gaps(one),
        id=f"series-{number}",
        class_="suite",
    )


def _gaps(one: Series) -> Markup | None:
    missing = [point for point in one.shown if point.value is None]
    if not missing:
        return None
    items = [element("li", f"{visible(point.run_id)}: {_why(point)}") for point in missing[:MOST_GAPS]]
    if len(missing) > MOST_GAPS:
        items.append(element("li", f"{len(missing) - MOST_GAPS} more"))
    return element(
        "details", element("summary", counted(len(missing), "gap")), element("ul", *items), class_="history-gaps"
    )


def _why(point: Point) -> str:
    first = point.reason.strip().partition("\n")[0]
    return visible(f"{point.status}: {first}" if first else point.status)


def _payload(one: Series) -> dict[str, Any]:
    """What the script draws; places are counted from the first point that is shown."""
    first, shown = one.shown_from, one.shown
    begins = [first, *(change.found.index for change in one.changes), len(one.points)]
    levels = []
    for begin, end in itertools.pairwise(begins):
        # A drift has a slanting line instead.
        drifts = any(slope.found.first < end and slope.found.last >= begin for slope in one.slopes)
        level = None if drifts else _level(one, begin, end)
        if level is not None:
            levels.append({"from": begin - first, "to": end - 1 - first, "value": level})
    return {
        "axis": " ".join(filter(None, [visible(one.metric), unit_sign(visible(one.unit))])),
        "dates": [visible(point.started_at[:10]) for point in shown],
        "values": [point.value for point in shown],
        "errors": [point.error for point in shown],
        "texts": [_hover(one, point) for point in shown],
        "gaps": [number for number, point in enumerate(shown) if point.value is None],
        "levels": levels,
        "changes": [
            {
                "kind": change.kind,
                "status": change.found.status,
                "index": change.found.index - first,
                "earliest": max(0, change.found.earliest - first),
                "latest": change.found.latest - first,
            }
            for change in one.changes
        ],
        "drifts": [
            {
                "kind": slope.kind,
                "status": slope.found.status,
                "from": slope.found.first - first,
                "to": slope.found.last - first,
                "values": [slope.found.before, slope.found.after],
            }
            for slope in one.slopes
        ],
    }


def _level(one: Series, begin: int, end: int) -> float | None:
    for change in one.changes:
        if change.found.index == begin:
            return change.found.after
        if change.found.index == end:
            return change.found.before
    known = [point.value for point in one.points[begin:end] if point.value is not None]
    return statistics.median(known) if known else None


def _hover(one: Series, point: Point) -> str:
    parts = [value_text(point.value, visible(one.unit)), visible(point.run_id), visible(point.started_at[:19])]
    return ", ".join([*parts, f"commit {visible(point.commit.text)}"])
