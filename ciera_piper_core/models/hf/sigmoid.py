"""Families of grouped-query attention with shared experts and dense first layers, after DeepSeek's router."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from ciera_piper_core.models.hf.plain import by_window

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Attention
    from ciera_piper_core.models.hf.fields import Fields


def glm4_moe(c: Fields) -> Architecture:
    """``glm4_moe``, ``glm4v_moe_text`` and ``sarvam_moe``."""
    normed = c.family != "glm4v_moe_text" and c.flag("use_qk_norm")
    attention = gqa(c, qkv_bias=c.flag("attention_bias"), norm="head" if normed else "none")
    sparse = sparse_layers(c, first=c.integer("first_k_dense_replace", least=0))
    return _deepseek_like(c, [attention] * depth(c), sparse)


def dots1(c: Fields) -> Architecture:
    """``dots1``."""
    bias = c.flag("attention_bias")
    from_layer = c.optional("max_window_layers", least=0) or 0
    mixers = by_window(
        c, windows(c, full=lambda index: index < from_layer), qkv_bias=bias, output_bias=bias, norm="head"
    )
    sparse = sparse_layers(c, first=c.optional("first_k_dense_replace", least=0) or 0)
    return _deepseek_like(c, mixers, sparse)


def solar_open(c: Fields) -> Architecture:
    """``solar_open``: experts in every layer."""
    return _deepseek_like(c, [gqa(c, qkv_bias=c.flag("attention_bias"))] * depth(c), [True] * depth(c))


def exaone_moe(c: Fields) -> Architecture:
    """``exaone_moe``."""
    pattern = c.integer("sliding_window_pattern")
    seen = windows(c, full=lambda index: not (index + 1) % pattern)
    sparse = sparse_layers(c, first=c.integer("first_k_dense_replace", least=0))
    return _deepseek_like(c, by_window(c, seen, norm="head"), sparse)


def hy_v3(c: Fields) -> Architecture:
    """``hy_v3``."""
    bias, mlp_bias = c.flag("attention_bias"), c.flag("mlp_bias")
    attention = gqa(c, qkv_bias=bias, output_bias=bias, norm="head")
    return _deepseek_like(c, [attention] * depth(c), sparse_layers(c, first=1), mlp_bias=mlp_bias)


def ocr_text(c: Fields) -> Architecture:
    """``deepseek_ocr2_text`` and ``unlimited_ocr_text``: plain attention with DeepSeek's experts."""
    bias = c.flag("attention_bias")
    attention = gqa(c, qkv_bias=bias, output_bias=bias, head_dim=hidden_of(c) // c.size("num_attention_heads"))
    first = 0
    if c.raw("mlp_layer_types") is None:
        # The one class takes one dense layer, the other wants the list.
        given = c.optional("first_k_dense_replace", least=0)
        if given is None and c.family == "deepseek_ocr2_text":
            raise c.refuse(
                "it lacks mlp_layer_types (also read as first_k_dense_replace), which has no default; add it"
            )
        first = 1 if given is None else given
    return _deepseek_like(c, [attention] * depth(c), sparse_layers(c, first=first), mlp_bias=c.flag("mlp_bias"))


def afmoe(c: Fields) -> Architecture:
    """``afmoe``: a gate on the attention's output, four norms a layer, a trained bias of the router."""
    every = c.integer("global_attn_every_n_layers")
    bias = c.flag("attention_bias")
    mixers = by_window(
        c,
        windows(c, full=lambda index: not (index + 1) % every),
        qkv_bias=bias,
        output_bias=bias,
        norm="head",
        gated=True,
    )
    sparse = sparse_layers(c, first=c.integer("num_dense_layers", least=0))
    return _deepseek_like(c, mixers, sparse, norms=4, router_extra=c.size("num_experts"))


def beam(c: Fields) -> Architecture:
    """``beam``: a gate on the attention's output with a bias a head, four norms a layer, no shared experts."""
    layers, bias = depth(c), c.flag("attention_bias")
    mixers = by_window(
        c,
        windows(c, full=lambda index: not (index + 1) % 6 or index == layers - 1),
        qkv_bias=bias,
        output_bias=bias,
        norm="head",
        gated=True,
        extra=c.size("num_attention_heads"),
    )
    sparse = sparse_layers(c, first=min(3, layers))
    return _deepseek_like(c, mixers, sparse, norms=4, shared=0)


def flint(c: Fields) -> Architecture:
    """``flint``: a sink for each head, and one shared expert without a gate."""
    layers, bias = depth(c), c.flag("attention_bias")
    seen = windows(c, full=lambda index: index < 2 or index % 4 == 1 or index == layers - 1)
    mixers = by_window(c, seen, qkv_bias=bias, output_bias=bias, norm="head", extra=c.size("num_attention_heads"))
    sparse = qwen_sparse_layers(c)
    if c.indices("mlp_only_layers") is None:
        sparse = [has_experts and index > 1 for index, has_experts in enumerate(sparse)]
    return _deepseek_like(c, mixers, sparse, shared=c.integer("shared_expert_intermediate_size"))


def kolibri1(c: Fields) -> Architecture:
    """``kolibri1``: four norms a layer."""
    mixers = by_window(c, windows(c, full=lambda index: not (index + 1) % 5), norm="head")
    shared = c.integer("shared_expert_intermediate_size")
    return _deepseek_like(c, mixers, [True] * depth(c), norms=4, shared=shared)


def laguna(c: Fields) -> Architecture:
    """``laguna``: heads that differ by layer, a gate on the attention's output, a trained bias of the router."""
    layers, bias = depth(c), c.flag("attention_bias")
    same = c.size("num_attention_heads")
    heads = c.indices("num_attention_heads_per_layer") or [same] * layers
    if len(heads) != layers:
        raise c.refuse(f"num_attention_heads_per_layer names {len(heads)} layers, but the model has {layers}")
    seen = windows(c, full=lambda index: True)
    a_head = c.raw("gating") is True or c.raw("gating") == "per-head"
    made: dict[tuple[int, int], Attention] = {}
    for window, count in set(zip(seen, heads, strict=True)):
        made[window, count] = gqa(
            c,
            heads=count,
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            norm="head",
            gated=not a_head,
            side_matrices=hidden_of(c) * count if a_head else 0,
        )
    mixers = [made[key] for key in zip(seen, heads, strict=True)]
    return _deepseek_like(
        c,
        mixers,
        sparse_layers(c, first=1),
        router_extra=c.size("num_experts"),
        shared=c.integer("shared_expert_intermediate_size"),
    )


def mimo_v2_flash(c: Fields) -> Architecture:
    """``mimo_v2_flash``: layers with a window have twice the key/value heads, and sinks."""
    layers, bias = depth(c), c.flag("attention_bias")
    kinds = c.types("layer_types", layers, {"full_attention", "sliding_attention"}) or [
        "full_attention" if index == 0 or not (index + 1) % 6 else "sliding_attention" for index in range(layers)
    ]
    heads, kv_heads = c.size("num_attention_heads"), c.integer("num_key_value_heads")
    v_dim = c.integer("v_head_dim")
    past = c.optional("sliding_window_size", least=0)
    window = past + 1 if past is not None else c.optional("sliding_window", least=0) or 0
    made = {
        "full_attention": gqa(c, v_dim=v_dim, qkv_bias=bias),
        "sliding_attention": gqa(c, v_dim=v_dim, qkv_bias=bias, kv_heads=2 * kv_heads, extra=heads, window=window),
    }
    return _deepseek_like(c, [made[kind] for kind in kinds], sparse_layers(c, first=1), shared=0)


def step3p5(c: Fields) -> Architecture:
    """``step3p5``, the text part of ``step3p7``: a gate a head, more heads in layers with a window."""
    layers = depth(c)
    mtp = c.optional("num_nextn_predict_layers", least=0) or 0
    kinds = c.items("layer_types")
    if kinds is not None and mtp and len(kinds) == layers + mtp:
        # Older configurations list the predicting layers too.
        kinds = kinds[:layers]
    kinds = kinds or ["full_attention"] * layers
    if len(kinds) != layers:
        raise c.refuse(f"layer_types names {len(kinds)} layers, but the model has {layers}")
    heads = c.size("num_attention_heads")
    other = c.part("attention_other_setting")
    sliding_heads = c.optional("num_sliding_attention_heads") or other.optional("num_attention_heads") or heads
    window, hidden = c.optional("sliding_window", least=0) or 0, hidden_of(c)
    bias = c.flag("attention_bias")
    made = {
        "full_attention": gqa(c, qkv_bias=bias, output_bias=bias, norm="head", side_matrices=hidden * heads),
        "sliding_attention": gqa(
            c,
            heads=sliding_heads,
            qkv_bias=bias,
            output_bias=bias,
            norm="head",
            side_matrices=hidden * sliding_heads,
            window=window,
        ),
    }
    unknown = set(kinds) - made.keys()
    if unknown:
        raise c.refuse(f"layer_types has {unknown.pop()!r}; known: {', '.join(made)}")
    if c.items("mlp_layer_types") is None:
        listed = c.raw("moe_layers_enum")
        named = listed.split(",") if isinstance(listed, str) else listed
        with_experts = set(range(3, layers)) if named is None else {int(index) for index in named}
        sparse = [index in with_experts for index in range(layers)]
    else:
        sparse = sparse_layers(c)
    shared = c.integer("share_expert_dim")
    return _deepseek_like(c, [made[kind] for kind in kinds], sparse, shared=shared, mlp_bias=c.flag("mlp_bias"))


def minimax_m3(c: Fields) -> Architecture:
    """``minimax_m3_vl_text``: an indexer in the layers of sparse attention."""
    layers, hidden = depth(c), hidden_of(c)
    older = c.part("sparse_attention_config")
    kinds = c.types("layer_types", layers, {"full_attention", "minimax_m3_sparse"})
    listed = older.items("sparse_attention_freq")
    if kinds is None:
        kinds = ["minimax_m3_sparse" if flag else "full_attention" for flag in listed or [0] * layers]
    heads = older.optional("sparse_num_index_heads") or c.integer("index_n_heads")
    width = older.optional("sparse_index_dim") or c.integer("index_head_dim")
    indexer = hidden * width * (heads + 1)
    made = {
        "full_attention": gqa(c, norm="head"),
        "minimax_m3_sparse": gqa(c, norm="head", side_matrices=indexer, extra=2 * width),
    }
    frequency = c.items("moe_layer_freq")
    sparse = sparse_layers(c)
    if frequency is not None and c.items("mlp_layer_types") is None:
        sparse = [bool(flag) for flag in frequency]
    moe = experts(c, c.size("intermediate_size"), shared_ffn=c.integer("shared_intermediate_size"))
    dense = dense_block(c, sparse, "dense_intermediate_size")
    return model(c, stack([made[kind] for kind in kinds], sparse, moe, dense, norms=2 * hidden))


def muse_spark(c: Fields) -> Architecture:
    """``muse_spark_text``: experts of a narrower width, a gate on the attention and on each residual."""
    layers, hidden, bias = depth(c), hidden_of(c), c.flag("attention_bias")
    seen = windows(c, full=lambda index: not (layers - 1 - index) % 4)
    mixers = by_window(c, seen, qkv_bias=bias, output_bias=bias, gated=True)
    width = c.integer("moe_hidden_size")
    sparse = sparse_layers(c)
    moe = experts(c, c.size("moe_intermediate_size"), expert_hidden=width, shared_extra=2 * width)
    dense = dense_block(c, sparse, "intermediate_size")
    return model(c, stack(mixers, sparse, moe, dense, norms=5 * hidden))


def _deepseek_like(
    c: Fields,
    mixers: list[Attention],
    sparse: list[bool],
    *,
    norms: int = 2,
    router_extra: int = 0,
    shared: int | None = None,
    mlp_bias: bool = False,
) -> Architecture:
    """Experts and dense blocks around these mixers.

    Args:
        norms: of a layer, each as wide as the residual stream.
        shared: width of the shared experts; by ``n_shared_experts`` where None.
    """
    hidden = hidden_of(c)
    ffn = c.size("moe_intermediate_size")
    if shared is None:
        shared = shared_width(c, ffn)
    shared_bias = 2 * shared + hidden if mlp_bias and shared else 0
    moe = experts(c, ffn, router_extra=router_extra, shared_ffn=shared, shared_extra=shared_bias)
    dense = dense_block(c, sparse, "intermediate_size", bias=mlp_bias)
    layers = stack(mixers, sparse, moe, dense, norms=norms * hidden)
    return model(c, layers, mtp=predicting(c, layers[-1]))


FAMILIES = {
    "glm4_moe": glm4_moe,
    "glm4v_moe_text": glm4_moe,
    "sarvam_moe": glm4_moe,
    "dots1": dots1,
    "solar_open": solar_open,
    "exaone_moe": exaone_moe,
    "hy_v3": hy_v3,
    "deepseek_ocr2_text": ocr_text,
    "unlimited_ocr_text": ocr_text,
    "afmoe": afmoe,
    "beam": beam,
    "flint": flint,
    "kolibri1": kolibri1,
    "laguna": laguna,
    "mimo_v2_flash": mimo_v2_flash,
    "step3p5": step3p5,
    "minimax_m3_vl_text": minimax_m3,
    "muse_spark_text": muse_spark,
}
