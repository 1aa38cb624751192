"""Families that share their parts with no other: Doge, JetMoE, ZAYA."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Attention, FeedForward, Layer
from ciera_piper_core.models.hf.blocks import depth, experts, gqa, head_width, hidden_of, model

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.models.hf.fields import Fields


def doge(c: Fields) -> Architecture:
    """``doge``: a dynamic mask; dense, or with thousands of experts of width one beside the dense block."""
    hidden, bias, ffn = hidden_of(c), c.flag("attention_bias"), c.size("intermediate_size")
    width = head_width(c)
    kv_heads = c.optional("num_key_value_heads") or c.size("num_attention_heads")
    attention = gqa(
        c,
        qkv_bias=bias,
        output_bias=bias,
        norm="head",
        extra=kv_heads * (2 if bias else 1),
        side_matrices=kv_heads * width * kv_heads,
    )
    dense = FeedForward(ffn, extra_parameters=2 * ffn + hidden if c.flag("mlp_bias") else 0)
    moe = None
    if c.flag("is_moe"):
        count = c.size("num_experts")
        keys = math.isqrt(count)
        moe = experts(c, 1, matrices=2, router_matrices=2 * keys * hidden)
    layer = Layer(attention, experts=moe, dense=dense, norm_parameters=4 * hidden)
    return model(c, (layer,) * depth(c))


def jetmoe(c: Fields) -> Architecture:
    """``jetmoe``: the projections to queries and from the attention's output are experts too."""
    hidden, width, kv_heads = hidden_of(c), c.integer("kv_channels"), c.size("num_key_value_heads")
    count, top_k = c.size("num_experts"), c.size("num_experts_per_tok")
    if top_k > count:
        raise c.refuse(f"num_experts_per_tok is {top_k}, but there are {count} experts")
    attention = gqa(c, heads=top_k * kv_heads, kv_heads=kv_heads, head_dim=width, extra=hidden)
    router = hidden * count
    attention = replace(
        attention,
        inactive_parameters=(count - top_k) * 2 * hidden * kv_heads * width,
        projection_parameters=2 * hidden * width * kv_heads * (top_k + 1) + router,
    )
    moe = experts(c, c.size("intermediate_size"), shared_extra=hidden)
    return model(c, (Layer(attention, experts=moe, norm_parameters=2 * hidden),) * depth(c))


def zaya(c: Fields) -> Architecture:
    """``zaya``: attention over convolved queries and keys; a router of small matrices, which may skip all experts."""
    hidden, heads, kv_heads = hidden_of(c), c.size("num_attention_heads"), c.integer("num_key_value_heads")
    width, bias = head_width(c), c.flag("attention_bias")
    inner, keys = heads * width, kv_heads * width
    mixed = inner + keys
    grouped = mixed * width * c.integer("cca_time1")
    extra = mixed * (c.integer("cca_time0") + 2) + kv_heads
    if bias:
        extra += inner + keys + 2 * (keys // 2) + hidden
    attention = Attention(
        heads,
        kv_heads,
        width,
        width,
        window=c.optional("sliding_window", least=0) or 0,
        extra_parameters=extra,
        projection_parameters=hidden * (inner + keys + 2 * (keys // 2)) + inner * hidden + grouped,
    )
    narrow, count = c.integer("router_hidden_size"), c.size("num_experts")
    router = narrow * (hidden + 2 * narrow + count + 1)
    layers = []
    for first in (True, False):
        moe = experts(
            c,
            c.size("moe_intermediate_size"),
            router_matrices=router,
            router_extra=4 * narrow + (0 if first else narrow),
        )
        layers.append(Layer(attention, experts=moe, norm_parameters=10 * hidden))
    head_bias = c.size("vocab_size") if c.flag("lm_head_bias") else 0
    return model(c, (layers[0], *(layers[1],) * (depth(c) - 1)), extra=2 * hidden + head_bias)


FAMILIES = {"doge": doge, "jetmoe": jetmoe, "zaya": zaya}
