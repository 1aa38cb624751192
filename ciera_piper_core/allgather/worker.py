"""One thread that does what it is given, in the order in which it was given."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


class Worker:
    """A thread with a queue, started by the first job, so that a process may fork before.

    The thread is a daemon, unlike those of ``ThreadPoolExecutor``: a process whose peer hangs in a
    collective can exit without waiting for the group's timeout.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._end: weakref.finalize[..., Worker] | None = None

    def submit(self, job: Callable[[], R]) -> Future[R]:
        """Queue a job; its future gets what it returns or raises."""
        if self._end is None:
            # The thread knows the queue alone, so that it ends when nobody knows this object any more.
            threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True).start()
            self._end = weakref.finalize(self, self._jobs.put, None)
        future: Future[R] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """End the thread after the jobs that are queued; does not wait for it."""
        if self._end is not None:
            self._end()
            self._end = None


def _run(jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (entry := jobs.get()) is not None:
        future, job = entry
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        # Jobs hold buffers: let go of the last one while waiting for the next.
        del entry, future, job
