"""Families that mix attention with recurrences: Mamba, gated delta nets, lightning attention, short convolutions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import FeedForward, Layer, Recurrence
from ciera_piper_core.models.hf.blocks import (
    dense_block,
    depth,
    experts,
    gqa,
    head_width,
    hidden_of,
    latent,
    model,
    predicting,
    qwen_sparse_layers,
    shared_width,
    sparse_layers,
    stack,
    with_matrices,
)

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Attention
    from ciera_piper_core.models.hf.fields import Fields

LINEAR_OR_FULL = frozenset({"linear_attention", "full_attention"})


def gated_delta_net(c: Fields) -> Recurrence:
    """The linear attention of Qwen 3 Next and later."""
    hidden = hidden_of(c)
    key_heads, value_heads = c.integer("linear_num_key_heads"), c.integer("linear_num_value_heads")
    value_width = c.integer("linear_value_head_dim")
    keys, values = key_heads * c.integer("linear_key_head_dim"), value_heads * value_width
    mixed = 2 * keys + values
    # Queries, keys, values and the gate; write strength and decay of each head; the output.
    matrices = hidden * (mixed + values + 2 * value_heads) + values * hidden
    extra = mixed * c.integer("linear_conv_kernel_dim") + 2 * value_heads + value_width
    return Recurrence("gated_delta_net", matrices, extra, width=mixed + values)


def kimi_delta_attention(c: Fields, *, low_rank: bool) -> Recurrence:
    """Kimi's delta attention, whose decay and gate are matrices whole or of the rank of a head."""
    hidden = hidden_of(c)
    table = c.part("linear_attn_config")
    if c.family == "bailing_hybrid":
        # Configurations that were saved again keep these beside the fields that they came from.
        heads = c.optional("linear_num_heads") or c.size("num_attention_heads")
        width = c.optional("linear_head_dim") or c.integer("head_dim")
        kernel = c.optional("linear_conv_kernel_dim") or c.integer("short_conv_kernel_size")
    else:
        heads = table.optional("num_heads") or c.integer("linear_num_heads")
        width = table.optional("head_dim") or c.integer("linear_head_dim")
        kernel = table.optional("short_conv_kernel_size") or c.integer("linear_conv_kernel_dim")
    inner = heads * width
    gate = width * (hidden + inner) if low_rank else hidden * inner
    matrices = 3 * hidden * inner + 2 * gate + hidden * heads + inner * hidden
    extra = 3 * inner * kernel + heads + inner + width
    return Recurrence("kimi_delta_attention", matrices, extra, width=4 * inner)


def mamba2(
    hidden: int, *, heads: int, width: int, groups: int, state: int, kernel: int, conv_bias: bool, bias: bool
) -> Recurrence:
    """A Mamba 2 mixer.

    Args:
        heads, width: of the inner activations. groups, state: of the state space.
        kernel: of the convolution. conv_bias, bias: of the convolution, and of the projections.
    """
    inner = heads * width
    mixed = inner + 2 * groups * state
    projected = inner + mixed + heads
    extra = mixed * (kernel + conv_bias) + 3 * heads + inner + (projected + hidden if bias else 0)
    return Recurrence("mamba2", hidden * projected + inner * hidden, extra, width=projected)


def qwen3_next(c: Fields) -> Architecture:
    """``qwen3_next`` and ``qwen3_5_moe_text``: a gate on the attention, a gated shared expert."""
    sparse = qwen_sparse_layers(c) if c.family == "qwen3_next" else [True] * depth(c)
    return _qwen(c, _qwen_mixers(c), sparse, gate=True)


def lara_mini(c: Fields) -> Architecture:
    """``lara_mini``: attention with and without a window beside the linear one; no gates."""
    layers, bias = depth(c), c.flag("attention_bias")
    pattern = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
    kinds = c.types("layer_types", layers, set(pattern)) or [pattern[index % 5] for index in range(layers)]
    window = c.optional("sliding_window", least=0) or 0
    made: dict[str, Attention | Recurrence] = {
        "linear_attention": gated_delta_net(c),
        "full_attention": gqa(c, qkv_bias=bias, output_bias=bias, norm="head"),
        "sliding_attention": gqa(c, qkv_bias=bias, output_bias=bias, norm="head", window=window),
    }
    return _qwen(c, [made[kind] for kind in kinds], [True] * layers, gate=False)


def _qwen_mixers(c: Fields) -> list[Attention | Recurrence]:
    layers, bias = depth(c), c.flag("attention_bias")
    every = c.integer("full_attention_interval", default=4)
    kinds = c.types("layer_types", layers, LINEAR_OR_FULL) or [
        "linear_attention" if (index + 1) % every else "full_attention" for index in range(layers)
    ]
    made: dict[str, Attention | Recurrence] = {
        "linear_attention": gated_delta_net(c),
        "full_attention": gqa(c, qkv_bias=bias, output_bias=bias, norm="head", gated=True),
    }
    if bias:
        # The gate has a bias too.
        attention = gqa(c, qkv_bias=bias, output_bias=bias, norm="head", gated=True)
        made["full_attention"] = replace(
            attention, extra_parameters=attention.extra_parameters + attention.heads * attention.qk_dim
        )
    return [made[kind] for kind in kinds]


def _qwen(c: Fields, mixers: list[Attention | Recurrence], sparse: list[bool], *, gate: bool) -> Architecture:
    moe = experts(
        c,
        c.size("moe_intermediate_size"),
        shared_ffn=c.integer("shared_expert_intermediate_size"),
        shared_gate=gate,
    )
    dense = None if all(sparse) else FeedForward(c.integer("intermediate_size"))
    return model(c, stack(mixers, sparse, moe, dense, norms=2 * hidden_of(c)))


def minimax(c: Fields) -> Architecture:
    """``minimax``: every second layer has lightning attention."""
    layers, hidden = depth(c), hidden_of(c)
    inner = c.size("num_attention_heads") * head_width(c)
    kinds = c.types("layer_types", layers, LINEAR_OR_FULL) or [
        "full_attention" if (index + 1) % 2 else "linear_attention" for index in range(layers)
    ]
    made: dict[str, Attention | Recurrence] = {
        "full_attention": gqa(c, window=c.optional("sliding_window", least=0) or 0),
        "linear_attention": Recurrence("lightning", 5 * hidden * inner, inner, width=4 * inner),
    }
    moe = experts(c, c.size("intermediate_size"))
    return model(c, stack([made[kind] for kind in kinds], [True] * layers, moe, None, norms=2 * hidden))


def jamba(c: Fields) -> Architecture:
    """``jamba``: Mamba with attention at a period, experts at another."""
    layers, hidden = depth(c), hidden_of(c)
    period, offset = c.integer("attn_layer_period"), c.integer("attn_layer_offset", least=0)
    every, start = c.integer("expert_layer_period"), c.integer("expert_layer_offset", least=0)
    attention, mamba = gqa(c, head_dim=hidden // c.size("num_attention_heads")), _mamba(c)
    mixers = [attention if index % period == offset else mamba for index in range(layers)]
    sparse = [index % every == start and c.size("num_experts") > 1 for index in range(layers)]
    ffn = c.size("intermediate_size")
    return model(c, stack(mixers, sparse, experts(c, ffn), FeedForward(ffn), norms=2 * hidden))


def _mamba(c: Fields) -> Recurrence:
    hidden = hidden_of(c)
    inner, state = c.integer("mamba_expand") * hidden, c.integer("mamba_d_state")
    rank = math.ceil(hidden / 16) if c.raw("mamba_dt_rank") == "auto" else c.integer("mamba_dt_rank")
    matrices = hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden
    kernel = c.integer("mamba_d_conv") + c.flag("mamba_conv_bias")
    extra = inner * (state + 1 + kernel + 1) + rank + 2 * state
    if c.flag("mamba_proj_bias"):
        extra += 2 * inner + hidden
    return Recurrence("mamba", matrices, extra, width=4 * inner)


def granitemoehybrid(c: Fields) -> Architecture:
    """``granitemoehybrid``: Mamba 2 and attention, a shared expert in every layer; it may have no routed ones."""
    layers, hidden, bias = depth(c), hidden_of(c), c.flag("attention_bias")
    kinds = c.types("layers_block_type", layers, LINEAR_OR_FULL) or ["linear_attention"] * layers
    heads = c.integer("mamba_n_heads")
    inner = c.integer("mamba_expand") * hidden
    width = inner // heads if c.raw("mamba_d_head") == "auto" else c.integer("mamba_d_head")
    if heads * width != inner:
        raise c.refuse(f"mamba_n_heads times mamba_d_head is {heads * width}, but mamba_expand makes {inner}")
    made: dict[str, Attention | Recurrence] = {
        "full_attention": gqa(c, qkv_bias=bias, output_bias=bias),
        "linear_attention": mamba2(
            hidden,
            heads=heads,
            width=width,
            groups=c.integer("mamba_n_groups"),
            state=c.integer("mamba_d_state"),
            kernel=c.integer("mamba_d_conv"),
            conv_bias=c.flag("mamba_conv_bias"),
            bias=c.flag("mamba_proj_bias"),
        ),
    }
    mixers = [made[kind] for kind in kinds]
    shared = c.integer("shared_intermediate_size")
    if c.optional("num_experts", least=0) == 0:
        dense = FeedForward(shared)
        return model(c, tuple(Layer(mixer, dense=dense, norm_parameters=2 * hidden) for mixer in mixers))
    moe = experts(c, c.size("intermediate_size"), shared_ffn=shared)
    return model(c, stack(mixers, [True] * layers, moe, None, norms=2 * hidden))


def lfm2_moe(c: Fields) -> Architecture:
    """``lfm2_moe``: gated short convolutions with attention between."""
    layers, hidden = depth(c), hidden_of(c)
    kinds = c.types("layer_types", layers, {"conv", "full_attention"})
    if kinds is None:
        raise c.refuse("layer_types is missing, and the family has no default for it; add it")
    bias = c.flag("conv_bias")
    conv = hidden * (c.integer("conv_L_cache") + bias) + (4 * hidden if bias else 0)
    made: dict[str, Attention | Recurrence] = {
        "conv": Recurrence("short_convolution", 4 * hidden * hidden, conv, width=3 * hidden),
        "full_attention": gqa(c, norm="head"),
    }
    sparse = [index >= c.integer("num_dense_layers", least=0) for index in range(layers)]
    moe = experts(c, c.size("moe_intermediate_size"))
    dense = dense_block(c, sparse, "intermediate_size")
    older = c.raw("tie_embedding")
    tied = c.flag("tie_embedding") if older is not None else None
    return model(c, stack([made[kind] for kind in kinds], sparse, moe, dense, norms=2 * hidden), tied=tied)


def nemotron_h(c: Fields) -> Architecture:
    """``nemotron_h``: each layer is one block alone: Mamba 2, attention, experts, or a dense block."""
    layers = _nemotron_layers(c, "layers_block_type", "hybrid_override_pattern")
    if not layers:
        raise c.refuse("layers_block_type (or hybrid_override_pattern) is missing; add it")
    count = c.optional("num_nextn_predict_layers", least=0) or 0
    blocks = _nemotron_layers(c, "mtp_layers_block_type", "mtp_hybrid_override_pattern") if count else []
    mtp = (_joined(c, blocks),) * count
    # The class never shares the embedding, whatever the field says.
    return model(c, layers, mtp=mtp, tied=False)


def _joined(c: Fields, blocks: list[Layer]) -> Layer:
    """The blocks that predict one token, as one layer with the norms around its projection."""
    mixers = [block.mixer for block in blocks if block.mixer is not None]
    routed = [block.experts for block in blocks if block.experts is not None]
    dense = [block.dense for block in blocks if block.dense is not None]
    if max(len(mixers), len(routed), len(dense)) > 1:
        raise c.refuse("mtp_layers_block_type has a kind of block more than once, which cannot be said")
    norms = sum(block.norm_parameters for block in blocks) + 3 * hidden_of(c)
    return Layer(
        mixers[0] if mixers else None,
        experts=routed[0] if routed else None,
        dense=dense[0] if dense else None,
        norm_parameters=norms,
    )


def _nemotron_layers(c: Fields, listed: str, pattern: str) -> list[Layer]:
    letters = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
    text = c.raw(pattern)
    named = c.items(listed)
    if isinstance(text, str) and (named is None or pattern.startswith("mtp")):
        named = [letters.get(letter, letter) for letter in text]
    hidden, bias, mlp_bias = hidden_of(c), c.flag("use_bias"), c.flag("mlp_bias")
    narrow = c.optional("moe_latent_size") or 0
    made: dict[str, Layer] = {}
    result = []
    for kind in named or []:
        name = {"mamba": "linear_attention", "attention": "full_attention"}.get(kind, kind)
        if name not in made:
            made[name] = _nemotron_layer(c, name, hidden, narrow, bias=bias, mlp_bias=mlp_bias)
        result.append(made[name])
    return result


def _nemotron_layer(c: Fields, kind: str, hidden: int, narrow: int, *, bias: bool, mlp_bias: bool) -> Layer:
    if kind == "linear_attention":
        mixer = mamba2(
            hidden,
            heads=c.integer("mamba_num_heads"),
            width=c.integer("mamba_head_dim"),
            groups=c.integer("n_groups"),
            state=c.integer("ssm_state_size"),
            kernel=c.integer("conv_kernel"),
            conv_bias=c.flag("use_conv_bias"),
            bias=bias,
        )
        return Layer(mixer, norm_parameters=hidden)
    if kind == "full_attention":
        return Layer(gqa(c, window=c.optional("sliding_window", least=0) or 0), norm_parameters=hidden)
    if kind == "mlp":
        width = c.integer("intermediate_size")
        return Layer(None, dense=FeedForward(width, 2, width + hidden if mlp_bias else 0), norm_parameters=hidden)
    if kind != "moe":
        raise c.refuse(f"layers_block_type has {kind!r}; known: linear_attention, full_attention, moe, mlp")
    shared = c.integer("moe_shared_expert_intermediate_size")
    shared_bias = shared + hidden + (narrow + hidden if narrow else 0) if mlp_bias else 0
    moe = experts(
        c,
        c.size("moe_intermediate_size"),
        matrices=2,
        shared_ffn=shared,
        shared_extra=shared_bias,
        expert_hidden=narrow,
    )
    return Layer(None, experts=moe, norm_parameters=hidden)


def kimi_linear(c: Fields) -> Architecture:
    """``kimi_linear``: delta attention with latent attention between."""
    layers = depth(c)
    table = c.part("linear_attn_config")
    kinds = c.types("layer_types", layers, LINEAR_OR_FULL)
    listed, others = table.indices("full_attn_layers"), table.indices("kda_layers")
    if kinds is None and listed is not None and others is not None:
        # The checkpoint counts layers from one.
        if sorted(listed + others) != list(range(1, layers + 1)):
            raise c.refuse(f"linear_attn_config names other layers than 1 to {layers}")
        kinds = ["full_attention" if index + 1 in listed else "linear_attention" for index in range(layers)]
    if kinds is None:
        kinds = ["full_attention" if index and not index % 4 else "linear_attention" for index in range(layers)]
    first = c.integer("first_k_dense_replace", least=0, default=1)
    made: dict[str, Attention | Recurrence] = {
        "linear_attention": kimi_delta_attention(c, low_rank=True),
        "full_attention": latent(c),
    }
    return _kimi(c, [made[kind] for kind in kinds], sparse_layers(c, first=first))


def bailing_hybrid(c: Fields) -> Architecture:
    """``bailing_hybrid``: as ``kimi_linear`` in groups of layers, with a gate a head on the latent attention."""
    layers, group = depth(c), c.integer("layer_group_size")
    kinds = c.types("layer_types", layers, LINEAR_OR_FULL) or [
        "linear_attention" if (index + 1) % group else "full_attention" for index in range(layers)
    ]
    gate = hidden_of(c) * c.size("num_attention_heads")
    made: dict[str, Attention | Recurrence] = {
        "linear_attention": kimi_delta_attention(c, low_rank=False),
        "full_attention": with_matrices(latent(c), hidden_of(c), gate),
    }
    return _kimi(c, [made[kind] for kind in kinds], sparse_layers(c, first=c.integer("first_k_dense_replace", least=0)))


def _kimi(c: Fields, mixers: list[Attention | Recurrence], sparse: list[bool]) -> Architecture:
    ffn = c.size("moe_intermediate_size")
    moe = experts(c, ffn, shared_ffn=shared_width(c, ffn))
    dense = dense_block(c, sparse, "intermediate_size")
    layers = stack(mixers, sparse, moe, dense, norms=2 * hidden_of(c))
    # The classes never share the embedding, whatever the field says.
    return model(c, layers, mtp=predicting(c, layers[-1]), tied=False)


FAMILIES = {
    "qwen3_next": qwen3_next,
    "qwen3_5_moe_text": qwen3_next,
    "lara_mini": lara_mini,
    "minimax": minimax,
    "jamba": jamba,
    "granitemoehybrid": granitemoehybrid,
    "lfm2_moe": lfm2_moe,
    "nemotron_h": nemotron_h,
    "kimi_linear": kimi_linear,
    "bailing_hybrid": bailing_hybrid,
}
