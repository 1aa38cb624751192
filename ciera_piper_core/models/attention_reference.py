"""Attention written out plainly in double precision: what the fast block is checked against."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ciera_piper_core.models.attention_shape import AttentionShape


def reference_attention(
    shape: AttentionShape, weights: Mapping[str, Tensor], x: Tensor, positions: Sequence[int]
) -> Tensor:
    """Output of the block at some positions of the sequence.

    Only these positions' scores are computed, so long sequences stay affordable. Every step is
    differentiable: autograd of the result gives reference gradients.

    Args:
        shape: dimensions of the block.
        weights: by the names of ``AttentionShape.projections``; used in float64.
        x: ``(batch, sequence, hidden)``; used in float64.
        positions: of the sequence, each once.

    Returns:
        ``(batch, len(positions), hidden)``, float64.
    """
    w = {name: weight.double() for name, weight in weights.items()}
    x = x.double()
    at = torch.tensor(list(positions), device=x.device)
    queries = x[:, at]
    batch, sequence, _ = x.shape
    if shape.mla is None:
        ends = [shape.heads * shape.qk_dim, (shape.heads + shape.kv_heads) * shape.qk_dim]
        w_q, w_k, w_v = w["qkv"].tensor_split(ends)
        q = (queries @ w_q.T).view(batch, len(at), shape.heads, shape.qk_dim)
        # Query head h reads key/value head h // (heads / kv_heads).
        share = shape.heads // shape.kv_heads
        k = (x @ w_k.T).view(batch, sequence, shape.kv_heads, shape.qk_dim).repeat_interleave(share, dim=2)
        v = (x @ w_v.T).view(batch, sequence, shape.kv_heads, shape.v_dim).repeat_interleave(share, dim=2)
    else:
        mla = shape.mla
        q = queries @ w["q_down"].T @ w["q_up"].T if mla.q_lora else queries @ w["q"].T
        q = q.view(batch, len(at), shape.heads, shape.qk_dim)
        down = x @ w["kv_down"].T
        up = (down[..., : mla.kv_lora] @ w["kv_up"].T).view(batch, sequence, shape.heads, -1)
        rotated = down[:, :, None, mla.kv_lora :].expand(-1, -1, shape.heads, -1)
        k = torch.cat([up[..., : mla.qk_nope], rotated], dim=-1)
        v = up[..., mla.qk_nope :]
    scores = torch.einsum("bphd,bshd->bhps", q, k) / math.sqrt(shape.qk_dim)
    later = torch.arange(sequence, device=x.device) > at[:, None]
    probabilities = scores.masked_fill(later, -math.inf).softmax(dim=-1)
    mixed = torch.einsum("bhps,bshd->bphd", probabilities, v)
    return mixed.reshape(batch, len(at), -1) @ w["output"].T
