"""An all-to-all that gradients go back through: backward is the reverse exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.alltoall.plan import Plan


def differentiable(
    algorithm: AllToAll,
    send: torch.Tensor,
    send_splits: Sequence[int] | None,
    recv_splits: Sequence[int] | None,
) -> torch.Tensor:
    """The received rows, differentiable with respect to ``send`` (collective; so is its backward).

    Every rank's backward must run it too, also on ranks that received nothing: a rank that skips
    it leaves its peers waiting. Its result therefore requires a gradient whenever gradients are
    recorded at all, even if this rank's ``send`` requires none.

    Args:
        send, send_splits, recv_splits: as for ``AllToAll.exchange``.

    Returns:
        Shape ``(sum(recv_splits), *row)``, dtype of ``send``.
    """
    return planned(algorithm, algorithm.plan(send_splits, recv_splits), send)


def planned(algorithm: AllToAll, plan: Plan, send: torch.Tensor) -> torch.Tensor:
    """``differentiable`` with splits that ``algorithm`` has planned, which its backward uses too."""
    if torch.is_grad_enabled() and not send.requires_grad and (send.is_floating_point() or send.is_complex()):
        send = send.detach().requires_grad_()
    received: torch.Tensor = _Exchange.apply(send, algorithm, plan)  # type: ignore[no-untyped-call]
    return received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, send: torch.Tensor, algorithm: AllToAll, plan: Plan) -> torch.Tensor:
        context.algorithm, context.plan = algorithm, plan
        context.sent_rows = send.shape[0]
        rows = send.shape[0] if plan.recv_splits is None else sum(plan.recv_splits)
        received = send.new_empty((rows, *send.shape[1:]))
        algorithm.run(plan, send, received)
        return received

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sent = gradient.new_empty((context.sent_rows, *gradient.shape[1:]))
        context.algorithm.run(context.plan.reverse(), gradient, sent)
        return sent, None, None
