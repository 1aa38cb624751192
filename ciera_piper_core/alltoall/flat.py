"""The flat all-to-all: one library call in which every rank sends to every other directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from ciera_piper_core.alltoall.counts import verify_splits
from ciera_piper_core.alltoall.exchanger import Exchanger
from ciera_piper_core.alltoall.plan import Plan

if TYPE_CHECKING:
    import torch

__all__ = ["FlatAllToAll", "verify_splits"]


class FlatAllToAll(Exchanger):
    """``torch.distributed.all_to_all_single`` behind the interface that all algorithms share."""

    def __init__(self, group: dist.ProcessGroup, *, check_splits: bool = False) -> None:
        super().__init__(group, "flat", check_splits)

    def _make_plan(self, send_splits: tuple[int, ...], recv_splits: tuple[int, ...]) -> Plan:
        return Plan(send_splits, recv_splits)

    def _move(self, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
        send_flat(self._group, plan, send, out)


def send_flat(group: dist.ProcessGroup, plan: Plan, send: torch.Tensor, out: torch.Tensor) -> None:
    """Every rank to every other, in one call."""
    if plan.send_splits is None or plan.recv_splits is None:
        dist.all_to_all_single(out, send, group=group)
    else:
        dist.all_to_all_single(out, send, list(plan.recv_splits), list(plan.send_splits), group=group)
