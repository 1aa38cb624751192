"""Tokens to the ranks of their experts and back: what every way of dispatching has in common, autograd included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic

DROPPED = -1
"""In place of a rank: the choice goes nowhere (its expert was full), and adds nothing to the combined token."""


class Route(Protocol):
    """Where the tokens of one dispatch go; its methods are collective.

    ``n`` tokens of ``k`` choices each leave this rank, ``m`` choices of all ranks arrive at it, in
    order of source rank, token and choice.
    """

    def spread(self, tokens: torch.Tensor) -> torch.Tensor:
        """From ``(n, d)`` on the tokens' ranks to ``(m, d)`` on those of their choices."""

    def collect(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The transpose of ``spread``: from ``(m, d)`` to ``(n, d)``, the sum over each token's choices.

        Args:
            rows: of the precise dtype of ``dtype`` (``precise_dtype``), in which sums are taken.
            dtype: of the result, and of all that is sent.
        """

    def answer(self, numbers: torch.Tensor) -> torch.Tensor:
        """Send one number for each arrived choice back: ``(m,)`` to ``(n, k)``, float32; 0 for dropped choices."""


class Dispatcher(Protocol):
    """A way to dispatch, bound to its ranks."""

    def dispatch(
        self,
        tokens: torch.Tensor,
        expert_rank_of_choice: torch.Tensor,
        weights: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Dispatched:
        """Send each token to the ranks of its choices (collective; differentiable in tokens and weights).

        Args:
            tokens: ``(n, d)``, any dtype, the same ``d`` on all ranks; ``n`` may differ and be 0.
            expert_rank_of_choice: ``(n, k)``, int64: the rank of the group that has the expert, or
                ``DROPPED``; the same ``k`` on all ranks. One rank may be there more than once.
            weights: ``(n, k)``, of the choices, for ``Dispatched.combine``; used in float32. None for 1.
            labels: ``(n, k)``, integers of 32 bits that arrive with the choices, for example which of the
                rank's experts it is. None for 0.

        Raises:
            ValueError: shapes or dtypes that do not belong together, or a rank outside the group.
            RuntimeError: another exchange is under way on the group, or a peer was lost.
        """


@dataclass(frozen=True)
class Dispatched:
    """What arrived at this rank, and the way back.

    Attributes:
        rows: ``(m, d)``: a row for each choice that this rank has the expert of, in order of source
            rank, token and choice, whatever the way of dispatching; differentiable.
        weights: ``(m,)``, float32, of these choices; differentiable. None if none were given.
        labels: ``(m,)``, int64.
        rows_from: how many are from each rank of the group.
        traffic: bytes of this dispatch that left this rank.
    """

    rows: torch.Tensor
    weights: torch.Tensor | None
    labels: torch.Tensor
    rows_from: tuple[int, ...]
    traffic: DispatchTraffic
    _route: Route

    def combine(self, outputs: torch.Tensor) -> torch.Tensor:
        """Bring the experts' outputs back: for each token the weighted sum over its choices (collective).

        Weights are applied, and sums taken, in float32 (float64 for outputs of that dtype); what is
        sent is of the outputs' dtype, so partial sums are rounded to it on their way. Integers are
        summed as they are, and take no weights.

        Args:
            outputs: ``(m, d)`` for the rows, of any ``d`` (the same on all ranks) and floating or integer dtype.

        Returns:
            ``(n, d)``, dtype of ``outputs``: for this rank's tokens, in their order; 0 where all choices were dropped.

        Raises:
            ValueError: another number of rows than arrived.
        """
        if outputs.ndim != 2 or outputs.shape[0] != len(self.labels):
            raise ValueError(
                f"combine takes {len(self.labels)} rows, one for each that arrived, not shape {tuple(outputs.shape)}"
            )
        weighted = outputs.to(precise_dtype(outputs.dtype))
        if self.weights is not None:
            if not outputs.is_floating_point():
                raise ValueError(f"outputs of {outputs.dtype} take no weights; dispatch without them")
            weighted = weighted * self.weights[:, None]
        combined: torch.Tensor = _Combine.apply(  # type: ignore[no-untyped-call]
            _recorded(weighted), self._route, outputs.dtype
        )
        return combined


def dispatched(
    tokens: torch.Tensor,
    weights: torch.Tensor | None,
    first_rows: torch.Tensor,
    first_weights: torch.Tensor,
    labels: torch.Tensor,
    rows_from: tuple[int, ...],
    traffic: DispatchTraffic,
    route: Route,
) -> Dispatched:
    """What a dispatcher hands out, with gradients back to ``tokens`` and ``weights``.

    Args:
        tokens, weights: as given by the caller.
        first_rows, first_weights: what has arrived, without gradients.
    """
    if weights is None:
        rows = _Dispatch.apply(_recorded(tokens), None, first_rows, None, route)  # type: ignore[no-untyped-call]
        return Dispatched(rows[0], None, labels, rows_from, traffic, route)
    rows, row_weights = _Dispatch.apply(  # type: ignore[no-untyped-call]
        _recorded(tokens), _recorded(weights.to(torch.float32)), first_rows, first_weights, route
    )
    return Dispatched(rows, row_weights, labels, rows_from, traffic, route)


def check_choices(
    tokens: torch.Tensor,
    ranks: torch.Tensor,
    weights: torch.Tensor | None,
    labels: torch.Tensor | None,
    world: int,
) -> None:
    """Refuse arguments of ``Dispatcher.dispatch`` that do not belong together.

    Raises:
        ValueError: says which.
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens have shape (n, d) with d above 0, not {tuple(tokens.shape)}")
    if ranks.ndim != 2 or ranks.shape[0] != tokens.shape[0] or ranks.shape[1] == 0:
        raise ValueError(
            f"ranks of choices have shape ({tokens.shape[0]}, k), one row a token, not {tuple(ranks.shape)}"
        )
    if ranks.dtype != torch.int64:
        raise ValueError(f"ranks of choices are int64, not {ranks.dtype}")
    for what, other in (("weights", weights), ("labels", labels)):
        if other is not None and other.shape != ranks.shape:
            raise ValueError(f"{what} have the shape of the choices, {tuple(ranks.shape)}, not {tuple(other.shape)}")
    if weights is not None and weights.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"weights travel as float32; {weights.dtype} would lose digits, convert them first")
    if labels is not None and (labels.is_floating_point() or labels.is_complex()):
        raise ValueError(f"labels are integers, not {labels.dtype}")
    if ranks.numel() and (int(ranks.min()) < DROPPED or int(ranks.max()) >= world):
        wrong = ranks[(ranks < DROPPED) | (ranks >= world)]
        raise ValueError(f"a choice goes to rank {int(wrong[0])}; the group has 0 to {world - 1}, or {DROPPED} to drop")


def precise_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of ``dtype`` are taken in: float32 for narrower floating dtypes, else itself."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def sum_rows(rows: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
    """``out[i]`` is the sum of the rows whose index is i, added in their order: the same bits each time.

    Args:
        rows: ``(m, d)``. index: ``(m,)``, int64, below ``count``.
    """
    total = rows.new_zeros((count, rows.shape[1]))
    if rows.device.type == "cpu":
        return total.index_add_(0, index, rows)
    # On a GPU, additions to one element come in any order; so each pass adds at most one row to each.
    grouped, order = torch.sort(index, stable=True)
    place = torch.arange(len(index), device=index.device) - torch.searchsorted(grouped, grouped)
    for turn in range(int(place.max()) + 1 if len(place) else 0):
        chosen = order[place == turn]
        total.index_add_(0, index[chosen], rows[chosen])
    return total


def _recorded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose use is recorded for backward wherever gradients are, since all ranks must run it or none."""
    if torch.is_grad_enabled() and tensor.is_floating_point() and not tensor.requires_grad:
        return tensor.detach().requires_grad_()
    return tensor


class _Dispatch(torch.autograd.Function):
    """One node of the graph for tokens and weights: its exchanges back come in the same order on all ranks."""

    @staticmethod
    def forward(
        context: Any,
        tokens: torch.Tensor,
        weights: torch.Tensor | None,
        first_rows: torch.Tensor,
        first_weights: torch.Tensor | None,
        route: Route,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        context.route, context.weighted = route, weights is not None
        # Views of what arrived: an input that is returned as it is would be taken for modified in place.
        rows = first_rows.view_as(first_rows)
        if not rows.is_floating_point():
            context.mark_non_differentiable(rows)
        return rows, None if first_weights is None else first_weights.view_as(first_weights)

    @staticmethod
    @once_differentiable
    def backward(
        context: Any, of_rows: torch.Tensor, of_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        of_tokens = None
        with region("moe.dispatch"):
            if of_rows.is_floating_point():
                of_tokens = context.route.collect(of_rows.to(precise_dtype(of_rows.dtype)), of_rows.dtype)
            answered = context.route.answer(of_weights) if context.weighted else None
        return of_tokens, answered, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: torch.Tensor, route: Route, dtype: torch.dtype) -> torch.Tensor:
        context.route = route
        return route.collect(rows, dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        with region("moe.combine"):
            return context.route.spread(gradient).to(precise_dtype(gradient.dtype)), None, None
