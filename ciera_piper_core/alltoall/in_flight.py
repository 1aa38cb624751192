"""Exchanges under way: on a thread of their own for tensors in host memory, on a stream for tensors on a GPU."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadedWork:
    """``body`` on a thread, because phases in host memory need somebody to lead from one to the next."""

    def __init__(self, body: Callable[[], None], finished: Callable[[], None], name: str) -> None:
        """
        Args:
            body: the exchange.
            finished: called once, by the first ``wait``.
            name: of the thread.
        """
        self._body = body
        self._finished: Callable[[], None] | None = finished
        self._error: BaseException | None = None
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        with self._guard:
            finished, self._finished = self._finished, None
        if finished is not None:
            finished()
        if self._error is not None:
            raise self._error


class StreamWork:
    """``body`` enqueued on a stream of its own; ``wait`` makes the current stream wait, not the host."""

    def __init__(
        self,
        body: Callable[[], None],
        finished: Callable[[], None],
        stream: torch.cuda.Stream,
        tensors: tuple[torch.Tensor, ...],
    ) -> None:
        """
        Args:
            body: enqueues the exchange on the current stream.
            finished: called once, by the first ``wait``.
            stream: to enqueue on.
            tensors: that the exchange reads or writes; their memory is not given away before it is over.
        """
        self._finished: Callable[[], None] | None = finished
        self._guard = threading.Lock()
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        try:
            with torch.cuda.stream(stream):
                body()
                for tensor in tensors:
                    tensor.record_stream(stream)
                self._over: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._over.record(stream)
        except BaseException:
            finished()
            raise

    def done(self) -> bool:
        return bool(self._over.query())

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._over)
        with self._guard:
            finished, self._finished = self._finished, None
        if finished is not None:
            finished()
