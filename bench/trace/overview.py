"""All ranks of a breakdown together: the mean rank, every step over ranks, and what people read first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.report.formatting import counted
from bench.trace.breakdown import mean
from bench.trace.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.trace.breakdown import Breakdown, RankBreakdown

PARTS = (
    ("compute", "compute"),
    ("exposed", "exposed communication"),
    ("copies", "copies"),
    ("idle", "idle"),
    ("residual", "residual"),
)
"""The parts that add up to a step: name of the field without its unit, and in words."""


@dataclass(frozen=True)
class Overview:
    """A breakdown over ranks.

    Attributes:
        ranks: by number.
        mean: of the ranks' headlines: mean steps where all of them mark steps, else whole traces.
        steps: by number, each the mean over the ranks that mark it.
        calls: of each collective, over all ranks and their whole traces.
        remarks: what a reader should know before the numbers.
    """

    ranks: tuple[RankBreakdown, ...]
    mean: Breakdown
    steps: tuple[Breakdown, ...]
    calls: dict[str, int]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, ranks: Sequence[RankBreakdown]) -> Overview:
        """The overview of at least one rank."""
        stepped = all(rank.mean_step for rank in ranks)
        shown = [rank.headline if stepped else rank.whole for rank in ranks]
        counter: Counter[str] = Counter()
        for rank in ranks:
            counter.update(rank.calls)
        return cls(
            tuple(ranks),
            mean(shown, shown[0].scope),
            tuple(_steps(ranks)),
            {name: counter[name] for name in COLLECTIVES if name in counter},
            tuple(_remarks(ranks, stepped)),
        )

    def shown(self, rank: RankBreakdown) -> Breakdown:
        """A rank's breakdown of the same scope as ``mean``."""
        return rank.whole if self.mean.scope == "trace" else rank.headline

    @property
    def scope_words(self) -> str:
        """What the times are of."""
        if self.mean.scope == "trace":
            return "whole trace"
        return f"mean of {counted(len(self.steps), 'step')}"

    def to_dict(self) -> dict[str, Any]:
        """What ``bench breakdown --json`` prints; times in microseconds, shares from 0 to 1."""
        return {
            "schema_version": 1,
            "scope": self.mean.scope,
            "mean_over_ranks": self.mean.to_dict(),
            "calls": self.calls,
            "steps": [step.to_dict() for step in self.steps],
            "ranks": [rank.to_dict() for rank in self.ranks],
            "remarks": list(self.remarks),
        }


def _steps(ranks: Sequence[RankBreakdown]) -> list[Breakdown]:
    by_number: dict[int, list[Breakdown]] = {}
    for rank in ranks:
        for step in rank.steps:
            by_number.setdefault(step.step or 0, []).append(step)
    return [
        type(found[0])(**{**vars(mean(found, "step")), "step": number}) for number, found in sorted(by_number.items())
    ]


def _remarks(ranks: Sequence[RankBreakdown], stepped: bool) -> list[str]:
    remarks = []
    kinds = {rank.kind for rank in ranks}
    if kinds == {"cpu"}:
        remarks.append(
            "no device in the trace: ops of the host count, and residual is time in marked regions without any op"
        )
    elif len(kinds) == 2:
        names = ", ".join(rank.label for rank in ranks if rank.kind == "cpu")
        remarks.append(f"no device in the trace of {names}: there, ops of the host count")
    if not stepped and any(rank.mean_step for rank in ranks):
        remarks.append("not every trace marks steps, so whole traces are shown")
    remarks += [
        f"{rank.label}: {rank.unreadable} event(s) without a usable time are left out"
        for rank in ranks
        if rank.unreadable
    ]
    empty = ", ".join(rank.label for rank in ranks if not rank.whole.duration_us)
    if empty:
        remarks.append(f"nothing to break down in {empty}: neither kernels nor ops with a duration")
    if not any(rank.calls for rank in ranks):
        remarks.append("no communication in these traces")
    return remarks
