"""The core of attention: scores, softmax and mixing of values, fused or written out, recomputed or kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor


@dataclass(frozen=True)
class Core:
    """How the core is computed.

    Attributes:
        flash: by a fused kernel, which writes no scores to memory; otherwise by two matrix products
            and a softmax over ``sequence x sequence`` scores a head in the queries' dtype.
        causal: a token sees no later one.
        window: tokens that a query sees at most, itself among them; 0 for all.
        recompute: the backward pass computes the core again instead of keeping what it made.
    """

    flash: bool = True
    causal: bool = True
    window: int = 0
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.window and not self.causal:
            raise ValueError("a window is counted back from the query: use it with causal attention only")


def attend(core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, scaled by ``1 / sqrt(qk_dim)``.

    Kept for the backward pass: ``q``, ``k``, ``v`` and, without ``recompute``, with flash the output
    and a float32 logarithm a query and head, otherwise the probabilities.

    Args:
        core: how.
        q: ``(batch, heads, sequence, qk_dim)``.
        k, v: ``(batch, kv_heads, keys, qk_dim or v_dim)``; query head ``h`` reads head
            ``h // (heads / kv_heads)``.

    Returns:
        ``(batch, heads, sequence, v_dim)``.
    """
    if core.recompute and torch.is_grad_enabled():
        recomputed: Tensor = checkpoint(_computed, core, q, k, v, use_reentrant=False, preserve_rng_state=False)
        return recomputed
    return _computed(core, q, k, v)


@region("attention.core")
def _computed(core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _fused(core, q, k, v) if core.flash else _written_out(core, q, k, v)


def _fused(core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    windowed = 0 < core.window < k.shape[2]
    if q.device.type == "cpu" and (windowed or v.shape[-1] < q.shape[-1]):
        mixed: Tensor = _PaddedFlash.apply(q, k, v, core)  # type: ignore[no-untyped-call]
        return mixed
    mask = _added_mask(core, q, q.shape[2], k.shape[2]) if windowed else None
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=core.causal and not windowed, enable_gqa=grouped
    )


def _written_out(core: Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, heads, sequence, width = q.shape
    kv_heads = k.shape[1]
    # Copies, so that these are kept and the projections' output is not, whatever the batch.
    # Queries that share a key head lie below each other: keys and values are never repeated.
    q = (q * width**-0.5).reshape(batch * kv_heads, -1, width)
    k, v = (t.clone(memory_format=torch.contiguous_format).flatten(0, 1) for t in (k, v))
    scores = torch.bmm(q, k.mT)
    if core.causal:
        # Added in place and past autograd: a constant changes no gradient, and no mask is kept.
        torch.unflatten(scores.detach(), 1, (-1, sequence)).add_(_added_mask(core, q, sequence, k.shape[1]))
    # Computed in float32 inside, whatever the dtype.
    mixed = torch.bmm(scores.softmax(-1), v)
    return mixed.view(batch, heads, sequence, -1)


def _added_mask(core: Core, like: Tensor, queries: int, keys: int) -> Tensor:
    """What is added to the scores: 0 where a query sees a key, else minus infinity; ``(queries, keys)``."""
    visible = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril_(keys - queries)
    if 0 < core.window < keys:
        visible = visible.triu_(keys - queries - core.window + 1)
    mask = torch.zeros(queries, keys, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(visible.logical_not_(), -torch.inf)


class _PaddedFlash(torch.autograd.Function):
    """Torch's fused CPU kernel for values narrower than keys, and for windows.

    The kernel wants values as wide as keys, and a mask for a window; otherwise torch would write
    the scores to memory. Padding and mask live only while the kernel runs, so what is kept is what
    a kernel without these wants keeps.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, core: Core) -> Tensor:
        padded = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
        out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, padded, 0.0, **_kernel_mask(core, q, k)
        )
        if v.shape[-1] < q.shape[-1]:
            # Copied, in the order that the output projection reads.
            out = out[..., : v.shape[-1]].transpose(1, 2).contiguous().transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.core = core
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, log_sums = ctx.saved_tensors
        width = v.shape[-1]
        gradient, out, wide_v = (F.pad(t, (0, q.shape[-1] - width)) for t in (gradients[0], out, v))
        of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, q, k, wide_v, out, log_sums, 0.0, **_kernel_mask(ctx.core, q, k)
        )
        return of_q, of_k, of_v[..., :width], None


def _kernel_mask(core: Core, q: Tensor, k: Tensor) -> dict[str, Any]:
    """The CPU kernel's arguments: a flag, or a mask where there is a window."""
    if not 0 < core.window < k.shape[2]:
        return {"is_causal": core.causal}
    return {"is_causal": False, "attn_mask": _added_mask(core, q, q.shape[2], k.shape[2])}
