"""Matrix products and operations of an attention block, whole or one tensor-parallel rank's share; no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.models.architecture import Attention

    Array = NDArray[np.float64]


def local_heads(attention: Attention, tensor_parallel: ArrayLike = 1) -> tuple[Array, Array]:
    """Query heads and key/value heads of one rank; key/value heads are copied where there are fewer than ranks."""
    ranks = np.asarray(tensor_parallel, dtype=np.float64)
    return np.ceil(attention.heads / ranks), np.maximum(1.0, np.ceil(attention.kv_heads / ranks))


def attention_products(
    attention: Attention, hidden: int, tensor_parallel: ArrayLike = 1
) -> tuple[tuple[Array, Array], ...]:
    """``(columns, depth)`` of each projection that every token goes through once.

    Under tensor parallelism the heads are divided; the projections down to the latents of MLA are
    not, every rank computes them whole.
    """
    heads, kv_heads = local_heads(attention, tensor_parallel)
    width = np.asarray(float(hidden))
    queries = heads * attention.qk_dim * (2 if attention.gated else 1)
    output = (width, heads * attention.v_dim)
    mla = attention.mla
    if mla is None:
        return (queries + kv_heads * (attention.qk_dim + attention.v_dim), width), output
    latent = np.asarray(float(mla.kv_lora))
    keys_values = (
        (np.asarray(float(mla.kv_lora + mla.qk_rope)), width),
        (heads * (mla.qk_nope + mla.v_head), latent),
    )
    if not mla.q_lora:
        return (queries, width), *keys_values, output
    rank = np.asarray(float(mla.q_lora))
    return (rank, width), (queries, rank), *keys_values, output


def projection_flops(attention: Attention, hidden: int, tensor_parallel: ArrayLike = 1) -> Array:
    """Forward operations of all projections, a token (a multiply-add counts two)."""
    products = attention_products(attention, hidden, tensor_parallel)
    return np.asarray(sum(2 * columns * depth for columns, depth in products))


def keys_per_query(attention: Attention, sequence: ArrayLike) -> Array:
    """Keys that a query sees, mean over a sequence: with a causal mask its lower triangle, at most the window."""
    length = np.asarray(sequence, dtype=np.float64)
    seen = np.minimum(length, attention.window) if attention.window else length
    if not attention.causal:
        return np.asarray(seen)
    return np.asarray((seen * (seen + 1) / 2 + (length - seen) * seen) / length)


def score_flops(attention: Attention, sequence: ArrayLike, tensor_parallel: ArrayLike = 1) -> Array:
    """Forward operations of ``q k^T`` and of its product with the values, a token."""
    heads, _ = local_heads(attention, tensor_parallel)
    return np.asarray(2 * heads * (attention.qk_dim + attention.v_dim) * keys_per_query(attention, sequence))


def block_flops(attention: Attention, hidden: int, sequence: ArrayLike, tensor_parallel: ArrayLike = 1) -> Array:
    """Forward operations of the whole block, a token: what the ``attention`` suite counts."""
    return projection_flops(attention, hidden, tensor_parallel) + score_flops(attention, sequence, tensor_parallel)
