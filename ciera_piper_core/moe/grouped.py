"""The experts' feed-forward products over tokens sorted by expert: grouped, and one expert at a time.

Expert ``e`` computes ``down_e(act(gate_e(x)) * up_e(x))`` with SiLU and three matrices, or
``down_e(relu(up_e(x)))`` with two; the router's weight of a token, if given, multiplies what goes
into ``down_e``. Tokens come sorted by expert, and an expert may have none.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ciera_piper_core.moe.activation import activate
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Experts(torch.nn.Module):
    """Weights of the experts that one rank holds, stacked; uninitialised.

    Attributes:
        up, gate: ``(experts, ffn, hidden)``; ``gate`` is None with two matrices an expert.
        down: ``(experts, hidden, ffn)``.

    Raises:
        ValueError: neither two nor three matrices an expert.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        ffn: int,
        matrices: int = 3,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if matrices not in (2, 3):
            raise ValueError(f"an expert has 2 or 3 matrices, not {matrices}")

        def stack(rows: int, columns: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(experts, rows, columns, dtype=dtype, device=device))

        self.up = stack(ffn, hidden)
        self.gate = stack(ffn, hidden) if matrices == 3 else None
        self.down = stack(hidden, ffn)


def group_ends(counts: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Where each expert's tokens end, as the grouped product wants it: int32, shape ``(experts,)``."""
    return torch.tensor(list(accumulate(counts)), dtype=torch.int32, device=device)


def grouped_experts(experts: Experts, tokens: Tensor, ends: Tensor, weights: Tensor | None = None) -> Tensor:
    """All experts in one grouped product a matrix.

    Args:
        experts: the weights.
        tokens: ``(tokens, hidden)``, sorted by expert; a row is a multiple of 16 bytes long.
        ends: :func:`group_ends` of the tokens an expert, on the tokens' device; the last is ``tokens``.
        weights: of each token, float32, ``(tokens,)``; None for 1.

    Returns:
        ``(tokens, hidden)``, in the same order.
    """
    with region("experts.up"):
        up = F.grouped_mm(tokens, experts.up.mT, offs=ends)
        gate = None if experts.gate is None else F.grouped_mm(tokens, experts.gate.mT, offs=ends)
        inner = activate(up, gate, weights)
    with region("experts.down"):
        return F.grouped_mm(inner, experts.down.mT, offs=ends)


def looped_experts(experts: Experts, tokens: Tensor, counts: Sequence[int], weights: Tensor | None = None) -> Tensor:
    """The experts one after the other, one matrix product each a matrix.

    Args:
        experts: the weights.
        tokens: ``(tokens, hidden)``, sorted by expert.
        counts: tokens of each expert, on the host; an expert without tokens costs nothing.
        weights: of each token, float32, ``(tokens,)``; None for 1.

    Returns:
        ``(tokens, hidden)``, in the same order.
    """
    # Unbound once: indexing expert by expert would give each a gradient as large as the whole stack.
    ups, downs = experts.up.unbind(), experts.down.unbind()
    gates = None if experts.gate is None else experts.gate.unbind()
    shares = [None] * len(counts) if weights is None else torch.split(weights, list(counts))
    parts = []
    for expert, (part, share) in enumerate(zip(torch.split(tokens, list(counts)), shares, strict=True)):
        if not len(part):
            continue
        with region("experts.up"):
            up = F.linear(part, ups[expert])
            gate = None if gates is None else F.linear(part, gates[expert])
            inner = activate(up, gate, share)
        with region("experts.down"):
            parts.append(F.linear(inner, downs[expert]))
    return torch.cat(parts) if parts else tokens.new_empty(tokens.shape)
