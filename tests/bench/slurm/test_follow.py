"""Following a job: what is shown, how often Slurm is asked, and what Ctrl-C does."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from bench.errors import LaunchError
from bench.slurm import follow as module
from bench.slurm.client import JobState
from bench.slurm.folder import EXIT_CODE, LOG, Job
from bench.slurm.follow import Detached, LogTail, describe, follow, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RUNNING, DONE = JobState("RUNNING", nodes="n[1-2]"), JobState("COMPLETED")


class FakeSlurm:
    """Answers from a list (the last one for ever), on a clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.job = Job("7", "", "run", folder, folder)
        self.answers: list[JobState | Exception | Callable[[], JobState]] = []
        self.looked_at: list[float] = []
        self.cancelled = 0
        self.said: list[str] = []
        self.now = 0.0
        self.on_sleep: Iterator[object] = iter(())
        monkeypatch.setattr(module, "look", self.look)
        monkeypatch.setattr(module, "cancel", self.cancel)
        monkeypatch.setattr("time.sleep", self.sleep)
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def look(self, job: Job) -> JobState:
        self.looked_at.append(self.now)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def cancel(self, job: Job) -> None:
        self.cancelled += 1
        self.answers = [JobState("CANCELLED")]

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        next(self.on_sleep, None)

    def follow(self) -> JobState:
        return follow(self.job, self.said.append)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(monkeypatch, tmp_path)


def interrupting(number: int = signal.SIGINT) -> JobState:
    os.kill(os.getpid(), number)
    return RUNNING


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", Terminal())


def test_states_and_log_in_order(slurm: FakeSlurm) -> None:
    log = slurm.job.folder / LOG

    def begins() -> JobState:
        log.write_text("one\ntw")
        return RUNNING

    def ends() -> JobState:
        with log.open("a") as file:
            file.write("o\nlast")
        return DONE

    slurm.answers = [JobState("PENDING", "Priority"), JobState("PENDING", "Resources"), begins, RUNNING, ends]
    assert slurm.follow() == DONE
    assert slurm.said == [
        "job 7: PENDING (Priority)",
        "job 7: PENDING (Resources)",
        "one",
        "job 7: RUNNING on n[1-2]",
        "two",
        "job 7: COMPLETED",
        "last",
    ]


def test_slurm_is_asked_less_and_less_until_something_changes(slurm: FakeSlurm) -> None:
    pending = JobState("PENDING", "Resources")
    slurm.answers = [*[pending] * 40, RUNNING, RUNNING, DONE]
    slurm.follow()
    pauses = [round(later - earlier, 3) for earlier, later in zip(slurm.looked_at, slurm.looked_at[1:], strict=False)]
    assert pauses[0] < 1
    assert 19 < max(pauses) < 21
    assert pauses[:39] == sorted(pauses[:39])
    assert pauses[-2] < 1, "a change of state is followed closely again"


def test_the_end_of_the_ranks_is_the_end_of_waiting(slurm: FakeSlurm) -> None:
    slurm.answers = [*[RUNNING] * 40, DONE]
    note = slurm.job.folder / EXIT_CODE
    slurm.on_sleep = (note.write_text("0\n") if slurm.now > 100 and not note.exists() else None for _ in range(10**6))
    slurm.follow()
    after = [moment for moment in slurm.looked_at if moment > 100]
    assert after[0] < 101
    assert after[1] - after[0] < 1


def test_a_controller_that_is_away_for_a_while(slurm: FakeSlurm) -> None:
    away = LaunchError("Slurm does not answer: down")
    slurm.answers = [RUNNING, away, away, away, DONE]
    assert slurm.follow() == DONE
    assert slurm.said.count("job 7: Slurm does not answer: down; asking again") == 1
    slurm.answers = [away]
    with pytest.raises(LaunchError):
        slurm.follow()
    assert slurm.now > 900


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_terminal_an_ending_signal_cancels(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    slurm.answers = [RUNNING, lambda: interrupting(number), RUNNING]
    assert slurm.follow().state == "CANCELLED"
    assert slurm.cancelled == 1
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(("answer", "cancelled"), [("y\n", 1), ("n\n", 0), ("\n", 0), ("", 0)])
def test_at_a_terminal_ctrl_c_asks(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, answer: str, cancelled: int
) -> None:
    at_a_terminal(monkeypatch, answer)
    slurm.answers = [RUNNING, interrupting, RUNNING, DONE]
    assert slurm.follow().state == ("CANCELLED" if cancelled else "COMPLETED")
    assert slurm.cancelled == cancelled


def test_sigterm_asks_nobody(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, "n\n")
    slurm.answers = [lambda: interrupting(signal.SIGTERM), RUNNING]
    assert slurm.follow().state == "CANCELLED"


def test_ctrl_c_instead_of_an_answer_leaves_the_job(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, "")
    monkeypatch.setattr(sys.stdin, "readline", interrupting)
    slurm.answers = [interrupting, RUNNING]
    with pytest.raises(Detached):
        slurm.follow()
    assert slurm.cancelled == 0


def test_a_log_that_drives_terminals_is_text(tmp_path: Path) -> None:
    path = tmp_path / LOG
    tail = LogTail(path)
    assert tail.lines() == []
    path.write_bytes(b"\x1b[31mred\x1b[0m\tend\r\n\xff half")
    assert tail.lines() == ["\\x1b[31mred\\x1b[0m\tend"]
    assert tail.lines(to_the_end=True) == ["\N{REPLACEMENT CHARACTER} half"]
    assert printable("\u202e\x07") == "\\u202e\\x07"


def test_states_in_words() -> None:
    assert describe(JobState("PENDING", "BeginTime", restarts=2)) == "PENDING (BeginTime), restart 2"
    assert describe(JobState("FAILED", "NonZeroExitCode", "n1")) == "FAILED"
