"""Threads that share the work of one call into C, the calling thread among them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Runs a function over items on ``threads`` threads; started when first needed, and again in a forked process.

    Several threads may use one pool at the same time.

    Raises:
        ValueError: less than one thread.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"{threads} threads; at least 1 is needed")
        self.threads = threads
        self._lock = Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """``work`` of each item, in order; the calling thread does the first, and waits for all even if one fails."""
        if len(items) < 2 or self.threads == 1:
            return [work(item) for item in items]
        futures = [self._started().submit(work, item) for item in items[1:]]
        try:
            first = work(items[0])
        finally:
            # C code of the others may still be writing into the caller's tensors.
            for future in futures:
                future.exception()
        return [first, *(future.result() for future in futures)]

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            # A forked process inherits the object, but not its threads.
            if self._executor is None or self._process != os.getpid():
                self._executor = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="ciera")
                self._process = os.getpid()
            return self._executor
