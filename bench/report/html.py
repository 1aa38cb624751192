"""Writes the HTML report: one file that holds data, scripts and styles, and works without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.report.cases import gather
from bench.report.document import document, legend, links, own_script, section, write_document
from bench.report.formatting import counted, percent
from bench.report.headlines import headlines
from bench.report.layout import suite_order
from bench.report.markup import Markup, element, joined
from bench.report.payload import POOR_RESIDUAL, break_even_table, fit_table, suite_payload
from bench.report.problems import problems
from bench.report.sections import (
    LEGEND,
    anchor,
    cards,
    definition_list,
    emulated_badge,
    environments,
    machine,
    problem_list,
    run_list,
    verdict_line,
)
from bench.report.verdict import Verdict, missing_cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bench.platform_profile import PlatformProfile
    from bench.report.cases import SuiteResults
    from bench.store.row import Row, RunRecord

FIT_TEXT = (
    "Fitted to the measured points: duration = latency + bytes / bandwidth, in one or two pieces. A residual is the "
    "relative error of the fit at a measured point. Where the worst one is above "
    f"{percent(POOR_RESIDUAL)} the fit is poor: it is marked ~, and tells little more than the order of magnitude."
)
SCRIPTS = ("format.js", "suite.js", "figures.js", "charts.js", "table.js", "page.js")
"""The report's own scripts, in an order in which each uses only what comes before it."""


def write_html(
    path: Path,
    rows: Iterable[Row],
    runs: Sequence[RunRecord],
    profile: PlatformProfile | None = None,
    title: str = "Benchmark report",
) -> Path:
    """Write the report of ``rows`` to ``path``, making its folder; a reader never sees a part of the file.

    Args:
        rows: of one run or several; an empty list gives a report that says so.
        runs: the records of the runs that the rows belong to.
        profile: adds the fitted curves and what they predict.
        title: heading of the page.

    Raises:
        BenchError: the file cannot be written.
    """
    return write_document(path, render(rows, runs, profile, title))


def render(
    rows: Iterable[Row],
    runs: Sequence[RunRecord],
    profile: PlatformProfile | None = None,
    title: str = "Benchmark report",
) -> str:
    """The report as one HTML document."""
    from plotly.offline import get_plotlyjs

    suites = suite_order(gather(rows))
    causes = problems(suites)
    plotted = [suite_payload(suite, profile) for suite in suites]
    data = {
        "suites": plotted,
        "fits": fit_table(profile),
        "breakEven": break_even_table(profile),
    }
    own = own_script("bench.report", *SCRIPTS)
    fitted = _fits_section(suites, runs, profile, bool(data["fits"]), bool(data["breakEven"]))
    definitions = element("p", "Two numbers are comparable only if their ids agree.", class_="quiet")
    missing = missing_cases((case for suite in suites for case in suite.cases), runs)
    sections = [
        element("section", cards(headlines(suites)), id="summary", aria_label="Summary"),
        section("problems", "What failed and why", problem_list(causes)),
        fitted,
        *map(_suite_section, suites),
        section("environment", "Environment", environments(runs)),
        section("runs", "Runs", run_list(runs, missing)),
        section("definitions", "Definitions", definitions, definition_list(suites)),
        section("legend", "Legend", legend(LEGEND)),
    ]
    return document(
        title=title,
        subtitle=_subtitle(runs),
        headline=joined([verdict_line(Verdict.of(suites, runs)), _emulated_note(suites, runs)]),
        navigation=_navigation(suites, len(causes), bool(fitted)),
        body=joined(sections),
        data=data,
        scripts=[get_plotlyjs(), own] if any(suite["views"] for suite in plotted) else [own],
    )


def _subtitle(runs: Sequence[RunRecord]) -> Markup:
    """On what, when and by how many runs."""
    if not runs:
        return Markup("")
    machines = element("span", "; ".join(dict.fromkeys(machine(run) for run in runs)))
    began = min(run.started_at for run in runs).replace("T", " ").partition(".")[0] + " UTC"
    presets = sorted({f"preset {run.preset}" for run in runs if run.preset})
    return joined([machines, element("br"), " · ".join([began, *presets, counted(len(runs), "run")])])


def _emulated_note(suites: Iterable[SuiteResults], runs: Iterable[RunRecord]) -> Markup:
    """The banner of a report that holds rows of the emulated cluster, with each shape."""
    lab_of = {run.run_id: run.lab for run in runs}
    cases = [case for suite in suites for case in suite.cases if case.emulated]
    if not cases:
        return Markup("")
    shapes = dict.fromkeys(str(case.params.get("lab") or lab_of.get(case.run_id, "")) for case in cases)
    text = f"{counted(len(cases), 'case')} of this report ran in it and carry this mark."
    return element("p", *(emulated_badge(shape) for shape in shapes), " ", text, class_="banner")


def _navigation(suites: Iterable[SuiteResults], causes: int, fitted: bool) -> Markup:
    fixed_before = [("summary", "Summary", ""), ("problems", "What failed and why", str(causes) if causes else "")]
    if fitted:
        fixed_before.append(("fits", "Fitted latency and bandwidth", ""))
    named = [(f"suite-{anchor(suite.name)}", suite.name, str(len(suite.cases))) for suite in suites]
    fixed_after = [
        ("environment", "Environment", ""),
        ("runs", "Runs", ""),
        ("definitions", "Definitions", ""),
        ("legend", "Legend", ""),
    ]
    return links([*fixed_before, *named, *fixed_after])


def _fits_section(
    suites: Iterable[SuiteResults],
    runs: Sequence[RunRecord],
    profile: PlatformProfile | None,
    fits: bool,
    break_even: bool,
) -> Markup:
    """The places of the tables, or why there are none; nothing where there is nothing to fit."""
    parts = []
    if profile is None and len(runs) > 1 and any(map(_has_a_curve, suites)):
        text = f"No fits: a fit describes one run, and this report holds {len(runs)}. The report of one run has them: "
        parts.append(element("p", text, element("code", "bench report RUN --html FILE"), class_="quiet"))
    if fits:
        parts += [element("p", FIT_TEXT, class_="quiet"), element("div", id="fits-table")]
    if break_even:
        parts.append(element("div", id="break-even-table"))
    return element("section", element("h2", "Fitted latency and bandwidth"), *parts, id="fits") if parts else Markup("")


def _has_a_curve(suite: SuiteResults) -> bool:
    """Whether latencies over sizes are there, which is what fits are made of."""
    return "bytes" in suite.varying and any(metric.name == "latency" for metric in suite.metrics)


def _suite_section(suite: SuiteResults) -> Markup:
    """A suite's heading and the place that the scripts fill."""
    emulated = any(case.emulated for case in suite.cases)
    note = element("span", "partly emulated cluster, not hardware", class_="badge emulated") if emulated else None
    return element(
        "section",
        element("h2", suite.name, note),
        element("noscript", "Curves and tables need JavaScript."),
        id=f"suite-{anchor(suite.name)}",
        class_="suite",
    )
