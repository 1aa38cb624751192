"""The report's sections that need no script: headlines, failures, environment, runs, definitions, legend."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bench.definitions import DEFINITIONS
from bench.report.formatting import counted, number, parameters, percent, spread, unit_sign
from bench.report.markup import Markup, element, joined
from bench.report.verdict import INTERRUPTED, STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.report.cases import CaseResult, SuiteResults
    from bench.report.headlines import Headline, HeadlineLine
    from bench.report.problems import Problem
    from bench.report.verdict import Verdict
    from bench.store.row import RunRecord

CASES_SHOWN = 100
"""Cases listed under one cause; the suite's table has them all."""

REMARK_TARGETS = {"unsettled": "#legend", "missing": "#runs"}
"""Where remarks of the verdict are explained, other than with what failed."""
NONE_IF_ABSENT = ("container",)
"""Facts of a fingerprint whose absence is known; of all others, null says that the machine did not tell."""

LEGEND = (
    ("Sizes", "Bytes in binary units: 1 KiB = 1024 B, 1 MiB = 1024 KiB, 1 GiB = 1024 MiB."),
    ("Rates", "Decimal: 1 GB/s = 10⁹ bytes a second, 1 TFLOP/s = 10¹² floating-point operations a second."),
    ("Value", "The median over timed iterations. An iteration lasts as long as its slowest rank."),
    (
        "± spread",
        "Half the interquartile range of the samples, as a share of the value; shown from four samples on. It tells "
        "how far the samples scatter, and is no confidence interval of the median. "
        "Bands around curves run from the first to the third quartile, or from the fastest to the slowest rank.",
    ),
    (
        "~ unsettled",
        "Marked ~ and drawn hollow: time or samples ran out before the median was known well enough. "
        "Measure longer before you rely on it.",
    ),
    (
        "Dotted line",
        "A fit, not a measurement: duration = latency + bytes / bandwidth, in one or two pieces.",
    ),
    (
        "Interrupted",
        "Fewer cases have a row than the run was to measure: it was interrupted, or is still running. "
        "What is here was measured as usual.",
    ),
    ("Failed", "The case raised, a rank died, or the result differed from the oracle."),
    ("Timed out", "A rank hung. The stacks of all ranks are kept with the reason."),
    ("Invalid", "The number was beyond what the hardware can do, so it is not shown."),
    ("Skipped", "The case, or one of its metrics, cannot be measured here."),
    (
        "Emulated cluster",
        "Ranks of one host joined by shaped virtual links. Good for shapes and comparisons, never a hardware number.",
    ),
)


def verdict_line(verdict: Verdict) -> Markup:
    """The verdict, with a link from each outcome to where it is explained."""
    chips = [
        element("a", text, class_=f"chip {kind}", href=REMARK_TARGETS.get(kind, "#problems"))
        for kind, text in verdict.remarks
    ]
    headline = element("strong", verdict.headline)
    return element("p", element("span", class_="dot"), headline, *chips, class_=f"verdict {verdict.tone}", id="verdict")


def emulated_badge(shape: str = "") -> Markup:
    """The badge of everything that the emulated cluster measured."""
    return element(
        "span",
        element("b", "Emulated cluster, not hardware"),
        element("code", shape) if shape else None,
        class_="badge emulated",
    )


def cards(headlines: Sequence[Headline]) -> Markup:
    """The headline numbers; what the emulated cluster measured carries its badge."""
    return element("div", *(_card(headline) for headline in headlines), class_="cards")


def _card(headline: Headline) -> Markup:
    best, *others = headline.lines
    unit = unit_sign(best.row.unit)
    badge = element("span", "emulated", class_="badge emulated") if headline.emulated else None
    return element(
        "article",
        element("h3", headline.title, badge),
        element("p", _marked(best), " ", element("span", unit, class_="unit"), class_="figure"),
        element("p", element("b", best.label), " ", best.where, class_="where"),
        element("table", element("tbody", *(_card_line(line, unit) for line in others))) if others else None,
        class_="card emulated" if headline.emulated else "card",
    )


def _card_line(line: HeadlineLine, unit: str) -> Markup:
    own_unit = unit_sign(line.row.unit)
    value = joined([_marked(line), " " + own_unit if own_unit != unit else None])
    return element("tr", element("th", line.label, scope="row", title=line.where), element("td", value))


def _marked(line: HeadlineLine) -> Markup:
    """The value, with its spread on hover and the mark of an unsettled one."""
    width = spread(line.row)
    title = f"{line.where}, n={line.row.n}" + ("" if width is None else f", ±{percent(width)}")
    return element("span", ("" if line.settled else "~") + number(line.row.value or 0.0), title=title)


def problem_list(problems: Sequence[Problem]) -> Markup:
    """What gave no number and why: each cause with its cases and, folded, the ranks' stacks."""
    if not problems:
        return element("p", "Nothing failed, and nothing was skipped.", class_="quiet")
    loud = [problem for problem in problems if problem.status != "skipped"]
    quiet = [problem for problem in problems if problem.status == "skipped"]
    if not quiet:
        return joined(map(_problem, loud))
    skipped = joined(map(_problem, quiet))
    if not loud:
        return joined([element("p", "Nothing failed.", class_="quiet"), skipped])
    count = counted(len(quiet), "reason")
    return joined([*map(_problem, loud), _folded(f"Skipped: {count}", skipped, class_="skips")])


def _problem(problem: Problem) -> Markup:
    single = len(problem.cases) == 1
    case, detail = problem.cases[0]
    which = f"{', '.join(problem.metrics)} of " if problem.metrics else ""
    heading = element(
        "p",
        element("span", STATUS_WORDS[problem.status], class_=f"chip {problem.status}"),
        element("a", problem.suite, href=f"#suite-{anchor(problem.suite)}", class_="suite"),
        element("span", f"{which}{counted(len(problem.cases), 'case')}", class_="count")
        if which or not single
        else None,
        _case_name(problem, case) if single else None,
    )
    if single:
        content = [_stacks(detail)]
    else:
        shown = problem.cases[:CASES_SHOWN]
        items = [element("li", _case_name(problem, case), _stacks(rest)) for case, rest in shown]
        more = len(problem.cases) - len(shown)
        tail = element("p", f"and {more:,} more, in the suite's table", class_="quiet") if more else None
        content = [_folded("Cases", element("ul", *items), tail)]
    reason = element("p", problem.summary, class_="reason")
    return element("article", heading, reason, *content, class_=f"problem {problem.status}")


def _case_name(problem: Problem, case: CaseResult) -> Markup:
    """What tells the case apart; all of its parameters on hover."""
    return element("code", problem.parameters_of(case), title=parameters(case.params))


def _stacks(detail: str) -> Markup | None:
    return _folded("Stacks and detail", element("pre", detail)) if detail else None


def _folded(title: str, *content: Markup | None, class_: str | None = None) -> Markup:
    return element("details", element("summary", title), *content, class_=class_)


def environments(runs: Sequence[RunRecord]) -> Markup:
    """The fingerprints: what identifies the machine, once for all runs that share it, then what was volatile."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        identity = json.dumps(run.fingerprint.get("identity", {}), sort_keys=True, default=str)
        groups.setdefault(identity, []).append(run)
    if not groups:
        return element("p", "No run record is at hand.", class_="quiet")
    parts = []
    for members in groups.values():
        names = " ".join(run.run_id for run in members)
        volatile = [
            joined([element("h4", run.run_id) if len(runs) > 1 else None, _facts(run.fingerprint.get("volatile", {}))])
            for run in members
        ]
        parts += [
            element("h3", "Identity", element("code", names) if len(groups) > 1 else None),
            element("p", "Numbers of another identity are another machine's.", class_="quiet"),
            _facts(members[0].fingerprint.get("identity", {})),
            element("h3", "Volatile"),
            element("p", "As it was when the run began; it explains a number, and is never compared.", class_="quiet"),
            *volatile,
        ]
    return joined(parts)


def machine(run: RunRecord) -> str:
    """Host, processor or accelerators, and memory in one line, as far as the fingerprint tells them."""
    identity = run.fingerprint.get("identity", {})
    cpu, gpus, memory = identity.get("cpu"), identity.get("gpus"), identity.get("memory_gib")
    parts = [str(run.writer.get("host") or run.fingerprint.get("volatile", {}).get("host") or "")]
    if isinstance(cpu, dict):
        parts += [str(cpu.get("model") or ""), f"{cpu['physical_cores']} cores" if cpu.get("physical_cores") else ""]
    if isinstance(gpus, list):
        parts += [f"{gpu.get('count', 1)} x {gpu.get('model')}" for gpu in gpus if isinstance(gpu, dict)] or ["no GPU"]
    if memory:
        parts.append(f"{memory} GiB")
    return " · ".join(part for part in parts if part)


def _facts(values: dict[str, Any]) -> Markup:
    """Groups of facts beside each other: a box for each nested one, and a first box for all the others."""
    if not values:
        return element("p", "Not recorded.", class_="quiet")
    nested = {name: value for name, value in values.items() if value and isinstance(value, (dict, list))}
    plain = {name: value for name, value in values.items() if name not in nested}
    boxes = [element("div", _tree(plain), class_="box")] if plain else []
    boxes += [element("div", element("h4", str(name)), _leaf(value), class_="box") for name, value in nested.items()]
    return element("div", *boxes, class_="facts")


def _tree(value: dict[str, Any]) -> Markup:
    """A nested mapping as a list of names and values."""
    known = {name: [] if item is None and name in NONE_IF_ABSENT else item for name, item in value.items()}
    pairs = [joined([element("dt", str(name)), element("dd", _leaf(item))]) for name, item in known.items()]
    return element("dl", *pairs, class_="tree")


def _leaf(value: Any) -> Markup:
    if isinstance(value, dict):
        return _tree(value) if value else element("span", "none", class_="quiet")
    if isinstance(value, (list, tuple)):
        if not value:
            return element("span", "none", class_="quiet")
        if not any(isinstance(item, (dict, list, tuple)) for item in value):
            return joined([", ".join(str(item) for item in value)])
        return element("ul", *(element("li", _leaf(item)) for item in value))
    if value is None or value == "":
        return element("span", "unknown" if value is None else "empty", class_="quiet")
    return joined([str(value).lower() if isinstance(value, bool) else str(value)])


def run_list(runs: Sequence[RunRecord], missing: Mapping[str, int]) -> Markup:
    """Each run: what was typed, seed, preset, and the command that measures the same again.

    Args:
        runs: in order.
        missing: how many cases have no row, by run id.
    """
    if not runs:
        return element("p", "No run record is at hand.", class_="quiet")
    return joined(_run(run, missing.get(run.run_id, 0)) for run in runs)


def _run(run: RunRecord, missing: int) -> Markup:
    command = ["bench", *run.command]
    # The seed decides traffic and data: without it the command would measure other bytes.
    if not any(part == "--seed" or part.startswith("--seed=") for part in command):
        command += ["--seed", str(run.seed)]
    facts = {
        "Started": run.started_at,
        "Typed": shlex.join(["bench", *run.command]),
        "Suites": ", ".join(run.suites),
        "Preset": run.preset,
        "Seed": str(run.seed),
        "Cases": _cases_text(run, missing),
        "Writer": ", ".join(f"{name} {value}" for name, value in run.writer.items()),
    }
    pairs = [joined([element("dt", name), element("dd", value)]) for name, value in facts.items() if value]
    return element(
        "article",
        element("h3", element("code", run.run_id), emulated_badge(run.lab) if run.lab else None),
        element("dl", *pairs, class_="tree"),
        element("p", "Measure the same again:", class_="quiet"),
        element("pre", element("code", shlex.join(command)), class_="command"),
        class_="run",
    )


def _cases_text(run: RunRecord, missing: int) -> str:
    if not missing:
        return f"{run.cases:,}" if run.cases else ""
    way_out = shlex.join(["bench", "run", "--resume", run.run_id])
    return f"{run.cases - missing:,} of {run.cases:,} have rows; {INTERRUPTED} (if interrupted: {way_out})"


def definition_list(suites: Iterable[SuiteResults]) -> Markup:
    """The definition of every metric in the report: id, unit, direction and sentence."""
    used: dict[str, list[str]] = {}
    columns = {}
    for suite in suites:
        for metric in suite.metrics:
            columns[metric.definition] = metric
            names = used.setdefault(metric.definition, [])
            if metric.name not in names:
                names.append(metric.name)
    rows = []
    for identifier, names in used.items():
        known = DEFINITIONS.get(identifier)
        text = known.text if known else "Defined by the package of its suite, which is not loaded here."
        column = columns[identifier]
        rows.append(
            element(
                "tr",
                element("th", ", ".join(names), scope="row"),
                element("td", unit_sign(column.unit) or column.unit),
                element("td", "direction unknown" if column.better == "unknown" else f"{column.better} is better"),
                element("td", text),
                element("td", element("code", identifier)),
            )
        )
    if not rows:
        return element("p", "No metric is in this report.", class_="quiet")
    head = element(
        "tr", *(element("th", name, scope="col") for name in ("Metric", "Unit", "Direction", "Meaning", "Id"))
    )
    return element("div", element("table", element("thead", head), element("tbody", *rows)), class_="scroll")


def anchor(name: str) -> str:
    """A suite's name as part of an element id, different for different names."""
    return quote(name, safe="")
