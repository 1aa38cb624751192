"""Families of multi-head latent attention: DeepSeek V2 to V3.2, GLM, Mistral 4, A.X and their like."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ciera_piper_core.models.architecture import FeedForward, Layer
from ciera_piper_core.models.hf.blocks import (
    dense_block,
    depth,
    experts,
    hidden_of,
    latent,
    model,
    predicting,
    shared_width,
    sparse_layers,
    stack,
    with_matrices,
)
from ciera_piper_core.models.parameters import projection_parameters

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Attention
    from ciera_piper_core.models.hf.fields import Fields


def deepseek(c: Fields) -> Architecture:
    """``deepseek_v2``, ``deepseek_v3``, ``sarvam_mla``, ``mistral4`` and ``glm4_moe_lite``."""
    attention = latent(c)
    first = 1 if c.family == "glm4_moe_lite" else c.integer("first_k_dense_replace", least=0)
    every = c.integer("moe_layer_freq", default=1)
    bias = c.family == "deepseek_v2" and c.flag("mlp_bias")
    return _decoder(c, [attention] * depth(c), sparse_layers(c, first=first, every=every), mlp_bias=bias)


def axk1(c: Fields) -> Architecture:
    """``axk1``: a third norm after the experts."""
    sparse = _first_dense(c)
    architecture = _decoder(c, [latent(c)] * depth(c), sparse)
    layers = [
        replace(layer, norm_parameters=layer.norm_parameters + hidden_of(c)) if layer.experts else layer
        for layer in architecture.layers
    ]
    return replace(architecture, layers=tuple(layers))


def axk2(c: Fields) -> Architecture:
    """``axk2``: queries and a gate from two latents at once, sparse attention, gates of low rank in the norms."""
    hidden, heads, rank = hidden_of(c), c.size("num_attention_heads"), c.integer("gated_norm_rank")
    plain = latent(c)
    mla = plain.mla
    assert mla is not None
    both = 2 * mla.q_lora * heads * (plain.qk_dim + plain.v_dim)
    queries = mla.q_lora * heads * plain.qk_dim
    size, extra = indexer(c, mla.q_lora)
    changed = with_matrices(plain, hidden, both - queries + size)
    attention = replace(changed, extra_parameters=plain.extra_parameters + extra)
    sparse = _first_dense(c)
    gate = 2 * hidden * rank
    architecture = _decoder(c, [attention] * depth(c), sparse)
    layers = [
        replace(layer, extra_matrix_parameters=2 * gate if has_experts else gate)
        for layer, has_experts in zip(architecture.layers, sparse, strict=True)
    ]
    return replace(architecture, layers=tuple(layers))


def deepseek_v32(c: Fields) -> Architecture:
    """``deepseek_v32``: an indexer of sparse attention in every layer."""
    attention = _indexed(c, latent(c))
    sparse = sparse_layers(c, first=c.integer("first_k_dense_replace", least=0))
    return _decoder(c, [attention] * depth(c), sparse)


def glm_moe_dsa(c: Fields) -> Architecture:
    """``glm_moe_dsa``: layers may share the indexer of one before."""
    plain = latent(c)
    made = {True: _indexed(c, plain), False: plain}
    mixers = [made[kind] for kind in with_indexer(c)]
    sparse = sparse_layers(c, first=c.integer("first_k_dense_replace", least=0))
    return _decoder(c, mixers, sparse)


def mistral_large4(c: Fields) -> Architecture:
    """``mistral_large4_text``: rotation in some layers alone, keys and values that layers may share."""
    layers, hidden, heads = depth(c), hidden_of(c), c.size("num_attention_heads")
    nope, rope, kv_lora = c.integer("qk_nope_head_dim"), c.integer("qk_rope_head_dim"), c.integer("kv_lora_rank")
    rotated = c.items("no_rope_layers")
    if rotated is None:
        interval = c.integer("no_rope_layer_interval", default=4)
        rotated = [(index + 1) % interval != 0 for index in range(layers)]
    sources = c.indices("kv_source_layers") or list(range(layers))
    bias = c.flag("attention_bias")
    index_heads, index_width = c.integer("index_n_heads"), c.integer("index_head_dim")
    size = hidden * (index_heads * index_width + index_width + index_heads)
    index_extra = 2 * index_width + 2 * hidden + 2 * index_heads
    if not len(rotated) == len(sources) == layers:
        raise c.refuse(f"no_rope_layers and kv_source_layers must each name {layers} layers")
    made: dict[tuple[bool, bool, bool], Attention] = {}
    keys = [
        (bool(turned), source == index, indexed)
        for index, (turned, source, indexed) in enumerate(zip(rotated, sources, with_indexer(c), strict=True))
    ]
    for turned, own, indexed in set(keys):
        mixer = latent(c, q_lora=0, nope=nope if turned else nope + rope, rope=rope if turned else 0)
        extra, matrices = mixer.extra_parameters + 2 * heads, projection_parameters(mixer, hidden)
        if not own:
            matrices -= hidden * (kv_lora + (rope if turned else 0))
            extra -= kv_lora + (kv_lora + (rope if turned else 0) if bias else 0)
        if indexed:
            matrices, extra = matrices + size, extra + index_extra
        made[turned, own, indexed] = replace(mixer, extra_parameters=extra, projection_parameters=matrices)
    sparse = sparse_layers(c, first=c.integer("first_k_dense_replace", least=0))
    frequencies = rope // 2
    return _decoder(c, [made[key] for key in keys], sparse, extra=frequencies)


def dots3_note(c: Fields) -> Architecture:
    """``dots3_note_text``: two kinds of latent attention, the one of all tokens with an indexer; a gate a head."""
    layers, hidden, heads = depth(c), hidden_of(c), c.size("num_attention_heads")
    kinds = _dots3_types(c, layers)
    rope, q_lora = c.integer("qk_rope_head_dim"), c.integer("q_lora_rank")
    per_layer = _per_layer(c, kinds)
    made: dict[str, Attention] = {}
    for kind in set(kinds):
        if kind == "sliding_attention":
            count = per_layer.integer("num_attention_heads", default=64)
            nope = per_layer.integer("qk_nope_head_dim", default=192)
            turned = per_layer.integer("qk_rope_head_dim", default=per_layer.integer("head_dim", default=256) - nope)
            mixer = latent(
                c,
                heads=count,
                q_lora=per_layer.integer("q_lora_rank", default=1024),
                kv_lora=per_layer.integer("kv_lora_rank", default=1024),
                nope=nope,
                rope=turned,
                v_head=per_layer.integer("v_head_dim", default=128),
                window=c.optional("sliding_window") or c.integer("sliding_window_size", default=512),
                extra=turned,
                side_matrices=hidden * count,
            )
        else:
            size, extra = indexer(c, q_lora) if kind == "indexed_attention" else (0, 0)
            mixer = latent(c, extra=rope + extra, side_matrices=hidden * heads + size)
        made[kind] = mixer
    ffn = c.size("moe_intermediate_size")
    sparse = _first_dense(c)
    width = c.optional("moe_shared_expert_intermediate_size") or c.optional("shared_experts_intermediate_size") or ffn
    moe = experts(c, ffn, shared_ffn=shared_width(c, width))
    dense = dense_block(c, sparse, "intermediate_size")
    return model(c, stack([made[kind] for kind in kinds], sparse, moe, dense, norms=2 * hidden))


def longcat_flash(c: Fields) -> Architecture:
    """``longcat_flash``: each block is attention, experts beside a dense block, attention, dense block.

    A token goes to ``moe_topk`` of the real and the empty experts together, so that many is the most it uses.
    """
    hidden, blocks = hidden_of(c), c.size("num_layers")
    attention, dense = latent(c), FeedForward(c.integer("ffn_hidden_size"))
    empty = c.integer("zero_expert_num", least=0)
    router = hidden * empty + (c.size("num_experts") + empty if c.flag("router_bias", default=False) else 0)
    moe = experts(c, c.size("expert_ffn_hidden_size"), router_extra=router)
    first = Layer(attention, experts=moe, dense=dense, norm_parameters=2 * hidden)
    second = Layer(attention, dense=dense, norm_parameters=2 * hidden)
    return model(c, (first, second) * blocks)


def indexer(c: Fields, q_lora: int) -> tuple[int, int]:
    """Weights of an indexer of sparse attention: in matrices, and others."""
    heads, width = c.integer("index_n_heads"), c.integer("index_head_dim")
    return q_lora * heads * width + hidden_of(c) * (width + heads), 2 * width


def with_indexer(c: Fields) -> list[bool]:
    """Which layers have an indexer of their own: by ``indexer_types``, a pattern, or a frequency."""
    layers = depth(c)
    kinds: list[Any] | None = c.types("indexer_types", layers, {"full", "shared"})
    if kinds is None:
        pattern = c.raw("index_topk_pattern")
        if isinstance(pattern, str):
            kinds = [{"F": "full", "S": "shared"}.get(letter) for letter in pattern]
        elif pattern is not None:
            kinds = list(pattern)
    if kinds is None:
        every = max(c.integer("index_topk_freq", least=0, default=1), 1)
        offset = c.integer("index_skip_topk_offset", least=0, default=2)
        return [max(index - offset + 1, 0) % every == 0 for index in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"full", "shared"}:
        raise c.refuse(f"index_topk_pattern must name {layers} layers, each F (full) or S (shared)")
    return [kind == "full" for kind in kinds]


def _indexed(c: Fields, attention: Attention) -> Attention:
    size, extra = indexer(c, c.integer("q_lora_rank"))
    changed = with_matrices(attention, hidden_of(c), size)
    return replace(changed, extra_parameters=attention.extra_parameters + extra)


def _first_dense(c: Fields) -> list[bool]:
    every = c.raw("moe_layer_freq")
    first = c.integer("first_k_dense_replace", least=0, default=1)
    if isinstance(every, list) and c.items("mlp_layer_types") is None:
        return [index >= first and bool(flag) for index, flag in enumerate(every)]
    return sparse_layers(c, first=first, every=c.integer("moe_layer_freq", default=1))


def _dots3_types(c: Fields, layers: int) -> list[str]:
    kinds = c.types("layer_types", layers, {"full_attention", "sliding_attention", "indexed_attention"})
    whole = c.raw("per_layer_config") is None
    indexed = c.flag("use_dsa", default=True) if whole or c.raw("use_dsa") is not None else None
    if kinds is None:
        windowed = c.flag("use_sliding_window", default=True)
        full = "full_attention" if indexed is False else "indexed_attention"
        return [full if not windowed or index < 2 or index % 4 == 1 else "sliding_attention" for index in range(layers)]
    if indexed is None:
        return kinds
    old, new = ("full_attention", "indexed_attention") if indexed else ("indexed_attention", "full_attention")
    return [new if kind == old else kind for kind in kinds]


def _per_layer(c: Fields, kinds: list[str]) -> Fields:
    """The widths of the layers with a window, which must be the same in all of them."""
    from ciera_piper_core.models.hf.fields import Fields as Table

    listed = c.raw("per_layer_config")
    widths = ("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    names = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", *widths)
    if not listed:
        values = {name: c.raw(f"swa_{name}") for name in names if c.raw(f"swa_{name}") is not None}
        return Table(f"{c.family}.swa", values, {})
    tables = [table for key, table in listed.items() if kinds[int(key)] == "sliding_attention"]
    if any(table != tables[0] for table in tables):
        raise c.refuse("per_layer_config differs between the layers with a window")
    base = {name: c.raw(name) for name in names}
    return Table(f"{c.family}.per_layer_config", {**base, **(tables[0] if tables else {})}, {})


def _decoder(
    c: Fields, mixers: list[Attention], sparse: list[bool], *, mlp_bias: bool = False, extra: int = 0
) -> Architecture:
    ffn, hidden = c.size("moe_intermediate_size"), hidden_of(c)
    shared = shared_width(c, ffn)
    shared_bias = 2 * shared + hidden if mlp_bias and shared else 0
    moe = experts(c, ffn, shared_ffn=shared, shared_extra=shared_bias)
    dense = dense_block(c, sparse, "intermediate_size", bias=mlp_bias)
    layers = stack(mixers, sparse, moe, dense, norms=2 * hidden)
    return model(c, layers, mtp=predicting(c, layers[-1]), extra=extra)


FAMILIES = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "kimi_k2": deepseek,
    "sarvam_mla": deepseek,
    "mistral4": deepseek,
    "glm4_moe_lite": deepseek,
    "axk1": axk1,
    "axk2": axk2,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": glm_moe_dsa,
    "mistral_large4_text": mistral_large4,
    "dots3_note_text": dots3_note,
    "longcat_flash": longcat_flash,
}
