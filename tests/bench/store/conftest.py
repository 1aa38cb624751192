"""Stores to test on: rows, runs, and processes that write and die."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from bench.selftest import synthetic_record, synthetic_rows
from bench.store.row import Row, RunRecord
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ROWS_A_CASE = 4
DEAD_PID = 2**22 + 1
"""Above the largest process id that Linux gives."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store without runs."""
    return tmp_path / "store"


class Runs:
    """Makes runs in a store, in any state that a process can leave them in."""

    def record(self, seed: int = 0) -> RunRecord:
        return synthetic_record(seed)

    def rows(self, n: int, seed: int = 0) -> list[Row]:
        return list(synthetic_rows(n, seed))

    def write(self, store: Path, n: int = 8, seed: int = 0, seal: bool = True) -> str:
        """A run of ``n`` rows, sealed or still open by this process; its id."""
        with RunWriter(store, self.record(seed)) as writer:
            append_by_case(writer, self.rows(n, seed))
            if seal:
                writer.seal()
        return writer.record.run_id

    def orphan(self, store: Path, n: int = 8, seed: int = 0) -> str:
        """A run of ``n`` rows whose writer is gone; its id."""
        run_id = self.write(store, n, seed, seal=False)
        edit_header(store / "runs" / f"{run_id}.jsonl", lambda writer: writer | {"pid": DEAD_PID})
        return run_id

    def foreign(self, store: Path, n: int = 8, seed: int = 0) -> str:
        """A run of ``n`` rows that another machine writes, or did; its id."""
        run_id = self.write(store, n, seed, seal=False)
        edit_header(store / "runs" / f"{run_id}.jsonl", lambda writer: writer | {"host": "elsewhere"})
        return run_id


@pytest.fixture
def runs() -> Runs:
    return Runs()


def append_by_case(writer: RunWriter, rows: Sequence[Row]) -> None:
    for start in range(0, len(rows), ROWS_A_CASE):
        writer.append(rows[start : start + ROWS_A_CASE])


def edit_header(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change who wrote a JSONL file."""
    import json

    header, *lines = path.read_text().splitlines(keepends=True)
    record = RunRecord.from_dict(json.loads(header))
    record = replace(record, writer=change(record.writer))
    path.write_text(json.dumps(record.to_dict()) + "\n" + "".join(lines))


@dataclass(frozen=True)
class Ended:
    """How a forked process ended: a signal's number below zero, or its exit code; and what it returned."""

    status: int
    result: Any


class Child:
    """A fork of the test process that does one thing."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            status = 1
            try:
                result = action()
                with os.fdopen(write, "wb") as pipe:
                    pickle.dump(result, pipe)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)

    def wait(self) -> Ended:
        with os.fdopen(self._read, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        return Ended(os.waitstatus_to_exitcode(status), pickle.loads(data) if data else None)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def fork() -> Callable[[Callable[[], Any]], Child]:
    """Start a process that does one thing and returns a picklable value."""
    return Child


FILE_CALLS = ("write", "fsync", "ftruncate", "replace", "unlink")
"""What changes a store: between any two of these a process may die."""


@pytest.fixture
def die_before_call(fork: Callable[[Callable[[], Any]], Child]) -> Callable[[int, Callable[[], Any]], Ended]:
    """Do something in a process that SIGKILL ends right before its n-th call that changes files."""

    def run(n: int, action: Callable[[], Any]) -> Ended:
        def counted() -> Any:
            left = n

            def counting(call: Callable[..., Any]) -> Callable[..., Any]:
                def counted_call(*args: Any, **named: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return call(*args, **named)

                return counted_call

            for name in FILE_CALLS:
                setattr(os, name, counting(getattr(os, name)))
            return action()

        return fork(counted).wait()

    return run
