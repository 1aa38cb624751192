"""Stops all ranks with the same message where any has a number that is none: each may hold another part of a weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from ciera_piper_core.training.health import NonFiniteError, first_non_finite, require_finite_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

T = TypeVar("T")


def stop_at_loss(
    loss: float, step: int, model: torch.nn.Module, group: dist.ProcessGroup, run: Callable[[], object]
) -> None:
    """Return if ``loss`` is finite (collective over ``group`` if not).

    Args:
        loss: of the whole batch, the same on all ranks.
        step: from 0.
        model: of which ranks have parts.
        run: its forward pass once more, collective.

    Raises:
        NonFiniteError: on all ranks, names the first weight of any rank that is not finite; else the first
            module whose output is not, on whichever rank that is.
    """
    if math.isfinite(loss):
        return
    weights = [one.where for one in _everyone(first_non_finite(model), group) if one.what == "weight"]
    if weights:
        names = [name for name, _ in model.named_parameters()]
        raise NonFiniteError(step, min(weights, key=lambda name: names.index(name)), "weight")
    found = _everyone(first_non_finite(model, run), group)
    # Ranks that exchange activations infect each other: of them the earliest is the cause.
    outputs = [one for one in found if one.what == "output"]
    first = min(outputs, key=lambda one: one.place, default=found[0])
    raise NonFiniteError(step, first.where, first.what)


def stop_at_norm(norm: float, step: int, gradients: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> None:
    """Return if the global gradient norm is finite (collective over ``group`` if not).

    Raises:
        NonFiniteError: on all ranks, names the first gradient of the first rank that has one.
    """
    if math.isfinite(norm):
        return
    mine = None
    try:
        require_finite_norm(norm, step, gradients)
    except NonFiniteError as error:
        mine = error.where if error.where in gradients else None
    named = [where for where in _everyone(mine, group) if where is not None]
    raise NonFiniteError(step, named[0] if named else "the sum over all weights", "gradient")


def _everyone(mine: T, group: dist.ProcessGroup) -> list[T]:
    everyone: list[T] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone
