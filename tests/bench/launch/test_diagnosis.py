"""A failed rank in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from bench.launch.diagnosis import death_text, last_line, name_stalled, one_line, process_state, where

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited early with status 0"), (3, "status 3"), (-9, "killed by SIGKILL (out of memory"), (-11, "SIGSEGV")],
)
def test_how_a_process_ended(code: int, words: str, tmp_path: Path) -> None:
    assert words in death_text(code, tmp_path / "missing.log")


def test_its_last_words_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(b"Traceback\n  File\nImportError: no module named x\n\n \xff\n\n")
    assert last_line(log) == "�"
    log.write_text("Traceback\nImportError: no module named x\n\n")
    assert death_text(1, log).endswith("last words: ImportError: no module named x")
    log.write_text("y" * 1000)
    assert len(last_line(log)) == 200


def test_state_is_the_kernels() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while process_state(process.pid) != "stopped by a signal" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process_state(process.pid) == "stopped by a signal"
    finally:
        process.kill()
        process.wait()
    assert process_state(process.pid) == "gone"


WAITING = 'Thread 7 (idle): "MainThread"\n    all_reduce (torch/distributed/c10d.py:3)\n    run (suite.py:1)'
BUSY = 'Thread 8 (active): "MainThread"\n    sleep (suite.py:9)\n    all_reduce (torch/distributed/x.py:3)'


def test_those_furthest_behind_hold_the_others_up() -> None:
    positions = {0: ("measure", 5), 1: ("measure", 4), 2: ("check", 9)}
    assert name_stalled(positions, {}) == "rank 1 hangs in iteration 4"
    assert name_stalled({0: ("setup", 0), 1: ("measure", 1)}, {}) == "rank 0 hangs in phase 'setup'"


def test_of_equals_the_one_that_does_not_wait_for_its_peers() -> None:
    positions = dict.fromkeys(range(3), ("measure", 5))
    assert name_stalled(positions, {0: WAITING, 1: BUSY, 2: WAITING}) == "rank 1 hangs in iteration 5"
    assert name_stalled(positions, {0: WAITING, 1: WAITING, 2: WAITING}) == "all ranks hang together"
    assert name_stalled({0: ("measure", 5)}, {0: BUSY}) == "rank 0 hangs in iteration 5"


def test_positions_and_errors_are_one_line() -> None:
    assert where("measure", 3) == "iteration 3"
    assert where("check", 3) == "phase 'check'"
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyError()) == "KeyError"


def raised_from(cause: Exception, words: str) -> RuntimeError:
    error = RuntimeError(words)
    error.__cause__ = cause
    return error


def test_what_an_error_was_raised_from_comes_first() -> None:
    cause = MemoryError("nothing\nleft")
    wrapped = raised_from(raised_from(cause, "stage 1 failed"), "backward failed")
    assert one_line(wrapped) == "MemoryError: nothing left (RuntimeError: backward failed)"
    assert one_line(raised_from(cause, "failed: nothing\nleft")) == "RuntimeError: failed: nothing left"
    circular = raised_from(cause, "round")
    circular.__cause__ = circular
    assert one_line(circular) == "RuntimeError: round"
