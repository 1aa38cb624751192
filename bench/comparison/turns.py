"""The order of a comparison: who is measured when, and what is checked before anybody's speed counts.

Sides take turns A B B A, so that what the machine does slowly meets all of them alike. Before the first
turn the conditions must be equal; after the warm-up, and again at the end, the series must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.comparison.contract import broken_agreement, broken_condition
from bench.comparison.request import SETTLING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.comparison.processes import Record, SideProcesses
    from bench.comparison.request import ComparisonRequest
    from bench.suite import ComparableSuite, Value


STARTS, IS_PREDICTED, WARMS_UP, RUNS, IS_LOOKED_INTO = (
    "starts",
    "is predicted",
    "warms up",
    "runs",
    "is looked into",
)
"""What a side may be about to do."""


class Watcher:
    """Told what happens; the command line shows it. Every method does nothing here."""

    def started(self, run_id: str, sides: Sequence[str], stages: Mapping[str, int]) -> None:
        """The run's file is open; of each kind of part, as ``stage`` tells it, so many are to come."""

    def stage(self, label: str, what: str) -> None:
        """A side is about to do something."""

    def ended(self, label: str, status: str, reason: str) -> None:
        """A side has no speeds."""

    def note(self, text: str) -> None:
        """Something that the user should know, in one line."""


class Turns:
    """Measures all sides.

    Args:
        request: what was asked for. suite: of all sides.
        sides: in order. watcher: is told.
    """

    def __init__(
        self, request: ComparisonRequest, suite: ComparableSuite, sides: Sequence[SideProcesses], watcher: Watcher
    ) -> None:
        self._request = request
        self._suite = suite
        self._sides = sides
        self._watcher = watcher
        self._given: dict[str, Value] = {}
        self._told: set[str] = set()
        self._warmup = request.warmup

    @staticmethod
    def stages(request: ComparisonRequest) -> dict[str, int]:
        """How often ``Watcher.stage`` is called for each kind of part if all goes well."""
        sides, timed = len(request.sides), sum(side.timed for side in request.sides)
        return {
            STARTS: sides,
            IS_PREDICTED: timed if request.profile else 0,
            WARMS_UP: sides,
            RUNS: timed * len(request.steps_of_turns) + sides - timed,
            IS_LOOKED_INTO: sides,
        }

    def run(self) -> None:
        """Measure; what becomes of each side is in its record."""
        if self._request.apart:
            for side in self._sides:
                self._open(side)
                self._warm_up(side)
                if side.record.side.timed:
                    for steps in self._request.steps_of_turns:
                        self._turn(side, SETTLING, steps)
                else:
                    self._turn(side, self._request.iterations_of_turns, 0)
                self._inspect(side)
                side.stop()
            self.judge(whole=True)
            return
        for side in self._sides:
            self._open(side)
        self.judge(whole=False)
        # All sides do the same number of iterations, so the one that settles last decides.
        slowest = max((side.record.settled_after for side in self._alive()), default=0)
        if slowest > self._warmup:
            self._watcher.note(f"{slowest} iterations of warm-up in place of {self._warmup}: one side settles so late")
            self._warmup = slowest
        for side in self._alive():
            self._warm_up(side)
        self.judge(whole=False)
        for number, steps in enumerate(self._request.steps_of_turns):
            for side in list(self._alive(timed=True))[:: -1 if number % 2 else 1]:
                self._turn(side, SETTLING, steps)
        for side in self._alive(timed=False):
            self._turn(side, self._request.iterations_of_turns, 0)
        self.judge(whole=False)
        for side in self._alive():
            self._inspect(side)
        self.judge(whole=True)

    def judge(self, whole: bool) -> None:
        """End the sides that break the contract with the one that is right.

        Args:
            whole: all that is to be compared is there.
        """
        records = [side.record for side in self._sides]
        right = right_record(self._request, records)
        if right is None:
            return
        reference = next(record for record in records if record.label == self._request.reference)
        for side in self._sides:
            record = side.record
            # Against the reference too: two sides may have to be equal, and both only near to what is right.
            for other in (right, reference):
                if record is other or record.ending or other.ending:
                    continue
                if broken := self._broken(record, other, whole):
                    record.end("invalid", f"no fair comparison: {broken}", fair=False)
                    side.stop()
            self._tell(record)

    def _broken(self, record: Record, right: Record, whole: bool) -> str | None:
        agreements = self._suite.agreements(record.side.case, right.side.case)
        return broken_condition(record.conditions, right.conditions, record.label, right.label) or broken_agreement(
            agreements, record.course, right.course, right.label, whole
        )

    def _open(self, side: SideProcesses) -> None:
        self._watcher.stage(side.record.label, STARTS)
        self._given = {**side.open(self._given), **self._given}
        record = side.record
        if self._request.apart and record.ending is None and record.settled_after > self._warmup:
            record.end(
                "failed",
                f"works as it does only after {record.settled_after} iterations; with --apart, ask for --warmup"
                f" {record.settled_after}",
            )
        if self._request.profile and record.side.timed and side.alive:
            self._watcher.stage(record.label, IS_PREDICTED)
            side.predict(self._request.profile)
        self._tell(record)

    def _warm_up(self, side: SideProcesses) -> None:
        if side.alive:
            self._watcher.stage(side.record.label, WARMS_UP)
            side.turn(self._warmup, 0)
            self._tell(side.record)

    def _turn(self, side: SideProcesses, untimed: int, timed: int) -> None:
        if side.alive:
            self._watcher.stage(side.record.label, RUNS)
            side.turn(untimed, timed)
            self._tell(side.record)

    def _inspect(self, side: SideProcesses) -> None:
        if side.alive:
            self._watcher.stage(side.record.label, IS_LOOKED_INTO)
            side.inspect()
            self._tell(side.record)

    def _alive(self, timed: bool | None = None) -> Iterable[SideProcesses]:
        return [side for side in self._sides if side.alive and timed in (None, side.record.side.timed)]

    def _tell(self, record: Record) -> None:
        if record.ending and record.label not in self._told:
            self._told.add(record.label)
            self._watcher.ended(record.label, record.ending.status, record.ending.reason)


def right_record(request: ComparisonRequest, records: Sequence[Record]) -> Record | None:
    """The side that the others must agree with: the one that was named, or the first that still runs; or None."""
    named = next(record for record in records if record.label == request.right)
    if named.ending is None:
        return named
    return next((record for record in records if record.ending is None), None)
