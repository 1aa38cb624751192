"""Writes the HTML report: one file that holds data, scripts and styles, and works without a network."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from bench.errors import BenchError
from bench.report.cases import gather
from bench.report.formatting import counted, percent
from bench.report.headlines import headlines
from bench.report.layout import suite_order
from bench.report.markup import Markup, element, joined
from bench.report.payload import POOR_RESIDUAL, break_even_table, fit_table, suite_payload, to_json
from bench.report.problems import problems
from bench.report.sections import (
    anchor,
    cards,
    definition_list,
    emulated_badge,
    environments,
    legend,
    machine,
    problem_list,
    run_list,
    verdict_line,
)
from bench.report.verdict import Verdict, missing_cases
from bench.whole_file import write_whole

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
NOTHING_ELSE = "form-action 'none'; base-uri 'none'"
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
    text = render(rows, runs, profile, title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise BenchError(
            f"cannot write the report {path}: {error.strerror or error}; name another file or folder"
        ) from None
    return path


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
    own = '(function () {\n"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"
    scripts = [get_plotlyjs(), own] if any(suite["views"] for suite in plotted) else [own]
    fitted = _fits_section(suites, runs, profile, bool(data["fits"]), bool(data["breakEven"]))
    return Template(_asset("report.html")).substitute(
        policy=content_policy(scripts),
        title=joined([title]),
        styles=_asset("report.css"),
        subtitle=_subtitle(runs),
        verdict=verdict_line(Verdict.of(suites, runs)),
        emulated=_emulated_note(suites, runs),
        navigation=_navigation(suites, len(causes), bool(fitted)),
        cards=cards(headlines(suites)),
        problems=problem_list(causes),
        fits=fitted,
        suites=joined(_suite_section(suite) for suite in suites),
        environment=environments(runs),
        runs=run_list(runs, missing_cases((case for suite in suites for case in suite.cases), runs)),
        definitions=definition_list(suites),
        legend=legend(),
        data=to_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _asset(name: str) -> str:
    return (files("bench.report") / name).read_text(encoding="utf-8")


def content_policy(scripts: Iterable[str]) -> str:
    """A content security policy that runs these scripts and nothing else, and never asks a network.

    Texts of rows are escaped; should one ever get through, the browser still refuses to run it.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; {NOTHING_ELSE}"


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
    return joined(
        element("a", element("span", text), element("small", count) if count else None, href=f"#{target}")
        for target, text, count in [*fixed_before, *named, *fixed_after]
    )


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
