"""Interleaving: the order of turns, when it ends, confirmation by fresh turns, what an interrupt leaves."""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from bench import interleave
from bench.errors import UsageError
from bench.gate import Frame
from bench.interleave import Interleaving, Watcher, one_at_a_time, planned_looks
from bench.policy import Policy
from bench.suite import Case
from tests.bench.gate_rows import row, samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from bench.gate_result import GateResult
    from bench.store.row import Row


class Clock:
    """Time that only turns let pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Side:
    """Stands for a checkout: every turn takes ten seconds and measures what ``median`` says.

    Attributes:
        median: by case and number of the turn.
    """

    label: str
    median: Callable[[str, int], float]
    clock: Clock
    log: list[tuple[str, int]]
    suites: tuple[str, ...] = ("collectives",)
    ops: tuple[str, ...] = ("one", "two")
    fails: bool = False
    turns: int = field(default=0)
    interrupt_at: int | None = None

    def has_suite(self, suite: str) -> bool:
        return suite in self.suites

    def measure(self, suite: str, cases: Iterable[Mapping[str, Any]] | None) -> list[Row]:
        ops = self.ops if cases is None else [str(case["op"]) for case in cases]
        self.turns += 1
        if self.turns == self.interrupt_at:
            raise KeyboardInterrupt
        self.clock.now += 10.0
        self.log.append((self.label, len(ops)))
        found = []
        for op in ops:
            seed = zlib.crc32(f"{self.label} {op} {self.turns}".encode())
            samples = [] if self.fails else samples_of(self.median(op, self.turns), 10, seed=seed)
            params = {"op": op}
            run = f"{self.label}{self.turns}"
            found.append(row(samples, run_id=run, params=params, case=Case(params).id, suite=suite))
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    found = Clock()
    monkeypatch.setattr(interleave, "time", found)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return found


@dataclass
class Notes(Watcher):
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class Run:
    result: GateResult
    log: list[tuple[str, int]]
    notes: list[str]

    @property
    def verdicts(self) -> dict[str, str]:
        return {str(c.params["op"]): c.verdict for c in self.result.comparisons}


def run(clock: Clock, candidate: Callable[[str, int], float], budget_s: float = 2000.0, **changes: Any) -> Run:
    """Interleave a baseline of 100 with a candidate."""
    log: list[tuple[str, int]] = []
    one = Side("A", changes.pop("baseline", lambda op, turn: 100.0), clock, log)
    other = Side("B", candidate, clock, log)
    for name, value in changes.items():
        setattr(other, name, value)
    watcher = Notes()
    frame = Frame(Policy(), today=date(2027, 1, 1))
    result = Interleaving(one, other, ["collectives"], frame, budget_s, watcher).run()  # type: ignore[arg-type]
    return Run(result, log, watcher.notes)


def test_the_turns_are_a_b_b_a_and_end_when_all_is_settled(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 100.0)
    assert [side for side, _ in found.log] == ["A", "B", "B", "A"] * interleave.FIRST_LOOK
    assert found.verdicts == {"one": "pass", "two": "pass"}
    assert found.result.exit_code == 0


def test_a_slowdown_is_confirmed_by_fresh_turns_of_that_case_alone(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 120.0 if op == "one" else 100.0)
    assert found.verdicts == {"one": "regressed", "two": "pass"}
    (regressed,) = (c for c in found.result.comparisons if c.verdict == "regressed")
    assert (regressed.reason_code, regressed.confirmed) == ("confirmed", True)
    assert [cases for _, cases in found.log] == [2] * 8 + [1] * 8
    assert found.notes == ["1 case(s) look slower; they are measured again from the start"]


def test_a_slowdown_that_is_gone_the_second_time_is_no_regression(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 120.0 if turn <= 4 else 100.0)
    assert set(found.verdicts.values()) == {"inconclusive"}
    assert found.result.exit_code == 3


def test_without_time_to_confirm_nothing_is_a_regression(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 120.0, budget_s=140.0)
    assert len(found.log) == 8 + 4
    assert {c.reason_code for c in found.result.comparisons} == {"unconfirmed"}
    assert found.result.exit_code == 3


def test_the_budget_is_kept(clock: Clock) -> None:
    """Values that jump between turns never settle."""
    began = clock.now
    found = run(
        clock,
        lambda op, turn: 80.0 + 40.0 * (turn % 2),
        baseline=lambda op, turn: 80.0 + 40 * (turn // 2 % 2),
        budget_s=600,
    )
    assert clock.now - began <= 600
    assert set(found.verdicts.values()) <= {"inconclusive", "pass"}


def test_one_quartet_is_measured_whatever_the_budget(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 100.0, budget_s=1.0)
    assert len(found.log) == 4
    assert {c.verdict for c in found.result.comparisons} == {"inconclusive"}
    assert found.result.exit_code == 3


def test_drift_that_both_sides_share_is_no_change(clock: Clock) -> None:
    drift = lambda op, turn: 100.0 * 1.05**turn  # noqa: E731
    assert set(run(clock, drift, baseline=drift).verdicts.values()) == {"pass"}


def test_a_broken_candidate_is_failed_and_not_measured_for_ever(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 100.0, fails=True)
    assert set(found.verdicts.values()) == {"failed"}
    assert found.result.exit_code == 4
    assert len(found.log) <= 8


def test_a_case_that_vanished_is_missing(clock: Clock) -> None:
    assert run(clock, lambda op, turn: 100.0, ops=("one",)).verdicts == {"one": "pass", "two": "missing"}


def test_a_suite_that_only_one_side_has_is_said(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 100.0, suites=())
    assert found.notes == ["only A has the suite collectives"]
    assert set(found.verdicts.values()) == {"missing"}
    frame, side = Frame(Policy()), Side("A", lambda op, turn: 1.0, clock, [], suites=())
    with pytest.raises(UsageError, match="neither side has a suite 'x'"):
        Interleaving(side, side, ["x"], frame, 1.0).run()  # type: ignore[arg-type]


def test_an_interrupt_keeps_and_judges_what_was_measured(clock: Clock) -> None:
    found = run(clock, lambda op, turn: 100.0, interrupt_at=3)
    assert found.result.interrupted
    assert found.result.compared == 2
    assert found.result.exit_code == 4
    assert found.notes == ["interrupted; what was measured is kept and judged"]


@pytest.mark.parametrize(
    ("affordable", "looks"), [(0, ()), (1, ()), (2, ()), (2.5, (2,)), (5, (2, 4)), (8, (2, 4)), (9, (2, 4, 8))]
)
def test_looks_are_planned(affordable: int, looks: tuple[int, ...]) -> None:
    assert planned_looks(affordable) == looks
    assert planned_looks(10**6)[-1] < interleave.MOST_QUARTETS


def test_a_second_gate_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    watcher, entered = Notes(), threading.Event()

    def second() -> None:
        with one_at_a_time(watcher):
            entered.set()

    with one_at_a_time(Watcher()):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.3)
        assert watcher.notes == ["another interleaved gate is measuring on this machine; waiting for it"]
    assert entered.wait(10)
    thread.join()


def test_the_lock_of_a_dead_gate_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pid = os.fork()
    if pid == 0:
        path = tmp_path / f"bench-gate-{os.getuid()}.lock"
        fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(pid, 0)
    watcher = Notes()
    with one_at_a_time(watcher):
        assert watcher.notes == []


def test_an_interrupt_while_waiting_for_another_gate_is_a_result(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            raise BlockingIOError
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", wait)
    found = run(clock, lambda op, turn: 100.0)
    assert (found.result.interrupted, found.result.exit_code, found.log) == (True, 4, [])
    assert found.notes[-1] == "interrupted; nothing was measured"
