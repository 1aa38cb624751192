"""Families of an encoder and a decoder: Switch Transformers and NLLB."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Attention, FeedForward, Layer
from ciera_piper_core.models.hf.blocks import experts, hidden_of, model

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.models.hf.fields import Fields


def switch_transformers(c: Fields) -> Architecture:
    """``switch_transformers``: relative positions in the first layer of each stack; one expert a token."""
    hidden, heads, width = hidden_of(c), c.size("num_attention_heads"), c.integer("d_kv")
    encoder_layers = c.size("num_hidden_layers")
    decoder_layers = c.optional("num_decoder_layers") or encoder_layers
    ffn = c.size("d_ff")
    router_bias = c.size("num_experts") if c.flag("router_bias") else 0
    moe = experts(c, ffn, top_k=1, matrices=2, router_extra=router_bias)
    attention = Attention(heads, heads, width, width)
    two_way = replace(attention, causal=False)
    positions = c.integer("relative_attention_num_buckets") * heads

    def layers(count: int, sparse: int, mixer: Attention, cross: Attention | None) -> list[Layer]:
        step = count // sparse if sparse else count
        norms = hidden * (3 if cross else 2)
        made = [
            Layer(mixer, experts=moe, cross=cross, norm_parameters=norms)
            if index % step == 1 or step == 1
            else Layer(mixer, dense=FeedForward(ffn, 2), cross=cross, norm_parameters=norms)
            for index in range(count)
        ]
        first = replace(mixer, extra_parameters=mixer.extra_parameters + positions)
        return [replace(made[0], mixer=first), *made[1:]]

    encoder = layers(encoder_layers, c.integer("num_sparse_encoder_layers", least=0), two_way, None)
    decoder = layers(decoder_layers, c.integer("num_sparse_decoder_layers", least=0), attention, two_way)
    return model(c, decoder, encoder=encoder, extra=hidden + _own_embeddings(c))


def _own_embeddings(c: Fields) -> int:
    """Weights of the embeddings of encoder and decoder, where they do not share the model's."""
    return 0 if c.flag("tie_word_embeddings") else 2 * c.size("vocab_size") * hidden_of(c)


def nllb_moe(c: Fields) -> Architecture:
    """``nllb-moe``: biases everywhere; two experts a token; positions have no weights."""
    hidden = hidden_of(c)

    def layers(part: str, *, cross: bool) -> list[Layer]:
        heads, ffn = c.integer(f"{part}_attention_heads"), c.integer(f"{part}_ffn_dim")
        step = c.integer(f"{part}_sparse_step", least=0)
        width = hidden // heads
        own = Attention(heads, heads, width, width, causal=cross, extra_parameters=4 * hidden)
        router_bias = c.size("num_experts") if c.flag("router_bias") else 0
        moe = experts(c, ffn, top_k=2, matrices=2, bias=True, router_extra=router_bias)
        dense = FeedForward(ffn, 2, ffn + hidden)
        other = replace(own, causal=False) if cross else None
        norms = hidden * (6 if cross else 4)
        return [
            Layer(own, experts=moe, cross=other, norm_parameters=norms)
            if step and (index + 1) % step == 0
            else Layer(own, dense=dense, cross=other, norm_parameters=norms)
            for index in range(c.size(f"{part}_layers"))
        ]

    # Each stack ends with a norm that has a bias.
    return model(
        c, layers("decoder", cross=True), encoder=layers("encoder", cross=False), extra=3 * hidden + _own_embeddings(c)
    )


FAMILIES = {"switch_transformers": switch_transformers, "nllb-moe": nllb_moe}
