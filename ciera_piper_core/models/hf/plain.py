"""Families of grouped-query attention whose router is a softmax: Mixtral, Qwen, OLMoE, DBRX, GPT-OSS and their like."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Experts, FeedForward, Layer
from ciera_piper_core.models.hf.blocks import (
    dense_block,
    depth,
    experts,
    gqa,
    hidden_of,
    model,
    predicting,
    qwen_sparse_layers,
    shared_width,
    sparse_layers,
    stack,
    windows,
)

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Attention
    from ciera_piper_core.models.hf.fields import Fields


def by_window(c: Fields, seen: list[int], **settings: object) -> list[Attention]:
    """Attention of each layer that differs from the others by its window alone; settings are those of ``gqa``."""
    made = {window: gqa(c, window=window, **settings) for window in set(seen)}  # type: ignore[arg-type]
    return [made[window] for window in seen]


def mixtral(c: Fields) -> Architecture:
    """``mixtral``."""
    attention = gqa(c, window=c.optional("sliding_window", least=0) or 0)
    moe = Layer(attention, experts=experts(c, c.size("intermediate_size")), norm_parameters=2 * hidden_of(c))
    return model(c, (moe,) * depth(c))


def qwen2_moe(c: Fields) -> Architecture:
    """``qwen2_moe``: biases of queries, keys and values; a gated shared expert."""
    use = c.flag("use_sliding_window")
    below = c.integer("max_window_layers", least=0)
    seen = windows(c, full=lambda index: not (use and index < below and (index + 1) % 2))
    if not use:
        seen = [0] * len(seen)
    mixers = by_window(c, seen, qkv_bias=c.flag("qkv_bias"))
    return _qwen(c, mixers, shared=True)


def qwen3_moe(c: Fields) -> Architecture:
    """``qwen3_moe``, and the text part of ``qwen3_vl_moe`` and of the thinker of ``qwen3_omni_moe``."""
    return _qwen(c, _qwen3_attention(c), shared=False)


def qwen3_omni_moe_talker(c: Fields) -> Architecture:
    """The text part of the talker of ``qwen3_omni_moe``: with a gated shared expert."""
    return _qwen(c, _qwen3_attention(c), shared=True)


def _qwen3_attention(c: Fields) -> list[Attention]:
    bias = c.flag("attention_bias")
    return [gqa(c, qkv_bias=bias, output_bias=bias, norm="head")] * depth(c)


def _qwen(c: Fields, mixers: list[Attention], *, shared: bool) -> Architecture:
    sparse = qwen_sparse_layers(c)
    shared_ffn = c.integer("shared_expert_intermediate_size") if shared else 0
    moe = experts(c, c.size("moe_intermediate_size"), shared_ffn=shared_ffn, shared_gate=shared)
    dense = dense_block(c, sparse, "intermediate_size")
    return model(c, stack(mixers, sparse, moe, dense, norms=2 * hidden_of(c)))


def olmoe(c: Fields) -> Architecture:
    """``olmoe`` and ``flex_olmo``: norms over all heads of queries and keys."""
    bias = c.flag("attention_bias")
    attention = gqa(c, qkv_bias=bias, output_bias=bias, norm="all")
    moe = Layer(attention, experts=experts(c, c.size("intermediate_size")), norm_parameters=2 * hidden_of(c))
    return model(c, (moe,) * depth(c))


def dbrx(c: Fields) -> Architecture:
    """``dbrx``, whose attention and experts have tables of their own."""
    hidden = hidden_of(c)
    ffn, attention = c.part("ffn_config"), c.part("attn_config")
    mixer = gqa(c, head_dim=hidden // c.size("num_attention_heads"), kv_heads=attention.integer("kv_n_heads"))
    moe = experts(c, ffn.size("ffn_hidden_size"), count=ffn.size("num_experts"), top_k=ffn.size("num_experts_per_tok"))
    return model(c, (Layer(mixer, experts=moe, norm_parameters=2 * hidden),) * depth(c))


def llama4(c: Fields) -> Architecture:
    """``llama4_text``: one shared expert as wide as a routed one; norms of queries and keys have no weights."""
    bias = c.flag("attention_bias")
    layers, ffn = depth(c), c.size("intermediate_size")
    attention = gqa(c, qkv_bias=bias, output_bias=bias)
    step = c.integer("interleave_moe_layer_step")
    listed = c.indices("moe_layers")
    with_experts = set(range(step - 1, layers, step) if listed is None else listed)
    sparse = [index in with_experts for index in range(layers)]
    moe = experts(c, ffn, shared_ffn=ffn)
    dense = dense_block(c, sparse, "intermediate_size_mlp")
    return model(c, stack([attention] * layers, sparse, moe, dense, norms=2 * hidden_of(c)))


def gpt_oss(c: Fields) -> Architecture:
    """``gpt_oss``: biases everywhere, and a sink for each head."""
    mixers, moe = _with_sinks(c, windows(c, full=lambda index: bool(index % 2)), causal=True)
    return model(c, stack(mixers, [True] * depth(c), moe, None, norms=2 * hidden_of(c)))


def openai_privacy_filter(c: Fields) -> Architecture:
    """``openai_privacy_filter``: it labels tokens, so it has no projection to the vocabulary."""
    mixers, moe = _with_sinks(c, [c.optional("sliding_window", least=0) or 0] * depth(c), causal=False)
    return model(c, stack(mixers, [True] * depth(c), moe, None, norms=2 * hidden_of(c)), tied=True)


def _with_sinks(c: Fields, seen: list[int], *, causal: bool) -> tuple[list[Attention], Experts]:
    bias = c.flag("attention_bias")
    heads = c.size("num_attention_heads")
    mixers = by_window(c, seen, qkv_bias=bias, output_bias=bias, extra=heads, causal=causal)
    return mixers, experts(c, c.size("intermediate_size"), bias=True, router_extra=c.size("num_experts"))


def phimoe(c: Fields) -> Architecture:
    """``phimoe``: norms with biases."""
    hidden, bias = hidden_of(c), c.flag("attention_bias")
    window = c.optional("sliding_window", least=0) or 0
    attention = gqa(c, qkv_bias=bias, output_bias=bias, window=window)
    moe = Layer(attention, experts=experts(c, c.size("intermediate_size")), norm_parameters=4 * hidden)
    head_bias = c.size("vocab_size") if c.flag("lm_head_bias") else 0
    return model(c, (moe,) * depth(c), extra=hidden + head_bias)


def granitemoe(c: Fields) -> Architecture:
    """``granitemoe``, ``granitemoeshared`` and ``granitemoe_swa``."""
    bias, heads = c.flag("attention_bias"), c.size("num_attention_heads")
    shared = 0 if c.family == "granitemoe" else c.integer("shared_intermediate_size", least=0)
    if c.family == "granitemoe_swa":
        mixers = by_window(
            c, windows(c, full=lambda index: index % 4 == 0), qkv_bias=bias, output_bias=bias, extra=heads
        )
    else:
        mixers = [gqa(c, qkv_bias=bias, output_bias=bias)] * depth(c)
    moe = experts(c, c.size("intermediate_size"), shared_ffn=shared)
    return model(c, stack(mixers, [True] * depth(c), moe, None, norms=2 * hidden_of(c)))


def minimax_m2(c: Fields) -> Architecture:
    """``minimax_m2``: norms over all heads."""
    moe = Layer(gqa(c, norm="all"), experts=experts(c, c.size("intermediate_size")), norm_parameters=2 * hidden_of(c))
    return model(c, (moe,) * depth(c))


def aria(c: Fields) -> Architecture:
    """``aria_text``."""
    bias, ffn = c.flag("attention_bias"), c.size("intermediate_size")
    attention = gqa(c, qkv_bias=bias, output_bias=bias)
    shared, hidden = shared_width(c, ffn), hidden_of(c)
    shared_bias = 2 * shared + hidden if c.flag("mlp_bias") else 0
    moe = experts(c, ffn, shared_ffn=shared, shared_extra=shared_bias)
    return model(c, (Layer(attention, experts=moe, norm_parameters=2 * hidden),) * depth(c))


def cohere2_moe(c: Fields) -> Architecture:
    """``cohere2_moe``: one norm a layer, because attention and experts run side by side."""
    bias, ffn = c.flag("attention_bias"), c.size("intermediate_size")
    first = c.optional("first_k_dense_replace", least=0) or 0
    prefix = c.integer("prefix_dense_sliding_window_pattern")
    pattern = c.integer("sliding_window_pattern")
    seen = windows(
        c, full=lambda index: not (index + 1) % prefix if index < first else not (index - first + 1) % pattern
    )
    sparse = sparse_layers(c, first=first)
    moe = experts(c, ffn, shared_ffn=shared_width(c, ffn))
    width = c.optional("prefix_dense_intermediate_size") or ffn
    mixers = by_window(c, seen, qkv_bias=bias, output_bias=bias)
    return model(c, stack(mixers, sparse, moe, FeedForward(width), norms=hidden_of(c)))


def hunyuan_v1_moe(c: Fields) -> Architecture:
    """``hunyuan_v1_moe``, whose experts a token may be listed for each layer."""
    bias, ffn, layers = c.flag("attention_bias"), c.size("intermediate_size"), depth(c)
    attention = gqa(c, qkv_bias=bias, output_bias=bias, norm="head")
    listed = c.raw("num_experts_per_tok")
    top_k = c.indices("num_experts_per_tok") if isinstance(listed, list) else [c.size("num_experts_per_tok")] * layers
    if top_k is None or len(top_k) != layers:
        raise c.refuse(f"moe_topk names {len(top_k or ())} layers, but the model has {layers}")
    made = {
        k: Layer(attention, experts=experts(c, ffn, top_k=k, shared_ffn=ffn), norm_parameters=2 * hidden_of(c))
        for k in set(top_k)
    }
    return model(c, [made[k] for k in top_k])


def ernie4_5_moe(c: Fields) -> Architecture:
    """``ernie4_5_moe``: experts from one layer to another, at an interval."""
    layers = depth(c)
    start, end = c.integer("moe_layer_start_index", least=0), c.integer("moe_layer_end_index", least=-1)
    every = c.integer("moe_layer_interval")
    last = layers - 1 if end == -1 else end
    sparse = [start <= index <= last and (index + 1) % every == 0 for index in range(layers)]
    return _ernie(c, sparse, c.size("moe_intermediate_size"))


def ernie4_5_vl_moe(c: Fields) -> Architecture:
    """The text part of ``ernie4_5_vl_moe``; its experts for images, which no text token goes to, are left out."""
    widths = c.indices("moe_intermediate_size")
    if widths is not None and len(widths) != 2:
        raise c.refuse(f"moe_intermediate_size is {widths}; it must be a width for text and one for images")
    return _ernie(c, sparse_layers(c, first=1), widths[0] if widths else 1536)


def _ernie(c: Fields, sparse: list[bool], ffn: int) -> Architecture:
    bias, layers = c.flag("use_bias"), depth(c)
    attention = gqa(c, qkv_bias=bias, output_bias=bias, head_dim=hidden_of(c) // c.size("num_attention_heads"))
    shared = shared_width(c, ffn)
    shared_bias = 2 * shared + hidden_of(c) if bias and shared else 0
    moe = experts(c, ffn, router_extra=c.size("num_experts"), shared_ffn=shared, shared_extra=shared_bias)
    dense = dense_block(c, sparse, "intermediate_size", bias=bias)
    head_bias = c.size("vocab_size") if bias and c.family == "ernie4_5_moe" else 0
    return model(c, stack([attention] * layers, sparse, moe, dense, norms=2 * hidden_of(c)), extra=head_bias)


def mellum(c: Fields) -> Architecture:
    """``mellum``: attention as Qwen 3, and layers that predict further tokens."""
    bias = c.flag("attention_bias")
    sparse = sparse_layers(c)
    seen = windows(c, full=lambda index: True)
    mixers = by_window(c, seen, qkv_bias=bias, output_bias=bias, norm="head")
    moe = experts(c, c.size("moe_intermediate_size"))
    dense = dense_block(c, sparse, "intermediate_size")
    layers = stack(mixers, sparse, moe, dense, norms=2 * hidden_of(c))
    window = c.optional("sliding_window", least=0) or 0
    after = Layer(replace(mixers[0], window=window), experts=moe, norm_parameters=2 * hidden_of(c))
    return model(c, layers, mtp=predicting(c, after))


FAMILIES = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_vl_moe_text": qwen3_moe,
    "qwen3_omni_moe_text": qwen3_moe,
    "qwen3_omni_moe_talker_text": qwen3_omni_moe_talker,
    "olmoe": olmoe,
    "flex_olmo": olmoe,
    "dbrx": dbrx,
    "llama4_text": llama4,
    "gpt_oss": gpt_oss,
    "openai_privacy_filter": openai_privacy_filter,
    "phimoe": phimoe,
    "granitemoe": granitemoe,
    "granitemoeshared": granitemoe,
    "granitemoe_swa": granitemoe,
    "minimax_m2": minimax_m2,
    "aria_text": aria,
    "cohere2_moe": cohere2_moe,
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "ernie4_5_moe": ernie4_5_moe,
    "ernie4_5_vl_moe_text": ernie4_5_vl_moe,
    "mellum": mellum,
}
