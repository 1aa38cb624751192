"""Two commits measured by turns, A B B A, on this machine, until every verdict is settled or the time is up.

What the machine does slowly (its clock, its neighbours, its temperature) then meets both sides alike.
A turn is one run of a suite in the checkout of one side; its samples are one independent block. What
looks slower is measured again from the start, and only a slowdown that shows in both is one.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError
from bench.gate import GateSides, judge_sides
from bench.gate_matching import series_of
from bench.gate_sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bench.checkout_runs import Checkout
    from bench.gate import Frame
    from bench.gate_result import Comparison, GateResult
    from bench.store.row import Row, Value

TURNS = ("baseline", "candidate", "candidate", "baseline")
FIRST_LOOK = 2
"""Quartets before the first judgement: four blocks a side are the least that can differ significantly."""
MOST_QUARTETS = 96
CONFIRMATION = "confirmation"
SEARCH_SHARES = (0.6, 0.8)
"""Of the budget, for the search; the rest is for confirming what it suspects. The second if it suspects nothing."""
HOPELESS = ("direction_unknown", "direction_changed", "zero_baseline", "zero_candidate", "below_zero")
"""Reasons that no further measurement takes away."""
HERE = "this machine"
"""Both sides' machine: they ran by turns on this one, whatever their own fingerprints say of their software."""


class Watcher:
    """Told what happens; the command line shows it. Every method does nothing here."""

    def note(self, text: str) -> None:
        """Something that the user should know, in one line."""

    def turn(self, stage: str, side: str, suite: str, unsettled: int, seconds_left: float) -> None:
        """A turn is about to be measured."""


@dataclass
class _Stage:
    """Rows of one stage, search or confirmation: a list of blocks a side, each of one run.

    Attributes:
        name: of the stage.
        rows: by side, in the order of the turns.
        quartets: how many A B B A of each suite are complete.
        seconds: how long the last quartet of each suite took.
    """

    name: str
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"baseline": [], "candidate": []})
    quartets: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def source(self, side: str, label: str) -> Source:
        return Source(label, tuple(self.rows[side]), machine=HERE)


Wanted = dict[str, "list[Mapping[str, Value]] | None"]
"""By suite: parameters of the cases that are still to be measured, None for all."""


@dataclass
class Interleaving:
    """An interleaved comparison.

    Attributes:
        baseline, candidate: the two checkouts.
        suites: what to measure.
        frame: how it is judged.
        budget_s: seconds for all turns.
        watcher: is told.
        interrupted: whether it was ended early.
    """

    baseline: Checkout
    candidate: Checkout
    suites: Sequence[str]
    frame: Frame
    budget_s: float
    watcher: Watcher = field(default_factory=Watcher)
    interrupted: bool = False
    _end: float = math.inf
    _looks: int = 1

    def run(self) -> GateResult:
        """Measure and judge; Ctrl-C ends the measuring and judges what there is.

        Raises:
            UsageError: neither side has one of the suites, or an option is wrong for it.
        """
        self._refuse_unknown()
        search, confirmation = _Stage("search"), _Stage(CONFIRMATION)
        try:
            with ended_by_signals(), one_at_a_time(self.watcher):
                self._end = time.monotonic() + self.budget_s
                self._search(search)
                self._confirm(search, confirmation)
        except KeyboardInterrupt:
            self.interrupted = True
            some = "what was measured is kept and judged" if any(search.rows.values()) else "nothing was measured"
            self.watcher.note(f"interrupted; {some}")
        return self._judge(search, confirmation, last=True)

    def _search(self, stage: _Stage) -> None:
        """Quartets of all that is not settled, judged when they have doubled, and after each share of the budget."""
        wanted: Wanted = dict.fromkeys(self.suites)
        began = time.monotonic()
        looks: tuple[int, ...] = ()
        done = 0
        for share in SEARCH_SHARES:
            deadline = began + share * self.budget_s
            while wanted and self._quartets(stage, wanted, deadline):
                done += 1
                if done == 1:
                    looks = planned_looks((deadline - began) / max(1e-3, time.monotonic() - began))
                    self._looks = len(looks) + len(SEARCH_SHARES)
                if done in looks:
                    wanted = _left(self._judge(stage), stage.rows["candidate"], _is_open)
            result = self._judge(stage)
            wanted = _left(result, stage.rows["candidate"], _is_open)
            if not wanted or any(map(_is_suspected, result.comparisons)):
                return  # The rest of the budget is for confirming it.

    def _confirm(self, search: _Stage, stage: _Stage) -> None:
        """Fresh quartets of what is suspected, as many as it took to suspect it, or twice or four times as many."""
        wanted = _left(self._judge(search), search.rows["candidate"], _is_suspected)
        if wanted:
            count = sum(len(cases or ()) for cases in wanted.values())
            self.watcher.note(f"{count} case(s) look slower; they are measured again from the start")
        asked = max((search.quartets.get(suite, 0) for suite in wanted), default=0)
        done = 0
        while wanted and self._quartets(stage, wanted, self._end):
            done += 1
            if done in (asked, 2 * asked, 4 * asked):
                still_open = _left(self._judge(search, stage), search.rows["candidate"], _is_open)
                wanted = {suite: cases for suite, cases in still_open.items() if suite in wanted}

    def _quartets(self, stage: _Stage, wanted: Wanted, deadline: float) -> bool:
        """A quartet of each suite that is wanted; False if the time does not suffice for one."""
        measured = False
        for suite, cases in wanted.items():
            done = stage.quartets.get(suite, 0)
            late = time.monotonic() + stage.seconds.get(suite, 0.0) > deadline
            # The first quartet is measured whatever the budget: without it there is nothing to judge.
            if done >= MOST_QUARTETS or (late and (done or stage.name == CONFIRMATION)):
                continue
            began = time.monotonic()
            for side in TURNS:
                checkout = self.baseline if side == "baseline" else self.candidate
                if not checkout.has_suite(suite):
                    continue
                unsettled = sum(len(found or ()) for found in wanted.values())
                self.watcher.turn(stage.name, checkout.label, suite, unsettled, self._end - time.monotonic())
                stage.rows[side] += checkout.measure(suite, cases)
            stage.quartets[suite] = done + 1
            stage.seconds[suite] = time.monotonic() - began
            measured = True
        return measured

    def _judge(self, search: _Stage, confirmation: _Stage | None = None, last: bool = False) -> GateResult:
        """The verdicts so far. Of the last ones, none is a regression that was not confirmed: it could have been."""
        second = None
        if confirmation and any(confirmation.rows.values()):
            second = self._sources(confirmation)
        sides = GateSides(
            *self._sources(search),
            second=second,
            interleaved=True,
            looks=self._looks,
            interrupted=self.interrupted,
        )
        policy = replace(self.frame.policy, confirmation="required" if last else "when_possible")
        return judge_sides(sides, replace(self.frame, policy=policy))

    def _sources(self, stage: _Stage) -> tuple[Source, Source]:
        return stage.source("baseline", self.baseline.label), stage.source("candidate", self.candidate.label)

    def _refuse_unknown(self) -> None:
        for suite in self.suites:
            sides = [checkout.label for checkout in (self.baseline, self.candidate) if checkout.has_suite(suite)]
            if not sides:
                raise UsageError(f"neither side has a suite {suite!r}; `bench list` shows the suites")
            if len(sides) == 1:
                self.watcher.note(f"only {sides[0]} has the suite {suite}")


def planned_looks(affordable: float) -> tuple[int, ...]:
    """After which quartets to judge, if so many fit a share of the budget: ever twice as many.

    They are fixed beforehand, because each look at growing samples is another chance to be wrong.
    """
    looks, look = [], FIRST_LOOK
    while look < min(affordable, MOST_QUARTETS):
        looks.append(look)
        look *= 2
    return tuple(looks)


def _is_open(comparison: Comparison) -> bool:
    return comparison.verdict == "inconclusive" and comparison.reason_code not in HOPELESS


def _is_suspected(comparison: Comparison) -> bool:
    return comparison.verdict == "regressed" or comparison.reason_code == "suspected"


def _left(result: GateResult, rows: Iterable[Row], keeps: Callable[[Comparison], bool]) -> Wanted:
    """The cases that have a metric to be kept, by suite, with the parameters that their rows have."""
    params = {series_of(row)[:3]: row.params for row in rows}
    found: dict[str, dict[str, Mapping[str, Value]]] = {}
    for comparison in result.comparisons:
        if keeps(comparison):
            key = (comparison.suite, comparison.method_version, comparison.case)
            found.setdefault(comparison.suite, {})[comparison.case] = params[key]
    return {suite: list(cases.values()) for suite, cases in found.items()}


@contextmanager
def one_at_a_time(watcher: Watcher) -> Iterator[None]:
    """Wait for other interleaved gates of this user on this machine: two at once would measure each other."""
    path = Path(tempfile.gettempdir()) / f"bench-gate-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            watcher.note("another interleaved gate is measuring on this machine; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def nothing_measured(labels: tuple[str, str], frame: Frame) -> GateResult:
    """The result of a gate that was ended before its first turn.

    Args:
        labels: of baseline and candidate.
        frame: how it would have been judged.
    """
    baseline, candidate = (Source(label, (), machine=HERE) for label in labels)
    return judge_sides(GateSides(baseline, candidate, interleaved=True, interrupted=True), frame)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and a lost terminal end the measuring as Ctrl-C does."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
