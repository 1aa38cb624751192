"""The verdict line: how many of the cases asked for were measured, which were not, and how many did not settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.asked_case import asked_case
from bench.report.cases import as_asked, count_by_status
from bench.report.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.report.cases import CaseResult, SuiteResults
    from bench.store.row import RunRecord, Status

Remark = Literal["failed", "timeout", "invalid", "skipped", "unsettled", "missing"]

INTERRUPTED = "interrupted or still running"
"""What a run is that has no row yet of some cases that were asked for: its files do not tell which."""

STATUS_WORDS: dict[Status, str] = {
    "ok": "measured",
    "failed": "failed",
    "timeout": "timed out",
    "invalid": "invalid",
    "skipped": "skipped",
}


@dataclass(frozen=True)
class Verdict:
    """Cases by outcome.

    Attributes:
        counts: cases that have rows, all statuses present.
        unsettled: measured ones that did not settle.
        missing: cases that were asked for and have no row.
    """

    counts: dict[Status, int]
    unsettled: int
    missing: int = 0

    @classmethod
    def of(cls, suites: Iterable[SuiteResults], runs: Iterable[RunRecord] = ()) -> Verdict:
        """The verdict of all rows of ``runs``, whose records tell how many cases were asked for."""
        cases = [case for suite in suites for case in suite.cases]
        unsettled = sum(any(part.measured and not part.settled for part in parts) for parts in as_asked(cases))
        return cls(count_by_status(cases), unsettled, sum(missing_cases(cases, runs).values()))

    @property
    def tone(self) -> Literal["good", "warn", "bad"]:
        """Bad if a case broke or none was measured, warn if some are missing or did not settle."""
        total = sum(self.counts.values())
        if self.counts["ok"] + self.counts["skipped"] < total or not self.counts["ok"]:
            return "bad"
        return "warn" if self.unsettled or self.missing else "good"

    @property
    def headline(self) -> str:
        """``318 of 340 cases measured``."""
        total, measured = sum(self.counts.values()) + self.missing, self.counts["ok"]
        if not total:
            return "No rows: nothing was measured"
        if measured == total:
            return "1 case measured" if total == 1 else f"All {total:,} cases measured"
        return f"{measured:,} of {counted(total, 'case')} measured"

    @property
    def remarks(self) -> list[tuple[Remark, str]]:
        """What was not measured and what did not settle, as ``("failed", "2 failed")``; zeros are left out."""
        found: list[tuple[Remark, str]] = [("missing", INTERRUPTED)] if self.missing else []
        found += [
            (status, f"{count:,} {STATUS_WORDS[status]}")
            for status, count in self.counts.items()
            if count and status != "ok"
        ]
        if self.unsettled:
            found.append(("unsettled", f"{self.unsettled:,} did not settle"))
        return found

    @property
    def text(self) -> str:
        """The whole line: ``318 of 340 cases measured; 2 failed, 19 skipped, 7 did not settle.``"""
        remarks = ", ".join(text for _, text in self.remarks)
        return f"{self.headline}; {remarks}." if remarks else f"{self.headline}."


def missing_cases(cases: Iterable[CaseResult], runs: Iterable[RunRecord]) -> dict[str, int]:
    """How many of the cases asked for have no row, by run id; none of a run that does not tell how many it had."""
    present: dict[str, set[tuple[str, str]]] = {}
    for case in cases:
        present.setdefault(case.run_id, set()).add((case.suite, asked_case(case.suite, case.case)))
    return {run.run_id: max(0, run.cases - len(present.get(run.run_id, ()))) for run in runs}
