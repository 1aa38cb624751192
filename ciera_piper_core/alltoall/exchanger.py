"""What all algorithms do alike around moving rows: checks, views, claims on the group, work under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.buffers import Buffers, as_units, row_numel
from ciera_piper_core.alltoall.communicators import state_of
from ciera_piper_core.alltoall.counts import checked_splits, verify_splits
from ciera_piper_core.alltoall.in_flight import StreamWork, ThreadedWork
from ciera_piper_core.alltoall.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ciera_piper_core.alltoall import ExchangeWork


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
        _require_tensors(splits, send, out, self._world)
        self._state.call(self._what, lambda: self._run(self._planned(splits), send, out))

    def start(
        self,
        send: torch.Tensor,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
        out: torch.Tensor,
    ) -> ExchangeWork:
        """See ``ciera_piper_core.alltoall.AllToAll.start``."""
        splits = checked_splits(send_splits, recv_splits, self._world)
        _require_tensors(splits, send, out, self._world)
        return self._begin(lambda: self._run(self._planned(splits), send, out), send, out)

    def plan(self, send_splits: Sequence[int] | None, recv_splits: Sequence[int] | None) -> Plan:
        """See ``ciera_piper_core.alltoall.AllToAll.plan``."""
        splits = checked_splits(send_splits, recv_splits, self._world)
        return self._state.call(self._what, lambda: self._planned(splits))

    def run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        """See ``ciera_piper_core.alltoall.AllToAll.run``."""
        _require_tensors((plan.send_splits, plan.recv_splits), send, out, self._world)
        self._state.call(self._what, lambda: self._run(plan, send, out))

    def start_run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> ExchangeWork:
        """See ``ciera_piper_core.alltoall.AllToAll.start_run``."""
        _require_tensors((plan.send_splits, plan.recv_splits), send, out, self._world)
        return self._begin(lambda: self._run(plan, send, out), send, out)

    def _begin(self, body: Callable[[], None], send: torch.Tensor, out: torch.Tensor) -> ExchangeWork:
        self._state.claim(f"{self._what}, started and not yet waited for,")

        def guarded() -> None:
            self._state.guarded(body)

        if send.is_cuda:
            if self._stream is None:
                self._stream = torch.cuda.Stream(send.device)  # type: ignore[no-untyped-call]
            return StreamWork(guarded, self._state.release, self._stream, (send, out))
        return ThreadedWork(guarded, self._state.release, f"all-to-all {self.name}")

    def _planned(self, splits: tuple[tuple[int, ...] | None, tuple[int, ...] | None]) -> Plan:
        send_splits, recv_splits = splits
        if send_splits is None or recv_splits is None:
            return EQUAL_SHARES
        if self._check_splits:
            verify_splits(self._group, send_splits, recv_splits)
        return self._make_plan(send_splits, recv_splits)

    def _run(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        if row_numel(send.shape) == 0:
            return
        self._after_last_use(send)
        with torch.no_grad():
            source = as_units(send)
            if source is None:
                # A copy of its own: contiguous, aligned, and what it seems to be.
                source = as_units(
                    send.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
                )
            target = as_units(out)
            staged = None
            if target is None:
                staged = torch.empty(out.shape, dtype=out.dtype, device=out.device)
                target = as_units(staged)
            assert source is not None, "a fresh copy can be seen as integers"
            assert target is not None, "a fresh tensor can be seen as integers"
            self._move(plan, source, target)
            if staged is not None:
                out.detach().copy_(staged)
        self._note_last_use(send)

    def _after_last_use(self, like: torch.Tensor) -> None:
        """On CUDA, let the current stream wait until the buffers' last user, on whatever stream, is through."""
        if like.is_cuda and self._last_use is not None:
            torch.cuda.current_stream(like.device).wait_event(self._last_use)

    def _note_last_use(self, like: torch.Tensor) -> None:
        if like.is_cuda:
            if self._last_use is None:
                self._last_use = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._last_use.record(torch.cuda.current_stream(like.device))


def _require_tensors(
    splits: tuple[tuple[int, ...] | None, tuple[int, ...] | None], send: torch.Tensor, out: torch.Tensor, world: int
) -> None:
    """Refuse tensors that do not hold what the splits say."""
    if send.dim() == 0 or out.dim() == 0:
        raise ValueError("an exchange moves rows; a tensor without dimensions has none")
    if send.shape[1:] != out.shape[1:] or send.dtype != out.dtype or send.device != out.device:
        raise ValueError(
            f"rows of {tuple(send.shape[1:])} {send.dtype} on {send.device} cannot be received as "
            f"{tuple(out.shape[1:])} {out.dtype} on {out.device}"
        )
    for which, tensor, counts in (("send", send, splits[0]), ("receive", out, splits[1])):
        if counts is None:
            if tensor.shape[0] % world:
                raise ValueError(
                    f"{tensor.shape[0]} rows to {which} are no equal shares for {world} ranks; give splits"
                )
        elif sum(counts) != tensor.shape[0]:
            raise ValueError(f"{which} splits add up to {sum(counts)} rows, but the tensor has {tensor.shape[0]}")
    if splits[0] is None and send.shape[0] != out.shape[0]:
        raise ValueError(f"equal shares of {send.shape[0]} rows cannot be received as {out.shape[0]}; give splits")
    if send.numel() and send.data_ptr() == out.data_ptr():
        raise ValueError("an exchange cannot be done in place; receive into another tensor")
