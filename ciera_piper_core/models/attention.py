"""A causal self-attention block in training form: projections, attention, output projection.

Multi-head, grouped-query and multi-head latent attention, by the shape. Bias, normalisation and
rotation are left out: they are no matrix products, and each model has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from torch import Tensor

    from ciera_piper_core.models.attention_shape import AttentionShape


class CausalAttention(torch.nn.Module):
    """Attention of every token to itself and all tokens before it.

    Attributes:
        shape: dimensions.
        weights: by the names of ``AttentionShape.projections``, each ``(out, in)``; uninitialised.
    """

    def __init__(self, shape: AttentionShape, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        self.weights = torch.nn.ParameterDict(
            {name: torch.empty(size, dtype=dtype, device=device) for name, size in shape.projections().items()}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, sequence, hidden)`` to the same shape."""
        with region("attention.qkv"):
            q, k, v = self.qkv(x)
        with region("attention.core"):
            mixed = _attend(q, k, v)
        with region("attention.output"):
            return F.linear(mixed.transpose(1, 2).flatten(2), self.weights["output"])

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``(b, heads, s, qk_dim)``, keys ``(b, kv_heads, s, qk_dim)``, values ``(b, kv_heads, s, v_dim)``."""
        shape = self.shape
        if shape.mla is not None:
            return self._latent_qkv(x)
        heads = torch.unflatten(F.linear(x, self.weights["qkv"]), 2, (-1, shape.qk_dim)).transpose(1, 2)
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        return q, k, v

    def _latent_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape, mla, weights = self.shape, self.shape.mla, self.weights
        assert mla is not None
        q = F.linear(F.linear(x, weights["q_down"]), weights["q_up"]) if mla.q_lora else F.linear(x, weights["q"])
        latent, k_rope = torch.split(F.linear(x, weights["kv_down"]), [mla.kv_lora, mla.qk_rope], dim=2)
        kv = torch.unflatten(F.linear(latent, weights["kv_up"]), 2, (shape.heads, -1)).transpose(1, 2)
        k_nope, v = torch.split(kv, [mla.qk_nope, mla.v_head], dim=3)
        k = torch.cat([k_nope, k_rope.unsqueeze(1).expand(-1, shape.heads, -1, -1)], dim=3)
        return torch.unflatten(q, 2, (shape.heads, -1)).transpose(1, 2), k, v


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention; ``(b, heads, s, v_dim)``."""
    width = v.shape[-1]
    # torch's fused CPU kernel wants values as wide as keys; without it the scores, s x s a head,
    # would be written to memory. The zeros that are added change no result.
    if q.device.type == "cpu" and width < q.shape[-1]:
        v = F.pad(v, (0, q.shape[-1] - width))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)[..., :width]
