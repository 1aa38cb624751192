"""Tests of exchanges beside the computation: in order, waited for, reversed in the backward pass, errors not lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.moe.exchange_queue import Exchange, ExchangeQueue
from ciera_piper_core.ranges import recording

if TYPE_CHECKING:
    from collections.abc import Callable


class Slow:
    """Stands in for an all-to-all between two ranks of which the other sends the same: halves change places.

    Attributes:
        log: what was exchanged, in order.
    """

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds, self.log, self.busy = seconds, list[float](), False

    def exchange(self, send: torch.Tensor, send_splits: None, recv_splits: None, out: torch.Tensor) -> None:
        assert not self.busy, "one at a time"
        self.busy = True
        time.sleep(self.seconds)
        out.copy_(send.roll(len(send) // 2, 0))
        self.log.append(float(send.flatten()[0]))
        self.busy = False


def queue_of(algorithm: Any) -> ExchangeQueue:
    return ExchangeQueue(algorithm)


def test_exchanges_run_in_the_order_in_which_they_were_asked_for() -> None:
    algorithm = Slow()
    queue = queue_of(algorithm)
    waits: list[Callable[[], None]] = []
    outs = []
    started = time.perf_counter()
    for number in range(4):
        outs.append(torch.empty(2))
        waits.append(queue.submit(torch.tensor([float(number), 9.0]), outs[-1]))
    assert time.perf_counter() - started < algorithm.seconds * 4
    for wait in reversed(waits):
        wait()
    assert algorithm.log == [0, 1, 2, 3]
    assert [out.tolist() for out in outs] == [[9.0, float(number)] for number in range(4)]
    queue.close()


def test_backward_is_the_reverse_and_is_marked() -> None:
    queue = queue_of(Slow())
    exchange = Exchange(queue, "moe.dispatch")
    send = torch.arange(4.0, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    arrived = exchange.finish(exchange.start(send * 1))
    assert arrived.tolist() == [2, 3, 0, 1]
    with recording() as spans:
        (arrived * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert send.grad is not None
    assert send.grad.tolist() == [3, 4, 1, 2]
    assert [span.name for span in spans] == ["moe.dispatch", "moe.dispatch"]
    queue.close()


def test_what_needs_no_gradient_is_exchanged_in_the_backward_pass_too() -> None:
    algorithm = Slow()
    exchange = Exchange(queue_of(algorithm), "moe.dispatch")
    exchange.finish(exchange.start(torch.ones(2))).sum().backward()
    assert len(algorithm.log) == 2


def test_nothing_is_recorded_without_gradients() -> None:
    exchange = Exchange(queue_of(Slow()), "moe.dispatch")
    with torch.no_grad():
        assert not exchange.finish(exchange.start(torch.ones(2))).requires_grad


def test_an_error_comes_out_where_it_is_waited_for() -> None:
    class Broken:
        def exchange(self, *arguments: Any) -> None:
            raise RuntimeError("peer lost")

    wait = queue_of(Broken()).submit(torch.ones(2), torch.empty(2))
    with pytest.raises(RuntimeError, match="peer lost"):
        wait()
