"""The thread that keeps an order: first in, first out; errors go to who waits; it ends with its owner."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from ciera_piper_core.allgather.worker import Worker


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def gone(name: str) -> bool:
    deadline = time.monotonic() + 5
    while threads_named(name) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not threads_named(name)


def test_jobs_run_one_after_the_other_in_order() -> None:
    worker = Worker("ordered")
    done: list[int] = []

    def job(number: int) -> int:
        time.sleep(0.005 if number % 2 == 0 else 0)
        done.append(number)
        return number * number

    futures = [worker.submit(lambda number=number: job(number)) for number in range(8)]
    assert [future.result(5) for future in futures] == [number * number for number in range(8)]
    assert done == list(range(8))
    worker.close()
    assert gone("ordered")


def test_an_error_reaches_who_waits_and_the_next_job_runs() -> None:
    worker = Worker("failing")

    def fail() -> None:
        raise KeyError("lost")

    failed, fine = worker.submit(fail), worker.submit(lambda: 3)
    with pytest.raises(KeyError, match="lost"):
        failed.result(5)
    assert fine.result(5) == 3
    worker.close()


def test_no_thread_before_the_first_job_and_none_after_the_owner() -> None:
    worker = Worker("short-lived")
    assert not threads_named("short-lived")
    worker.submit(lambda: None).result(5)
    assert len(threads_named("short-lived")) == 1
    del worker
    gc.collect()
    assert gone("short-lived")


def test_the_thread_keeps_nothing_of_a_finished_job() -> None:
    worker = Worker("forgetful")

    class Held:
        pass

    held = Held()
    watch = weakref.ref(held)
    worker.submit(lambda held=held: None).result(5)
    del held
    worker.submit(lambda: None).result(5)
    assert watch() is None
    worker.close()
