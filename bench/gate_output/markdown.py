"""The gate's result as Markdown, for a job's summary or a comment on a merge request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.gate_output.text import (
    BY_TURNS,
    CaseNames,
    change_text,
    change_title,
    threshold_text,
    value_text,
    visible,
    why,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.gate_result import Comparison, GateResult

MARKS = {0: "\N{WHITE HEAVY CHECK MARK}", 1: "\N{CROSS MARK}", 3: "\N{WARNING SIGN}", 4: "\N{CROSS MARK}"}
QUIET = ("pass", "new")
MOST_ROWS = 100
"""Rows of a table: hosts refuse comments beyond some 65,000 characters."""
MOST_NAME = 120
HEADER = ("Verdict", "Suite", "Metric", "Case", "Baseline", "Candidate", "Change", "Counts from", "Why")


def render(result: GateResult) -> str:
    """The result as Markdown with GitHub's tables; GitLab reads it as well."""
    loud = [comparison for comparison in result.comparisons if comparison.verdict not in QUIET]
    quiet = [comparison for comparison in result.comparisons if comparison.verdict in QUIET]
    lines = [f"## {MARKS[result.exit_code]} Performance: {result.verdict}", "", result.summary, ""]
    lines += [f"Baseline {code(result.baseline)}, candidate {code(result.candidate)}.", ""]
    lines += [f"- **error**: {code(error)}" for error in result.errors]
    lines += [""] if result.errors else []
    names = CaseNames(result.comparisons)
    shared = {suite: names.shared(suite) for suite in dict.fromkeys(found.suite for found in result.comparisons)}
    lines += [f"- {code(suite)}: {code(text)}" for suite, text in shared.items() if text]
    lines += [""] if any(shared.values()) else []
    if loud:
        lines += [*_table(loud, names), ""]
    if quiet:
        summary = f"{len(quiet):,} without a change to look at"
        lines += ["<details>", f"<summary>{summary}</summary>", "", *_table(quiet, names), "", "</details>", ""]
    if any(comparison.by_turns for comparison in result.comparisons):
        lines += [f"- {BY_TURNS}"]
    if result.notes:
        lines += [*(f"- {code(note)}" for note in result.notes), ""]
    return "\n".join(lines)


def code(text: str) -> str:
    """Text as code, in which nothing is markup, a mention or a link; it may stand in a table.

    A span of backticks holds neither backticks nor, in a table, a pipe safely: such a text becomes
    HTML with everything that could mean something written as a number.
    """
    shown = visible(text)
    if not shown.strip():
        return ""
    if any(character in shown for character in "`|\\"):
        return f"<code>{''.join(_entity(character) for character in shown)}</code>"
    return f"`{shown.strip()}`"


def _entity(character: str) -> str:
    return character if character.isalnum() or character == " " else f"&#{ord(character)};"


def _table(comparisons: Sequence[Comparison], names: CaseNames) -> list[str]:
    titles = [change_title(comparisons).capitalize() if title == "Change" else title for title in HEADER]
    lines = [_row(titles), _row(["---"] * len(HEADER))]
    lines += [_row(_cells(comparison, names)) for comparison in comparisons[:MOST_ROWS]]
    if len(comparisons) > MOST_ROWS:
        lines += ["", f"{len(comparisons) - MOST_ROWS:,} more are in the JSON, HTML and JUnit outputs."]
    return lines


def _cells(comparison: Comparison, names: CaseNames) -> list[str]:
    verdict = f"**{comparison.outcome}**" if comparison.verdict not in QUIET else comparison.outcome
    return [
        verdict,
        code(_cut(comparison.suite)),
        code(_cut(comparison.metric)),
        code(_cut(names.of(comparison))),
        code(value_text(comparison.baseline_value, comparison.unit)),
        code(value_text(comparison.candidate_value, comparison.unit)),
        code(change_text(comparison)),
        code(threshold_text(comparison)),
        f"{code(comparison.reason_code)} {code(_cut(why(comparison), 3 * MOST_NAME))}",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cut(text: str, most: int = MOST_NAME) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
