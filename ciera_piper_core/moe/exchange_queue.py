"""All-to-all exchanges one after the other beside the computation, gradients included: they start, and are waited for.

An algorithm carries one exchange at a time. Here any number may be asked for: they run in the order
in which they were asked for, on a thread (CPU) or a stream (CUDA) of the queue's own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.alltoall import AllToAll


class ExchangeQueue:
    """Exchanges of equal shares by one algorithm; every rank asks for the same ones in the same order."""

    def __init__(self, algorithm: AllToAll) -> None:
        """
        Args:
            algorithm: nobody else may use its group meanwhile.
        """
        self.algorithm = algorithm
        self._thread: ThreadPoolExecutor | None = None
        self._stream: Any = None

    def submit(self, send: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Begin to exchange ``send`` for ``out``, contiguous, one equal share a rank; what it returns waits for it.

        Neither tensor may be touched before.
        """
        if send.is_cuda:
            return self._on_stream(send, out)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exchanges")
        result = self._thread.submit(self.algorithm.exchange, send, None, None, out)

        def wait() -> None:
            # Refers to the tensors, which must live as long.
            assert send.shape == out.shape
            result.result()

        return wait

    def close(self) -> None:
        """Wait for what is under way and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _on_stream(self, send: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(send.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(send.device))
        with torch.cuda.stream(stream):
            self.algorithm.exchange(send, None, None, out)
            over = torch.cuda.Event()  # type: ignore[no-untyped-call]
            over.record(stream)
        for tensor in (send, out):
            tensor.record_stream(stream)
        return lambda: torch.cuda.current_stream(send.device).wait_event(over)


class Exchange:
    """One exchange of a queue and, in the backward pass, its reverse.

    Every rank's backward must run the reverse, also where nothing needs a gradient; so the result
    requires one wherever gradients are recorded.
    """

    def __init__(self, queue: ExchangeQueue, name: str) -> None:
        """
        Args:
            name: of the region that its backward pass is marked as; who calls ``start`` and ``finish`` marks these.
        """
        self._queue, self.name = queue, name
        self._wait: Callable[[], None] | None = None

    def start(self, send: torch.Tensor) -> torch.Tensor:
        """A tensor that ``finish`` fills, of the shape of ``send``: equal shares of rows for all ranks."""
        if torch.is_grad_enabled() and not send.requires_grad:
            send = send.detach().requires_grad_()
        begun: torch.Tensor = _Start.apply(send, self)  # type: ignore[no-untyped-call]
        return begun

    def finish(self, begun: torch.Tensor) -> torch.Tensor:
        """What arrived."""
        arrived: torch.Tensor = _Finish.apply(begun, self)  # type: ignore[no-untyped-call]
        return arrived

    def begin(self, send: torch.Tensor) -> torch.Tensor:
        """Begin one direction; the tensor is filled after ``end``."""
        # Detached: the thread records gradients unless it has none to record.
        send = send.detach().contiguous()
        out = torch.empty_like(send)
        self._wait = self._queue.submit(send, out)
        return out

    def end(self) -> None:
        """Wait for it."""
        assert self._wait is not None, "an exchange is begun before it is waited for"
        wait, self._wait = self._wait, None
        wait()


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, send: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        context.exchange = exchange
        return exchange.begin(send)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The gradient is what _Finish has begun to receive.
        with region(context.exchange.name):
            context.exchange.end()
        return gradient, None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, begun: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        context.exchange = exchange
        exchange.end()
        return begun.view_as(begun)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        with region(context.exchange.name):
            return context.exchange.begin(gradient), None
