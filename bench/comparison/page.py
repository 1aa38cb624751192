"""A comparison as a page of its own, in the report's style, without scripts or a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.comparison.contract import largest_difference
from bench.comparison.plots import Bar, bars, curves, dash, part_class, stacked
from bench.comparison.terminal import difference_text
from bench.comparison.view import (
    NONE,
    cell,
    contract_lines,
    duration,
    headline,
    matrix_values,
    parts_of,
    predicted_parts,
    prediction_lines,
    prediction_texts,
    shown,
    speedup_text,
    times,
    value_text,
)
from bench.gate_output.text import visible
from bench.report.document import document, legend, links, section, write_document
from bench.report.formatting import counted, parameters
from bench.report.markup import Markup, element, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from bench.comparison.outcome import Outcome
    from bench.comparison.view import Matrix, View

MEANINGS = (
    (
        "iteration",
        "The slowest rank's duration: the median of all timed iterations; whiskers: 5th to 95th percentile.",
    ),
    (
        "speedup",
        "The reference's duration over this one's, each turn against the one beside it, with its 95 % interval.",
    ),
    ("off by", "Largest relative difference to the series that all are held against, over all iterations."),
    ("invalid", "It ran, but not under the same conditions or not to the same result, so its speed means nothing."),
    ("failed, timeout", "It did not run to its end; the others did."),
)


def write_page(path: Path, outcome: Outcome, view: View) -> Path:
    """Write the page.

    Raises:
        BenchError: it cannot be written there.
    """
    return write_document(path, render(outcome, view))


def render(outcome: Outcome, view: View) -> str:
    """The comparison as one HTML document."""
    sections = [
        ("time", "Time of an iteration", _times(outcome, view)),
        ("parts", view.parts, _parts(view.parts, *parts_of(outcome, view.residual))),
        ("prediction", "Prediction", _prediction(outcome)),
        *((f"curve-{name}", _capitalized(name), _curves(outcome, name, axis)) for name, axis in view.curves.items()),
        *(
            (f"matrix-{place}", matrix.title, _matrix(outcome, view, matrix))
            for place, matrix in enumerate(view.matrices)
        ),
        ("contract", "Fairness", _contract(outcome, view)),
        ("problems", "Without a number", _problems(outcome)),
        ("legend", "Legend", legend(MEANINGS)),
    ]
    kept = [(name, title, content) for name, title, content in sections if content is not None]
    return document(
        title=view.title,
        subtitle=_subtitle(outcome),
        headline=element("p", visible(headline(outcome)), class_=f"verdict {_tone(outcome)}", id="summary"),
        navigation=links([("summary", "Summary", ""), *((name, title, "") for name, title, _ in kept)]),
        body=joined(
            [
                element("ul", *(element("li", visible(remark)) for remark in view.remarks), class_="quiet")
                if view.remarks
                else None,
                *(section(name, title, content) for name, title, content in kept),
            ]
        ),
        styles=[("bench.comparison", "comparison.css")],
    )


def _tone(outcome: Outcome) -> str:
    return "" if outcome.exit_code == 0 else "warn"


def _subtitle(outcome: Outcome) -> Markup:
    shared = shared_params(outcome)
    return joined(
        [
            f"{counted(len(outcome.timed), 'side')} of ",
            element("code", outcome.suite.name),
            f", {counted(outcome.request.steps, 'timed iteration')} each, ",
            "one after the other" if outcome.request.apart else "by turns",
            "; ",
            element("code", visible(parameters(shared))),
            "; run ",
            element("code", outcome.run_id),
        ]
    )


def shared_params(outcome: Outcome) -> dict[str, int | float | str | bool]:
    """The parameters that all timed sides have in common."""
    everyone = [record.params or dict(record.side.params) for record in outcome.timed]
    return {name: value for name, value in everyone[0].items() if all(params.get(name) == value for params in everyone)}


def _times(outcome: Outcome, view: View) -> Markup:
    found = []
    for record in outcome.timed:
        spread = times(outcome, record)
        if spread:
            low, middle, high = spread
            title = f"{record.label}: {duration(middle)}, from {duration(low)} to {duration(high)}"
            found.append(Bar(visible(record.label), middle, low, high, duration(middle), visible(title)))
    plot = bars(found, "Time of an iteration by side") if found else None
    return joined([plot, _speeds(outcome, view), _further(outcome, view)])


def _speeds(outcome: Outcome, view: View) -> Markup:
    """What is compared, a line a side."""
    columns = shown(outcome, view.columns)
    predicted = ("Predicted", "Off by") if outcome.request.profile else ()
    head = [
        "Iteration",
        "5 to 95 %",
        *predicted,
        f"Speedup over {visible(outcome.reference.label)}",
        *(_capitalized(column.heading) for column in columns),
        *(f"{_capitalized(name)} off by" for name in view.curves),
    ]
    cells = {}
    for record in outcome.timed:
        spread, speedup = times(outcome, record), outcome.speedup(record)
        numbers = [duration(spread[1]), f"{duration(spread[0])} to {duration(spread[2])}"] if spread else [NONE, NONE]
        cells[record.label] = [
            *numbers,
            *(prediction_texts(outcome, record) if predicted else ()),
            speedup_text(speedup) if speedup else NONE,
            *(cell(outcome, record, column) for column in columns),
            *(difference_text(outcome, record, name) for name in view.curves),
        ]
    return _sides(outcome, view, head, cells)


def _further(outcome: Outcome, view: View) -> Markup | None:
    """What else is known of the sides; in a table of its own, which a page is wide enough for."""
    columns = shown(outcome, view.further)
    if not columns:
        return None
    cells = {record.label: [cell(outcome, record, column) for column in columns] for record in outcome.timed}
    return _sides(outcome, view, [_capitalized(column.heading) for column in columns], cells)


def _sides(outcome: Outcome, view: View, head: Iterable[str], cells: Mapping[str, Sequence[str]]) -> Markup:
    """A line a side: its name, and its ending if it came to one, before the cells."""
    body = []
    for record in outcome.timed:
        ending = [element("span", record.ending.status, class_=f"chip {record.ending.status}")] if record.ending else []
        body.append(
            element(
                "tr",
                element("td", visible(record.label), " " if ending else None, *ending),
                *(element("td", text, class_="number") for text in cells[record.label]),
                class_="reference" if record is outcome.reference else None,
            )
        )
    return _table([view.side, *head], 1, body)


def _prediction(outcome: Outcome) -> Markup | None:
    """How the predicted times came about; None where nobody asked for any."""
    lines = [element("li", visible(line)) for line in prediction_lines(outcome)]
    if not lines:
        return None
    parts = _parts("What a predicted iteration is made of", *predicted_parts(outcome))
    return joined([parts, element("ul", *lines, class_="quiet")])


def _parts(title: str, names: Sequence[str], sizes: Mapping[str, Mapping[str, float]]) -> Markup | None:
    if not names:
        return None
    keys = [
        element("li", element("span", class_=f"swatch {part_class(place)}"), visible(name))
        for place, name in enumerate(names)
    ]
    body = [
        element(
            "tr",
            element("td", visible(name)),
            *(
                element("td", _part_text(found[name], found) if name in found else NONE, class_="number")
                for found in sizes.values()
            ),
        )
        for name in names
    ]
    shown_sizes = {visible(label): found for label, found in sizes.items()}
    return joined(
        [
            element("ul", *keys, class_="comparison-keys"),
            stacked(shown_sizes, names, title, duration),
            _table(["Part", *shown_sizes], 1, body),
        ]
    )


def _part_text(size: float, sizes: Mapping[str, float]) -> str:
    return f"{duration(size)} ({size / (sum(sizes.values()) or 1.0):.1%})"


def _curves(outcome: Outcome, name: str, axis: str) -> Markup | None:
    found = {record.label: record.series[name] for record in outcome.records if record.series.get(name)}
    if not found:
        return None
    right = outcome.right
    keys = [
        element(
            "li",
            element(
                "svg",
                element(
                    "line",
                    x1="0",
                    y1="5",
                    x2="34",
                    y2="5",
                    class_=f"line-{place % 7}",
                    stroke_width="2.5",
                    stroke_dasharray=dash(place) or None,
                ),
                viewBox="0 0 34 10",
            ),
            visible(label),
        )
        for place, label in enumerate(found)
    ]
    parts: list[Markup] = [
        element("ul", *keys, class_="comparison-keys"),
        curves(found, axis, f"{name} by iteration"),
    ]
    if right is not None and right.label in found:
        wanted = found[right.label]
        off = {
            label: [
                difference.relative if (difference := largest_difference([value], [true])) else 0.0
                for value, true in zip(series, wanted, strict=False)
            ]
            for label, series in found.items()
        }
        parts.append(
            element("h3", f"Difference to {visible(right.label)}, relative, on a logarithmic axis; zeros leave gaps")
        )
        if any(value > 0 for series in off.values() for value in series):
            parts.append(curves(off, "", f"difference of {name}", True))
        else:
            parts.append(element("p", "None: all sides have the same numbers, to the last bit.", class_="quiet"))
    return joined(parts)


def _matrix(outcome: Outcome, view: View, matrix: Matrix) -> Markup | None:
    names, rows = matrix_values(outcome, matrix)
    if not names:
        return None
    body = [
        element(
            "tr",
            element("td", visible(label)),
            *(
                element(
                    "td", value_text(row.value, row.unit) if row and row.value is not None else NONE, class_="number"
                )
                for row in (cells.get(name) for name in names)
            ),
        )
        for label, cells in rows.items()
    ]
    remark = element("p", matrix.remark, class_="quiet") if matrix.remark else None
    return joined([remark, _table([view.side, *names], 1, body)])


def _contract(outcome: Outcome, view: View) -> Markup | None:
    right = outcome.right
    known = [record for record in outcome.records if record.conditions]
    if right is None or not known:
        return None
    names = dict.fromkeys(name for record in known for name in record.conditions)
    body = []
    for name in names:
        wanted = right.conditions.get(name)
        cells = [
            element(
                "td",
                visible(_short(record.conditions.get(name))),
                class_="differs" if record.conditions.get(name) != wanted else None,
            )
            for record in known
        ]
        body.append(element("tr", element("td", _words(name)), *cells))
    lines = [f"{_capitalized(line)}." for line in contract_lines(outcome)]
    return joined(
        [
            element("ul", *(element("li", visible(line)) for line in lines), class_="quiet"),
            _table(["Condition", *(visible(record.label) for record in known)], len(known) + 1, body),
        ]
    )


def _problems(outcome: Outcome) -> Markup | None:
    body = [
        element(
            "tr",
            element("td", visible(record.label)),
            element("td", element("span", record.ending.status, class_=f"chip {record.ending.status}")),
            element("td", visible(record.ending.reason), class_="text"),
        )
        for record in outcome.records
        if record.ending
    ]
    return _table(["Side", "Status", "Reason"], 3, body) if body else None


def _table(head: Iterable[str], texts: int, body: Sequence[Markup]) -> Markup:
    """A table whose first columns, ``texts`` of them, are words and the others numbers."""
    cells = [
        element("th", name, scope="col", class_=None if place < texts else "number") for place, name in enumerate(head)
    ]
    table = element("table", element("thead", element("tr", *cells)), element("tbody", *body))
    return element("div", element("div", table, class_="scroll"), class_="data-table comparison-table")


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 20 else f"{text[:16]}…"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
