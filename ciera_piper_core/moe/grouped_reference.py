"""One expert written out plainly in double precision: what grouped and looped products are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def reference_expert(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Output of one expert for its tokens, differentiable.

    Args:
        weights: ``up`` and, with three matrices, ``gate``: ``(ffn, hidden)``; ``down``: ``(hidden, ffn)``.
        tokens: ``(tokens, hidden)``.

    Returns:
        ``(tokens, hidden)``, float64.
    """
    w = {name: weight.double() for name, weight in weights.items()}
    up = tokens.double() @ w["up"].T
    if "gate" in w:
        gate = tokens.double() @ w["gate"].T
        inner = gate / (1 + torch.exp(-gate)) * up
    else:
        inner = up.clamp(min=0)
    return inner @ w["down"].T
