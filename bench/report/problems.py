"""What gave no number and why: cases with the same cause gathered into one entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.report.cases import SEVERITY
from bench.report.formatting import parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.report.cases import CaseResult, SuiteResults
    from bench.store.row import Status


@dataclass
class Problem:
    """One cause and all cases of a suite that it hit.

    Attributes:
        metrics: those without a number; empty if it is all of them.
        summary: the first line of the reason.
        cases: with the rest of each one's reason (the ranks' stacks), which is often empty.
        telling: the parameters that tell the suite's cases apart.
    """

    suite: str
    status: Status
    metrics: tuple[str, ...]
    summary: str
    telling: list[str]
    cases: list[tuple[CaseResult, str]] = field(default_factory=list)

    def parameters_of(self, case: CaseResult) -> str:
        """``op=all_reduce ranks=4``: what tells the case from the suite's others; all, if there is no other."""
        return parameters(case.params, self.telling or None)


def problems(suites: Iterable[SuiteResults]) -> list[Problem]:
    """All causes, failures first and skips last, each suite's in order of appearance."""
    found: dict[tuple[str, Status, tuple[str, ...], str], Problem] = {}
    for suite in suites:
        for case in suite.cases:
            for (status, reason), metrics in _causes(case).items():
                summary, _, detail = reason.strip().partition("\n")
                hit = () if len(metrics) == len(case.rows) else tuple(metrics)
                key = (suite.name, status, hit, summary)
                problem = found.setdefault(key, Problem(suite.name, status, hit, summary, suite.varying))
                problem.cases.append((case, detail.strip("\n")))
    return sorted(found.values(), key=lambda problem: SEVERITY.index(problem.status))


def _causes(case: CaseResult) -> dict[tuple[Status, str], list[str]]:
    """Metrics without a number, by status and reason."""
    causes: dict[tuple[Status, str], list[str]] = {}
    for row in case.rows.values():
        if row.status != "ok":
            causes.setdefault((row.status, row.reason), []).append(row.metric)
    return causes
