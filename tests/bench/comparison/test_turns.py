"""The order of turns, warm-ups that wait for the slowest side, and the contract at every stage; without processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from bench.comparison.contract import Course
from bench.comparison.processes import Record
from bench.comparison.request import ComparisonRequest, Side
from bench.comparison.turns import Turns, Watcher, right_record
from bench.launch.site import local_site
from bench.suite import Agreement, Case, Forecast
from tests.bench.comparison.sides_suite import SidesSuite, params


@dataclass
class Fake:
    """A side whose iterations take no time.

    Attributes:
        off_from: first iteration of a series that is wrong; weights: its condition.
        dies_in: the stage in which it fails.
    """

    record: Record
    log: list[tuple[str, str, int, int]]
    off_from: int = 10**6
    weights: str = "w"
    settles: int = 0
    dies_in: str = ""
    running: bool = False
    done: int = 0
    given: list[dict[str, Any]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.running and self.record.ending is None

    def open(self, given: dict[str, Any]) -> dict[str, Any]:
        self.given.append(dict(given))
        self._log("open")
        self.running = True
        self.record.conditions, self.record.settled_after = {"weights": self.weights}, self.settles
        return {"peak": self.record.label, "own": 1}

    def predict(self, profile: str) -> None:
        self._log("predict")
        self.record.forecast = Forecast({"work": 1.0}, profile)

    def turn(self, untimed: int, timed: int) -> None:
        self._log("turn", untimed, timed)
        self.done += untimed + timed
        losses = [10.0 - step * 0.1 + (step >= self.off_from) for step in range(self.done)]
        self.record.course = Course({"loss": losses})
        self.record.warmup += untimed
        if timed:
            self.record.turns.append([[0.1] * timed])

    def inspect(self) -> None:
        self._log("inspect")
        self.record.course = Course({**self.record.series, "last": [5.0]})

    def stop(self) -> None:
        self.running = False

    def _log(self, what: str, untimed: int = 0, timed: int = 0) -> None:
        self.log.append((self.record.label, what, untimed, timed))
        if self.dies_in == what:
            self.record.end("failed", "gone")
            self.running = False


class Heard(Watcher):
    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.stages: Counter[str] = Counter()

    def stage(self, label: str, what: str) -> None:
        self.stages[what] += 1

    def ended(self, label: str, status: str, reason: str) -> None:
        self.lost.append((label, status))

    def note(self, text: str) -> None:
        self.notes.append(text)


def compared(request: ComparisonRequest, **fakes: dict[str, Any]) -> tuple[dict[str, Fake], Heard]:
    """The sides after the turns; ``fakes`` says how each behaves."""
    log: list[tuple[str, str, int, int]] = []
    sides = {
        side.label: Fake(Record(side, local_site(0, side.world, "cpu", 0)), log, **fakes.get(side.label, {}))
        for side in request.sides
    }
    heard = Heard()
    Turns(request, SidesSuite(), list(sides.values()), heard).run()  # type: ignore[arg-type]
    return sides, heard


def request(*labels: str, **changes: Any) -> ComparisonRequest:
    sides = tuple(Side(label, params(label), 1, timed=label != "right") for label in labels)
    return ComparisonRequest(**{"suite": "sides", "sides": sides, "reference": labels[0], "steps": 8, **changes})


def test_sides_take_turns_there_and_back() -> None:
    asked = request("a", "b", "c", steps=8, turns=4, warmup=3)
    sides, heard = compared(asked)
    log = sides["a"].log
    assert [(who, what) for who, what, *_ in log[:6]] == [
        *((who, "open") for who in "abc"),
        *((who, "turn") for who in "abc"),
    ]
    assert all((untimed, timed) == (3, 0) for *_, untimed, timed in log[3:6])
    assert "".join(who for who, *_ in log[6:18]) == "abccbaabccba"
    assert all((untimed, timed) == (1, 2) for *_, untimed, timed in log[6:18])
    assert [what for _, what, *_ in log[18:]] == ["inspect"] * 3
    assert all(side.record.ending is None for side in sides.values())
    assert heard.stages == Counter(Turns.stages(asked))


@pytest.mark.parametrize("apart", [False, True])
def test_timed_sides_are_predicted_once_they_are_open(apart: bool) -> None:
    asked = request("a", "b", "right", checked_against="right", profile="mine", apart=apart)
    sides, heard = compared(asked)
    for label, begin in (("a", ["open", "predict"]), ("b", ["open", "predict"]), ("right", ["open", "turn"])):
        assert [what for who, what, *_ in sides["a"].log if who == label][:2] == begin
    forecast = sides["b"].record.forecast
    assert forecast is not None
    assert forecast.profile == "mine"
    assert heard.stages == Counter(Turns.stages(asked))


def test_one_after_the_other_every_side_does_all_before_the_next_starts() -> None:
    asked = request("a", "b", "right", apart=True, checked_against="right")
    sides, heard = compared(asked)
    assert "".join(dict.fromkeys(who for who, *_ in sides["a"].log)) == "abright"
    assert len({fake.done for fake in sides.values()}) == 1
    assert not any(fake.running for fake in sides.values())
    assert heard.stages == Counter(Turns.stages(asked))


def test_all_sides_warm_up_as_long_as_the_slowest_needs() -> None:
    sides, heard = compared(request("a", "b", warmup=3), b={"settles": 11})
    assert {side.record.warmup for side in sides.values()} == {11 + 8}
    assert "11 iterations of warm-up in place of 3" in heard.notes[0]


def test_apart_a_side_that_settles_late_must_be_asked_for_enough_warm_up() -> None:
    sides, heard = compared(request("a", "b", warmup=3, apart=True), b={"settles": 11})
    assert heard.lost == [("b", "failed")]
    assert "--warmup 11" in (sides["b"].record.ending or pytest.fail("no ending")).reason
    assert len(sides["a"].record.turns) == 8


def test_the_first_side_hands_on_what_the_others_take_over() -> None:
    sides, _ = compared(request("a", "b", "c"))
    assert sides["a"].given == [{}]
    assert sides["b"].given == sides["c"].given == [{"peak": "a", "own": 1}]


def test_another_condition_ends_a_side_before_any_turn() -> None:
    sides, heard = compared(request("a", "b", "c"), b={"weights": "other"})
    ending = sides["b"].record.ending
    assert ending is not None
    assert (ending.status, ending.fair) == ("invalid", False)
    assert "weights differs: other here, w with a" in ending.reason
    assert sides["b"].done == 0
    assert heard.lost == [("b", "invalid")]
    assert len(sides["c"].record.turns) == 8


@pytest.mark.parametrize(("off_from", "turns"), [(2, 0), (10, 8)])
def test_a_series_that_goes_wrong_ends_a_side_whenever_it_does(off_from: int, turns: int) -> None:
    sides, heard = compared(request("a", "b", warmup=4), b={"off_from": off_from})
    assert heard.lost == [("b", "invalid")]
    assert len(sides["b"].record.turns) == turns


def test_a_series_may_part_after_the_iterations_that_were_agreed_on() -> None:
    _, heard = compared(request("a", "b", warmup=4, steps=40), b={"off_from": 20})
    assert heard.lost == []


@pytest.mark.parametrize("stage", ["open", "turn", "inspect"])
def test_a_side_that_fails_is_its_own_affair(stage: str) -> None:
    sides, heard = compared(request("a", "b", "c"), b={"dies_in": stage})
    assert heard.lost == [("b", "failed")]
    assert all(sides[label].record.series["last"] == [5.0] for label in "ac")


def test_without_the_reference_the_first_side_left_says_what_is_right() -> None:
    asked = request("a", "b", "c")
    sides, heard = compared(asked, a={"dies_in": "open"}, c={"weights": "other"})
    assert heard.lost == [("a", "failed"), ("c", "invalid")]
    right = right_record(asked, [side.record for side in sides.values()])
    assert right is sides["b"].record


def test_a_side_that_is_not_timed_does_as_many_iterations_in_one_turn() -> None:
    sides, _ = compared(request("a", "right", steps=6, turns=3, checked_against="right"))
    assert sides["right"].record.turns == []
    assert sides["right"].done == sides["a"].done


def test_sides_are_held_against_the_reference_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are near enough to what is right, but the one claims to be the other."""

    def agreements(suite: SidesSuite, case: Case, reference: Case) -> tuple[Agreement, ...]:
        return (Agreement("loss", 1.0 if reference["who"] == "right" else 0.0),)

    monkeypatch.setattr(SidesSuite, "agreements", agreements)
    sides, heard = compared(request("a", "b", "c", "right", checked_against="right"), b={"off_from": 12})
    assert heard.lost == [("b", "invalid")]
    assert "with a " in (sides["b"].record.ending or pytest.fail("no ending")).reason


def test_if_nothing_runs_nothing_is_right() -> None:
    asked = request("a", "b")
    sides, heard = compared(asked, a={"dies_in": "open"}, b={"dies_in": "open"})
    assert len(heard.lost) == 2
    assert right_record(asked, [side.record for side in sides.values()]) is None
