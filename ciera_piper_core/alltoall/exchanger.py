"""What all algorithms do alike around moving rows: checks, views, claims on the group, work under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.buffers import Buffers
from ciera_piper_core.alltoall.communicators import state_of
from ciera_piper_core.alltoall.counts import checked_splits, verify_splits
from ciera_piper_core.alltoall.in_flight import StreamWork, ThreadedWork
from ciera_piper_core.alltoall.plan import Plan
from ciera_piper_core.alltoall.views import Views, make_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ciera_piper_core.alltoall import ExchangeWork
    from ciera_piper_core.alltoall.views import BothSplits

EQUAL_SHARES = Plan(None, None)


class Exchanger(ABC):
    """An algorithm of ``ciera_piper_core.alltoall.AllToAll``, but for the two steps that differ."""

    fallback_reason: str | None = None

    def __init__(self, group: dist.ProcessGroup, name: str, check_splits: bool) -> None:
        self.name = name
        self._what = f"an exchange by {name}"
        self._group = group
        self._state = state_of(group)
        self._world = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        self._check_splits = check_splits
        self._buffers = Buffers()
        self._views: Views | None = None
        self._stream: torch.cuda.Stream | None = None
        self._last_use: torch.cuda.Event | None = None

    @abstractmethod
    def _make_plan(self, send_splits: tuple[int, ...], recv_splits: tuple[int, ...]) -> Plan:
        """The plan for splits that are not equal shares (collective)."""

    @abstractmethod
    def _move(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        """Move rows; both tensors are contiguous, shape ``(rows, units)``, of an integer dtype."""

    def exchange(
        self,
        send: torch.Tensor,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
        out: torch.Tensor,
    ) -> None:
        """See ``ciera_piper_core.alltoall.AllToAll.exchange``."""
        splits = checked_splits(send_splits, recv_splits, self._world)
        views = self._views_of(splits, send, out)
        self._state.call(self._what, lambda: self._run(self._planned(splits), views, send, out))

    def start(
        self,
        send: torch.Tensor,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
        out: torch.Tensor,
    ) -> ExchangeWork:
        """See ``ciera_piper_core.alltoall.AllToAll.start``."""
        splits = checked_splits(send_splits, recv_splits, self._world)
        views = self._views_of(splits, send, out)
        return self._begin(lambda: self._run(self._planned(splits), views, send, out), send, out)

    def plan(self, send_splits: Sequence[int] | None, recv_splits: Sequence[int] | None) -> Plan:
        """See ``ciera_piper_core.alltoall.AllToAll.plan``."""
        splits = checked_splits(send_splits, recv_splits, self._world)
        return self._state.call(self._what, lambda: self._planned(splits))

    def run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        """See ``ciera_piper_core.alltoall.AllToAll.run``."""
        views = self._views_of((plan.send_splits, plan.recv_splits), send, out)
        self._state.call(self._what, lambda: self._run(plan, views, send, out))

    def start_run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> ExchangeWork:
        """See ``ciera_piper_core.alltoall.AllToAll.start_run``."""
        views = self._views_of((plan.send_splits, plan.recv_splits), send, out)
        return self._begin(lambda: self._run(plan, views, send, out), send, out)

    def _begin(self, body: Callable[[], None], send: torch.Tensor, out: torch.Tensor) -> ExchangeWork:
        self._state.claim(f"{self._what}, started and not yet waited for,")

        def guarded() -> None:
            self._state.guarded(body)

        if send.is_cuda:
            if self._stream is None:
                self._stream = torch.cuda.Stream(send.device)  # type: ignore[no-untyped-call]
            return StreamWork(guarded, self._state.release, self._stream, (send, out))
        return ThreadedWork(guarded, self._state.release, f"all-to-all {self.name}")

    def _planned(self, splits: BothSplits) -> Plan:
        send_splits, recv_splits = splits
        if send_splits is None or recv_splits is None:
            return EQUAL_SHARES
        if self._check_splits:
            verify_splits(self._group, send_splits, recv_splits)
        return self._make_plan(send_splits, recv_splits)

    def _views_of(self, splits: BothSplits, send: torch.Tensor, out: torch.Tensor) -> Views:
        """The tensors as rows of integers, checked against the splits; those of the last exchange if it is the same."""
        if self._views is None or not self._views.are_of(splits, send, out):
            self._views = make_views(splits, send, out, self._world)
        return self._views

    def _run(self, plan: Plan, views: Views, send: torch.Tensor, out: torch.Tensor) -> None:
        if views.nothing:
            return
        on_gpu = send.is_cuda
        if on_gpu and self._last_use is not None:
            # The buffers' last user may have been on another stream.
            torch.cuda.current_stream(send.device).wait_event(self._last_use)
        # Integers record no gradients, so nothing need be switched off here.
        if self._world == 1:
            # All a rank sends is its own; a backend takes as long to find that out as to send something small.
            if plan.send_splits != plan.recv_splits:
                raise ValueError(f"a rank alone sends itself {plan.send_splits} rows and expects {plan.recv_splits}")
            views.target(out).copy_(views.source(send))
        else:
            self._move(plan, views.source(send), views.target(out))
        views.finish(out)
        if on_gpu:
            if self._last_use is None:
                self._last_use = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._last_use.record(torch.cuda.current_stream(send.device))
