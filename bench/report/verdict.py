"""The verdict line: how many cases were measured, how many were not, and how many did not settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.report.cases import count_by_status
from bench.report.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.report.cases import SuiteResults
    from bench.store.row import Status

STATUS_WORDS: dict[Status, str] = {
    "ok": "measured",
    "failed": "failed",
    "timeout": "timed out",
    "invalid": "invalid",
    "skipped": "skipped",
}


@dataclass(frozen=True)
class Verdict:
    """Cases by outcome, all statuses present, and the measured ones that did not settle."""

    counts: dict[Status, int]
    unsettled: int

    @classmethod
    def of(cls, suites: Iterable[SuiteResults]) -> Verdict:
        cases = [case for suite in suites for case in suite.cases]
        return cls(count_by_status(cases), sum(1 for case in cases if case.measured and not case.settled))

    @property
    def tone(self) -> Literal["good", "warn", "bad"]:
        """Bad if a case broke or none was measured, warn if some did not settle."""
        total = sum(self.counts.values())
        if self.counts["ok"] + self.counts["skipped"] < total or not self.counts["ok"]:
            return "bad"
        return "warn" if self.unsettled else "good"

    @property
    def headline(self) -> str:
        """``318 of 340 cases measured``."""
        total, measured = sum(self.counts.values()), self.counts["ok"]
        if not total:
            return "No rows: nothing was measured"
        if measured == total:
            return "1 case measured" if total == 1 else f"All {total:,} cases measured"
        return f"{measured:,} of {counted(total, 'case')} measured"

    @property
    def remarks(self) -> list[tuple[Status | Literal["unsettled"], str]]:
        """What was not measured and what did not settle, as ``("failed", "2 failed")``; zeros are left out."""
        found: list[tuple[Status | Literal["unsettled"], str]] = [
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
