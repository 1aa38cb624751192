"""Gemma 4 and the diffusion Gemma: experts beside a dense block, heads that differ by the kind of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import FeedForward, Layer
from ciera_piper_core.models.hf.blocks import depth, experts, gqa, hidden_of, model
from ciera_piper_core.models.parameters import projection_parameters

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Attention, Experts
    from ciera_piper_core.models.hf.fields import Fields


def gemma4(c: Fields) -> Architecture:
    """``gemma4_text``: with experts or without, and an embedding for each layer of its own."""
    layers, hidden = depth(c), hidden_of(c)
    kinds = _types(c, layers)
    same_values = c.flag("attention_k_eq_v")
    first_shared = layers - c.integer("num_kv_shared_layers", least=0)
    own = c.optional("hidden_size_per_layer_input", least=0) or 0
    moe = _experts(c) if c.flag("enable_moe_block") else None
    made: dict[tuple[str, bool], Layer] = {}
    result = []
    for index, kind in enumerate(kinds):
        key = kind, index >= first_shared
        if key not in made:
            mixer = _attention(c, kind, same_values=same_values, overrides=same_values)
            ffn = c.integer("intermediate_size")
            if key[1]:
                shared_values = same_values and kind == "full_attention"
                mixer = _without_keys(mixer, hidden, same_values=shared_values, bias=c.flag("attention_bias"))
                ffn *= 2 if c.flag("use_double_wide_mlp") else 1
            made[key] = Layer(
                mixer,
                experts=moe,
                dense=FeedForward(ffn),
                norm_parameters=hidden * (4 + (3 if moe else 0) + (1 if own else 0)),
                extra_matrix_parameters=2 * hidden * own,
            )
        result.append(made[key])
    width = layers * own
    tables = width * (c.integer("vocab_size_per_layer_input") + hidden) + own if own else 0
    return model(c, result, extra=tables)


def diffusion_gemma(c: Fields) -> Architecture:
    """``diffusion_gemma_text``: the decoder, with a block that conditions on its own guess before.

    The encoder shares the decoder's weights.
    """
    layers, hidden = depth(c), hidden_of(c)
    moe, dense = _experts(c), FeedForward(c.integer("intermediate_size"))
    made = {
        kind: Layer(
            _attention(c, kind, same_values=True, overrides=True),
            experts=moe,
            dense=dense,
            norm_parameters=7 * hidden,
        )
        for kind in ("full_attention", "sliding_attention")
    }
    result = [made[kind] for kind in _types(c, layers)]
    return model(c, result, extra=3 * hidden * dense.ffn + hidden)


def _types(c: Fields, layers: int) -> list[str]:
    kinds = c.types("layer_types", layers, {"full_attention", "sliding_attention"}) or [
        "sliding_attention" if (index + 1) % 6 else "full_attention" for index in range(layers)
    ]
    # Whatever the configuration says, the last layer sees all tokens.
    return [*kinds[:-1], "full_attention"]


def _attention(c: Fields, kind: str, *, same_values: bool, overrides: bool) -> Attention:
    """Attention of a kind.

    Args:
        same_values: layers that see all tokens use their keys as values.
        overrides: those layers may have key/value heads of their own number.
    """
    causal = c.raw("use_bidirectional_attention") != "all"
    bias = c.flag("attention_bias")
    if kind == "sliding_attention":
        width = c.integer("head_dim")
        return gqa(
            c,
            head_dim=width,
            qkv_bias=bias,
            output_bias=bias,
            norm="head",
            window=c.integer("sliding_window", least=0),
            causal=causal,
        )
    table = _full_layers(c)
    width = table.optional("head_dim") or c.integer("global_head_dim", default=512)
    kv_heads = table.optional("num_key_value_heads")
    if kv_heads is None and overrides:
        kv_heads = c.optional("num_global_key_value_heads")
    attention = gqa(c, head_dim=width, kv_heads=kv_heads, qkv_bias=bias, output_bias=bias, norm="head", causal=causal)
    if not same_values:
        return attention
    hidden, values = hidden_of(c), attention.kv_heads * width
    return replace(
        attention,
        projection_parameters=projection_parameters(attention, hidden) - hidden * values,
        extra_parameters=attention.extra_parameters - (values if bias else 0),
    )


def _full_layers(c: Fields) -> Fields:
    """What ``per_layer_config`` says of the layers that see all tokens; it must say the same of all."""
    from ciera_piper_core.models.hf.fields import Fields as Table

    tables = list((c.raw("per_layer_config") or {}).values())
    if any(table != tables[0] for table in tables):
        raise c.refuse("per_layer_config differs between layers, which is not supported")
    return Table(f"{c.family}.per_layer_config", tables[0] if tables else {}, {})


def _without_keys(attention: Attention, hidden: int, *, same_values: bool, bias: bool) -> Attention:
    """Attention of a layer that reads the keys and values of one before."""
    kept = 1 if same_values else 2
    keys = attention.kv_heads * attention.qk_dim
    return replace(
        attention,
        projection_parameters=projection_parameters(attention, hidden) - kept * hidden * keys,
        extra_parameters=attention.extra_parameters - attention.qk_dim - (kept * keys if bias else 0),
    )


def _experts(c: Fields) -> Experts:
    # The router scales its input element by element, and its output expert by expert.
    return experts(c, c.size("moe_intermediate_size"), router_extra=hidden_of(c) + c.size("num_experts"))


FAMILIES = {"gemma4_text": gemma4, "diffusion_gemma_text": diffusion_gemma}
