"""Tests of the categories: names of this package's models, and of models in the wild."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.allgather.categories import (
    ATTENTION,
    CATEGORIES,
    DENSE_FFN,
    EMBEDDING,
    EXPERT_FFN,
    LAYER_NORM,
    OTHER,
    ROUTING_GATE,
    category_of,
    plain_name,
)
from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.transformer import Transformer

WILD = {
    "model.embed_tokens.weight": ((50304, 2048), EMBEDDING),
    "lm_head.weight": ((50304, 2048), EMBEDDING),
    "tok_embeddings.weight": ((50304, 2048), EMBEDDING),
    "transformer.wte.weight": ((50257, 768), EMBEDDING),
    "transformer.wpe.weight": ((1024, 768), EMBEDDING),
    "output.weight": ((50304, 2048), EMBEDDING),
    "model.norm.weight": ((2048,), LAYER_NORM),
    "transformer.ln_f.bias": ((768,), LAYER_NORM),
    "model.layers.3.input_layernorm.weight": ((2048,), LAYER_NORM),
    "model.layers.3.post_attention_layernorm.weight": ((2048,), LAYER_NORM),
    "model.layers.3.self_attn.q_norm.weight": ((2048,), LAYER_NORM),
    "model.layers.3.self_attn.kv_a_layernorm.weight": ((512,), LAYER_NORM),
    "layers.3.attention_norm.weight": ((2048,), LAYER_NORM),
    "encoder.block.0.norm1.weight": ((2048,), LAYER_NORM),
    "model.layers.3.self_attn.q_proj.weight": ((2048, 2048), ATTENTION),
    "model.layers.3.self_attn.kv_b_proj.weight": ((4096, 512), ATTENTION),
    "model.layers.3.self_attn.sinks": ((64,), ATTENTION),
    "layers.3.attention.wq.weight": ((2048, 2048), ATTENTION),
    "transformer.h.3.attn.c_attn.weight": ((768, 2304), ATTENTION),
    "model.layers.3.mlp.gate.weight": ((64, 2048), ROUTING_GATE),
    "model.layers.3.mlp.gate.e_score_correction_bias": ((256,), ROUTING_GATE),
    "model.layers.3.block_sparse_moe.gate.weight": ((8, 4096), ROUTING_GATE),
    "model.layers.3.mlp.shared_expert_gate.weight": ((1, 2048), ROUTING_GATE),
    "model.layers.3.feed_forward.router.weight": ((16, 5120), ROUTING_GATE),
    "layers.3.moe.router.gate.weight": ((64, 2048), ROUTING_GATE),
    "model.layers.3.mlp.experts.17.gate_proj.weight": ((1024, 2048), EXPERT_FFN),
    "model.layers.3.mlp.experts.gate_up_proj": ((128, 2880, 5760), EXPERT_FFN),
    "model.layers.3.block_sparse_moe.experts.5.w1.weight": ((14336, 4096), EXPERT_FFN),
    "model.layers.3.mlp.shared_experts.down_proj.weight": ((2048, 2816), EXPERT_FFN),
    "layers.3.moe.w1": ((64, 1024, 2048), EXPERT_FFN),
    "model.layers.0.mlp.gate_proj.weight": ((8192, 2048), DENSE_FFN),
    "model.layers.0.mlp.gate.weight": ((8192, 2048), DENSE_FFN),
    "transformer.h.3.mlp.c_fc.weight": ((768, 3072), DENSE_FFN),
    "layers.3.feed_forward.w2.weight": ((2048, 8192), DENSE_FFN),
    "temperature": ((1,), OTHER),
    "backbone.conv.weight": ((64, 4), OTHER),
}


@pytest.mark.parametrize("name", WILD)
def test_names_in_the_wild(name: str) -> None:
    shape, category = WILD[name]
    assert category_of(name, shape) == category
    wrapped = name.replace(".layers.3.", ".layers.3._checkpoint_wrapped_module.")
    assert category_of(f"_orig_mod.{wrapped}", shape) == category


def test_all_parts_of_our_models() -> None:
    layers = (
        Layer(Attention(2, 2, 12, 8, MLA(16, 8, 8, 4, 8)), dense=FeedForward(48)),
        Layer(Attention(4, 2, 8, 8), Experts(5, 2, 24, shared_ffn=16)),
    )
    with torch.device("meta"):
        model = Transformer(Architecture("parts", 32, 50, layers), device="meta")
    by_category: dict[str, set[str]] = {category: set() for category in CATEGORIES}
    for name, weight in model.named_parameters():
        by_category[category_of(name, weight.shape)].add(name)
    assert by_category[EMBEDDING] == {"embedding.weight", "output.weight"}
    assert by_category[ROUTING_GATE] == {"layers.1.routed_experts.router.weight"}
    assert by_category[EXPERT_FFN] == {
        f"layers.1.{part}.{matrix}"
        for part in ("routed_experts.experts", "shared_experts")
        for matrix in ("up", "gate", "down")
    }
    assert by_category[DENSE_FFN] == {f"layers.0.dense.{matrix}" for matrix in ("up", "gate", "down")}
    assert all(".attention." in name for name in by_category[ATTENTION])
    assert all("norm" in name for name in by_category[LAYER_NORM])
    assert "norm.weight" in by_category[LAYER_NORM]
    assert by_category[OTHER] == set()


def test_plain_names() -> None:
    assert plain_name("_orig_mod.layers.0._checkpoint_wrapped_module.up") == "layers.0.up"
    assert plain_name("layers.0.up") == "layers.0.up"
