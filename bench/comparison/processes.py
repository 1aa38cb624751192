"""One side of a comparison with the ranks that it runs on, and what became of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.comparison.contract import Course
from bench.definitions import Ceiling, Work
from bench.launch.supervisor import Failure, RankProcesses
from bench.suite import Forecast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.comparison.request import Side
    from bench.store.row import Status
    from bench.suite import Site, Value


@dataclass(frozen=True)
class Ending:
    """Why a side has no speeds.

    Attributes:
        status: of its rows. reason: one line. details: stacks by rank, where ranks failed.
        fair: False if the side ran, but broke the fairness contract.
    """

    status: Status
    reason: str
    details: dict[int, str] = field(default_factory=dict)
    fair: bool = True


@dataclass
class Record:
    """What is known of a side.

    Attributes:
        side: it. site: of its rank 0.
        params: of its case, with what the place adds.
        conditions: as its workload gave them, once open.
        course: all iterations so far.
        turns: of each timed turn, seconds of each rank and iteration, shape ``(world, n)``.
        entry_ns: likewise when each rank began, on rank 0's clock.
        observed: what the instruments found, by the metric's key; None before the inspection.
        forecast: what a model says that an iteration takes; None where nobody asked.
        work: of one iteration.
        settled_after: iterations after which it works as it does from then on.
        warmup: untimed iterations so far.
        ending: why it has no speeds; None as long as all is well.
    """

    side: Side
    site: Site
    params: dict[str, Value] = field(default_factory=dict)
    conditions: dict[str, Value] = field(default_factory=dict)
    course: Course = field(default_factory=lambda: Course({}))
    turns: list[list[list[float]]] = field(default_factory=list)
    entry_ns: list[list[list[float]]] = field(default_factory=list)
    observed: dict[str, list[float]] | None = None
    forecast: Forecast | None = None
    work: Work = field(default_factory=Work)
    settled_after: int = 0
    warmup: int = 0
    ending: Ending | None = None

    @property
    def series(self) -> Mapping[str, Sequence[float]]:
        """Of the course."""
        return self.course.series

    @property
    def label(self) -> str:
        """Of the side."""
        return self.side.label

    def end(self, status: Status, reason: str, fair: bool = True, details: dict[int, str] | None = None) -> None:
        """Note why there are no speeds; the first reason stays."""
        self.ending = self.ending or Ending(status, reason, details or {}, fair)


class SideProcesses:
    """The processes of a side: every method does its part, or notes the failure in the record.

    Args:
        record: of the side.
        suite: its name.
        ranks: its group of processes, not started.
    """

    def __init__(self, record: Record, suite: str, ranks: RankProcesses) -> None:
        self.record = record
        self._suite = suite
        self._ranks = ranks

    @property
    def alive(self) -> bool:
        """Whether it can take another turn."""
        return self._ranks.running and self.record.ending is None

    def open(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Start the ranks and set the case up; what it hands on to the other sides."""
        failure = self._ranks.start()
        if failure:
            failure.reason = f"the group did not start: {failure.reason}"
            self._failed(failure)
            return {}
        answer = self._ask("open", given=dict(given))
        if answer is None:
            return {}
        if "skipped" in answer:
            self.record.end("skipped", answer["skipped"])
            self._ranks.stop()
            return {}
        self.record.conditions, self.record.params = answer["conditions"], answer["params"]
        self.record.work, self.record.settled_after = _work(answer["work"]), int(answer["settled_after"])
        handed: dict[str, Value] = answer["given"]
        return handed

    def predict(self, profile: str) -> None:
        """What a model says that an iteration takes, from that platform profile."""
        answer = self._ask("forecast", profile=profile)
        if answer is not None:
            self.record.forecast = Forecast(**answer)

    def turn(self, untimed: int, timed: int) -> None:
        """So many iterations, the first of which are not timed."""
        answer = self._ask("turn", untimed=untimed, timed=timed)
        if answer is None:
            return
        record = self.record
        record.course, record.warmup = _course(answer), record.warmup + untimed
        if timed:
            record.turns.append(answer["seconds"])
            record.entry_ns.append(answer["entry_ns"])

    def inspect(self) -> None:
        """Iterations with instruments."""
        answer = self._ask("inspect")
        if answer is not None:
            self.record.observed, self.record.course = answer["observed"], _course(answer)
            self.record.work = _work(answer["work"])

    def stop(self) -> None:
        """Close the workload where that is still possible, and end the ranks."""
        if not self._ranks.running:
            return
        if not isinstance(self._ranks.compare_case("close", self._suite, self.record.side.case), Failure):
            self._ranks.stop()

    def kill(self) -> None:
        """End the ranks at once."""
        if self._ranks.running:
            self._ranks.kill()

    def _ask(self, what: str, **more: Any) -> dict[str, Any] | None:
        answer = self._ranks.compare_case(what, self._suite, self.record.side.case, more)
        if isinstance(answer, Failure):
            self._failed(answer)
            return None
        return answer

    def _failed(self, failure: Failure) -> None:
        done = self.record.warmup + sum(len(turn[0]) for turn in self.record.turns)
        # A rank tells where it is twice a second; what is certain is what it had finished.
        after = f" (the turn began after {done} iterations)" if done else ""
        self.record.end(failure.status, failure.reason + after, details=failure.details)


def _course(answer: dict[str, Any]) -> Course:
    return Course(answer["series"], answer["choices"])


def _work(record: dict[str, Any]) -> Work:
    ceilings = {key: Ceiling(**ceiling) for key, ceiling in record["ceilings"].items()}
    return Work(**{**record, "ceilings": ceilings})
