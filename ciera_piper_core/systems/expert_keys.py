"""Stacks of experts as one key an expert, so that a checkpoint does not depend on who holds which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


def split(name: str, stack: Tensor, experts: Sequence[int]) -> dict[str, Tensor]:
    """The rows of a stack as ``name.expert``: views.

    Args:
        name: of the stack (``layers.3.routed_experts.experts.up``).
        stack: ``(experts, ...)``.
        experts: their numbers, in the order of rows.

    Raises:
        ValueError: another number of rows.
    """
    if len(stack) != len(experts):
        raise ValueError(f"{name} has {len(stack)} rows for {len(experts)} experts")
    return {f"{name}.{expert}": row for expert, row in zip(experts, stack.unbind(), strict=True)}


def joined(name: str, rows: Mapping[str, Tensor]) -> Tensor:
    """The stack of all experts, in order of their numbers, from rows by key.

    Raises:
        ValueError: a number between is missing.
    """
    missing = [expert for expert in range(len(rows)) if f"{name}.{expert}" not in rows]
    if missing:
        raise ValueError(f"{name}: no rank has expert {missing[0]}")
    return torch.stack([rows[f"{name}.{expert}"] for expert in range(len(rows))])
