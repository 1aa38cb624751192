"""Families with several residual streams that small matrices mix: DeepSeek V4, Hunyuan 4, GLM 5 Next, Qwen 4."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Attention, Layer, Recurrence
from ciera_piper_core.models.hf.blocks import (
    dense_block,
    depth,
    experts,
    gqa,
    hidden_of,
    latent,
    model,
    predicting,
    shared_width,
    sparse_layers,
    stack,
    with_matrices,
)
from ciera_piper_core.models.hf.hybrid import gated_delta_net, kimi_delta_attention
from ciera_piper_core.models.hf.latent import indexer, with_indexer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.models.hf.fields import Fields

MOST_NGRAM_TABLES = 64
"""Layers that may look up n-grams: the sizes of each table are further primes, one after the other."""

HEAVY, SPARSE, SLIDING = "heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"
COMPRESSION_KINDS = {0: SLIDING, 4: SPARSE, 128: HEAVY}


def deepseek_v4(c: Fields) -> Architecture:
    """``deepseek_v4``: one key/value head for all, an output of low rank, compressed keys and values."""
    layers, hidden = depth(c), hidden_of(c)
    made = {kind: _compressed(c, kind) for kind in (HEAVY, SPARSE, SLIDING)}
    ffn = c.size("moe_intermediate_size")
    # The class builds one shared expert, whatever n_shared_experts says.
    shared_bias = 2 * ffn + hidden if c.flag("mlp_bias") else 0
    moe = experts(c, ffn, shared_ffn=ffn, shared_extra=shared_bias)
    mixers = [made[kind] for kind in _v4_types(c, layers)]
    plain = stack(mixers, [True] * layers, moe, None, norms=2 * hidden)
    streams = c.integer("hc_mult")
    mixed = _mixed(plain, hidden, streams, (2 + streams) * streams, 3)
    return model(c, mixed, mtp=predicting(c, mixed[-1]), extra=_joining(hidden, streams))


def _v4_types(c: Fields, layers: int) -> list[str]:
    kinds = c.types("layer_types", layers, {HEAVY, SPARSE, SLIDING})
    if kinds is not None:
        return kinds
    ratios = c.items("compress_ratios")
    if ratios is None:
        return [HEAVY if index < 2 or index % 2 == 0 else SPARSE for index in range(layers)]
    unknown = set(ratios) - COMPRESSION_KINDS.keys()
    if unknown or len(ratios) < layers:
        raise c.refuse(f"compress_ratios must give each of {layers} layers one of 0, 4, 128")
    return [COMPRESSION_KINDS[ratio] for ratio in ratios[:layers]]


def _compressed(c: Fields, kind: str) -> Attention:
    hidden, heads, width = hidden_of(c), c.size("num_attention_heads"), c.integer("head_dim")
    q_lora, o_lora, groups = c.integer("q_lora_rank"), c.integer("o_lora_rank"), c.integer("o_groups")
    matrices = q_lora * (hidden + heads * width) + hidden * width + o_lora * (heads * width + groups * hidden)
    extra = heads + q_lora + width
    rates = c.part("compress_rates")
    if kind == HEAVY:
        rate = c.optional("compress_rate_hca") or rates.integer(HEAVY, default=128)
        matrices += 2 * hidden * width
        extra += (rate + 1) * width
    elif kind == SPARSE:
        rate = c.optional("compress_rate_csa") or rates.integer(SPARSE, default=4)
        index_heads, index_width = c.integer("index_n_heads"), c.integer("index_head_dim")
        matrices += 4 * hidden * (width + index_width) + index_heads * (q_lora * index_width + hidden)
        extra += (2 * rate + 1) * (width + index_width)
    window = c.integer("sliding_window", least=0)
    return Attention(heads, 1, width, width, window=window, extra_parameters=extra, projection_parameters=matrices)


def hy_v4(c: Fields) -> Architecture:
    """``hy_v4`` and ``hy_v4_vl_text``: latent attention with sinks and a gate, an indexer that layers may share."""
    layers, hidden, heads = depth(c), hidden_of(c), c.size("num_attention_heads")
    gate = hidden * heads * c.integer("v_head_dim")
    size, extra = indexer(c, c.integer("q_lora_rank"))
    made = {
        False: latent(c, extra=heads, side_matrices=gate),
        True: latent(c, extra=heads + extra, side_matrices=gate + size),
    }
    if c.raw("indexer_types") is None:
        own = [index == 0 or (index - 1) % 4 == 0 for index in range(layers)]
    else:
        own = with_indexer(c)
    plain = _deepseek_layers(c, [made[kind] for kind in own], sparse_layers(c, first=1))
    streams = c.integer("hc_mult")
    return model(c, _mixed(plain, hidden, streams, 2 * streams, 2), extra=_joining(hidden, streams))


def glm5_next(c: Fields) -> Architecture:
    """``glm5_next_text``: delta attention, and latent attention with an indexer over pools of keys."""
    layers, hidden = depth(c), hidden_of(c)
    kinds = c.types("layer_types", layers, {"linear_attention", "indexed_attention", "full_attention"}) or [
        "linear_attention" if index % 4 != 3 else "indexed_attention" for index in range(layers)
    ]
    size, extra = indexer(c, c.integer("q_lora_rank"))
    width = c.integer("index_head_dim")
    size, extra = size + hidden * width, extra + c.integer("index_kpool") * width
    linear = kimi_delta_attention(c, low_rank=True)
    made = {True: latent(c, extra=extra, side_matrices=size), False: latent(c)}
    mixers: list[Attention | Recurrence] = [
        linear if kind == "linear_attention" else made[own] for kind, own in zip(kinds, with_indexer(c), strict=True)
    ]
    plain = _deepseek_layers(c, mixers, sparse_layers(c, first=3))
    streams = c.integer("hc_mult")
    return model(c, _mixed(plain, hidden, streams, (2 + streams) * streams, 3))


def _deepseek_layers(c: Fields, mixers: Sequence[Attention | Recurrence], sparse: list[bool]) -> tuple[Layer, ...]:
    ffn = c.size("moe_intermediate_size")
    moe = experts(c, ffn, shared_ffn=shared_width(c, ffn))
    return stack(mixers, sparse, moe, dense_block(c, sparse, "intermediate_size"), norms=2 * hidden_of(c))


def _mixed(layers: Sequence[Layer], hidden: int, streams: int, rows: int, scales: int) -> list[Layer]:
    """The layers with mixers of their residual streams before attention and before the experts.

    Args:
        rows: that each mixer computes of all streams. scales: of each mixer.
    """
    made = {
        id(layer): replace(
            layer,
            norm_parameters=layer.norm_parameters + 2 * (rows + scales),
            extra_matrix_parameters=2 * rows * streams * hidden,
        )
        for layer in layers
    }
    return [made[id(layer)] for layer in layers]


def _joining(hidden: int, streams: int) -> int:
    """Weights that join the streams before the output."""
    return streams * streams * hidden + streams + 1


def qwen4_exp(c: Fields) -> Architecture:
    """``qwen4_exp_text``: no norms but those of the streams' mixers; some layers look up n-grams of tokens."""
    layers, hidden, bias = depth(c), hidden_of(c), c.flag("attention_bias")
    every = c.integer("full_attention_interval", default=4)
    kinds = c.types("layer_types", layers, {"linear_attention", "indexed_attention", "full_attention"}) or [
        "linear_attention" if (index + 1) % every else "indexed_attention" for index in range(layers)
    ]
    index_width = c.integer("indexer_head_dim")
    size = hidden * index_width * (c.integer("indexer_n_heads") + c.integer("indexer_kv_heads"))
    attention = gqa(c, qkv_bias=bias, output_bias=bias, norm="head", gated=True)
    gate_bias = attention.heads * attention.qk_dim if bias else 0
    attention = replace(
        with_matrices(attention, hidden, size),
        extra_parameters=attention.extra_parameters + 2 * index_width + gate_bias,
    )
    linear = gated_delta_net(c)
    streams, rank = c.integer("hc_count"), c.integer("hc_lowrank")
    moe = experts(
        c,
        c.size("moe_intermediate_size"),
        shared_ffn=c.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    wide = streams * hidden
    mixer = wide * (2 * rank + streams)
    mixers: list[Attention | Recurrence] = [linear if kind == "linear_attention" else attention for kind in kinds]
    plain = stack(mixers, [True] * layers, moe, None, norms=2 * wide)
    made = {id(layer): replace(layer, extra_matrix_parameters=2 * mixer) for layer in plain}
    result = [made[id(layer)] for layer in plain]
    tables = 0
    numbers = sorted(set(c.indices("ple_layer_ids") or []))
    if len(numbers) > MOST_NGRAM_TABLES:
        raise c.refuse(f"ple_layer_ids names {len(numbers)} layers; at most {MOST_NGRAM_TABLES} are read")
    for order, number in enumerate(numbers):
        if not 1 <= number <= layers:
            raise c.refuse(f"ple_layer_ids has {number}, but layers count from 1 to {layers}")
        width = c.optional("ple_embed_dim") or hidden
        kernel = c.integer("ple_conv_kernel_size")
        layer = result[number - 1]
        result[number - 1] = replace(
            layer,
            norm_parameters=layer.norm_parameters + (3 + kernel) * wide,
            extra_matrix_parameters=layer.extra_matrix_parameters + width * (wide + hidden),
        )
        tables += _ngram_table(c, width, order)
    # The last mixer has a norm of its own in place of the model's.
    return model(c, result, extra=wide * (2 * rank + 1) - hidden + tables)


def _ngram_table(c: Fields, width: int, order: int) -> int:
    """Weights of the table of n-grams of one layer, whose parts have the next primes as sizes."""
    heads = (c.integer("ngram_size", least=2) - 1) * c.integer("heads_per_ngram")
    least, divisor = c.integer("ngram_vocab_size_base"), c.integer("make_ngram_vocab_size_divisible_by")
    sizes, number = [], least - 1
    for _ in range((order + 1) * heads):
        number = _next_prime(number)
        sizes.append(number)
    rows = sum(sizes[order * heads :])
    return math.ceil(rows / divisor) * divisor * (width // heads)


@functools.cache
def _next_prime(number: int) -> int:
    """The least prime above ``number``."""
    number += 1
    while not _is_prime(number):
        number += 1
    return number


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


FAMILIES = {
    "deepseek_v4": deepseek_v4,
    "hy_v4": hy_v4,
    "hy_v4_vl_text": hy_v4,
    "glm5_next_text": glm5_next,
    "qwen4_exp_text": qwen4_exp,
}
