"""A self-attention block in training form: projections, attention, output projection.

Multi-head, grouped-query and multi-head latent attention, by the shape. Biases and norms of queries
and keys are left out: they are no matrix products, and each model has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ciera_piper_core.models.attention_core import Core, attend
from ciera_piper_core.models.norm import RMSNorm
from ciera_piper_core.models.rotary import rotate_
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from torch import Tensor

    from ciera_piper_core.models.attention_shape import AttentionShape


class CausalAttention(torch.nn.Module):
    """Attention of every token to itself and, unless the core says otherwise, all tokens before it.

    Attributes:
        shape: dimensions.
        core: how scores, softmax and mixing are computed.
        positions: queries and keys are rotated by their positions, and MLA's latents normalised, as
            a whole model has it; without, the block is its matrix products and the core alone.
        weights: by the names of ``AttentionShape.projections``, each ``(out, in)``; uninitialised.
        latent_norms: of MLA's latents, by the projection that reads them; empty without ``positions``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        core: Core | None = None,
        positions: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.core = core or Core()
        self.positions = positions
        self.weights = torch.nn.ParameterDict(
            {name: torch.empty(size, dtype=dtype, device=device) for name, size in shape.projections().items()}
        )
        latents = {"q_up": shape.mla.q_lora, "kv_up": shape.mla.kv_lora} if shape.mla and positions else {}
        self.latent_norms = torch.nn.ModuleDict(
            {name: RMSNorm(width, dtype=dtype, device=device) for name, width in latents.items() if width}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, sequence, hidden)`` to the same shape."""
        with region("attention.qkv"):
            q, k, v = self.qkv(x)
        mixed = attend(self.core, q, k, v)
        with region("attention.output"):
            return F.linear(mixed.transpose(1, 2).flatten(2), self.weights["output"])

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``(b, heads, s, qk_dim)``, keys ``(b, kv_heads, s, qk_dim)``, values ``(b, kv_heads, s, v_dim)``."""
        shape = self.shape
        if shape.mla is not None:
            return self._latent_qkv(x)
        qkv = F.linear(x, self.weights["qkv"])
        if self.positions:
            # In place: the three are views of one tensor, so a rotated copy would be kept beside it.
            qkv = rotate_(qkv, shape.heads + shape.kv_heads, shape.qk_dim, shape.qk_dim)
        heads = torch.unflatten(qkv, 2, (-1, shape.qk_dim)).transpose(1, 2)
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        return q, k, v

    def _latent_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape, mla, weights = self.shape, self.shape.mla, self.weights
        assert mla is not None
        if mla.q_lora:
            q = F.linear(self._normalised("q_up", F.linear(x, weights["q_down"])), weights["q_up"])
        else:
            q = F.linear(x, weights["q"])
        latent, k_rope = torch.split(F.linear(x, weights["kv_down"]), [mla.kv_lora, mla.qk_rope], dim=2)
        if self.positions:
            q = rotate_(q, shape.heads, shape.qk_dim, mla.qk_rope)
            k_rope = rotate_(k_rope.contiguous(), 1, mla.qk_rope, mla.qk_rope)
        kv = F.linear(self._normalised("kv_up", latent), weights["kv_up"])
        kv = torch.unflatten(kv, 2, (shape.heads, -1)).transpose(1, 2)
        k_nope, v = torch.split(kv, [mla.qk_nope, mla.v_head], dim=3)
        k = torch.cat([k_nope, k_rope.unsqueeze(1).expand(-1, shape.heads, -1, -1)], dim=3)
        # Copied: as a view it would keep the keys that it lies beside a second time.
        return torch.unflatten(q, 2, (shape.heads, -1)).transpose(1, 2), k, v.contiguous()

    def _normalised(self, reader: str, latent: Tensor) -> Tensor:
        if reader not in self.latent_norms:
            return latent
        normalised: Tensor = self.latent_norms[reader](latent)
        return normalised
