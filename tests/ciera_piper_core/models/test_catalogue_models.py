"""Models of the catalogue against those that ``transformers`` builds from their public configurations."""

from __future__ import annotations

from typing import Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.hf import from_hf
from ciera_piper_core.models.parameters import model_parameters
from tests import transformers_models as reference


def decoder(hidden: int, layers: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
    } | more


def latent(q_lora: int | None, heads: int) -> dict[str, Any]:
    return {
        "num_key_value_heads": heads,
        "q_lora_rank": q_lora,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }


def deepseek(experts: int, top_k: int, ffn: int, shared: int, dense: int, dense_ffn: int) -> dict[str, Any]:
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": ffn,
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
        "intermediate_size": dense_ffn,
    }


def qwen3(hidden: int, layers: int, heads: int, ffn: int) -> dict[str, Any]:
    more = {"num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
    return decoder(hidden, layers, heads, 151936, moe_intermediate_size=ffn, intermediate_size=12288, **more)


def mixtral(hidden: int, layers: int, heads: int, ffn: int, vocab: int) -> dict[str, Any]:
    more = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
    return decoder(hidden, layers, heads, vocab, intermediate_size=ffn, **more)


def llama4(experts: int, step: int) -> dict[str, Any]:
    more = {"num_key_value_heads": 8, "head_dim": 128, "num_local_experts": experts, "num_experts_per_tok": 1}
    more |= {"interleave_moe_layer_step": step, "intermediate_size_mlp": 16384}
    return decoder(5120, 48, 40, 202048, intermediate_size=8192, **more)


PUBLIC: dict[str, tuple[str, dict[str, Any]]] = {
    "olmoe-1b-7b": (
        "olmoe",
        decoder(
            2048, 16, 16, 50304, intermediate_size=1024, num_key_value_heads=16, num_experts=64, num_experts_per_tok=8
        ),
    ),
    "qwen2-57b-a14b": (
        "qwen2_moe",
        decoder(
            3584,
            28,
            28,
            151936,
            num_key_value_heads=4,
            num_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=2560,
            shared_expert_intermediate_size=20480,
            intermediate_size=18944,
        ),
    ),
    "mixtral-8x7b": ("mixtral", mixtral(4096, 32, 32, 14336, 32000)),
    "mixtral-8x22b": ("mixtral", mixtral(6144, 56, 48, 16384, 32768)),
    "dbrx": (
        "dbrx",
        {
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8, "rope_theta": 5e5},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
    "deepseek-v2-lite": (
        "deepseek_v2",
        decoder(2048, 27, 16, 102400) | latent(None, 16) | deepseek(64, 6, 1408, 2, 1, 10944),
    ),
    "deepseek-v2": (
        "deepseek_v2",
        decoder(5120, 60, 128, 102400) | latent(1536, 128) | deepseek(160, 6, 1536, 2, 1, 12288),
    ),
    "deepseek-v3": (
        "deepseek_v3",
        decoder(7168, 61, 128, 129280) | latent(1536, 128) | deepseek(256, 8, 2048, 1, 3, 18432),
    ),
    "kimi-k2": (
        "deepseek_v3",
        decoder(7168, 61, 64, 163840)
        | latent(1536, 64)
        | deepseek(384, 8, 2048, 1, 1, 18432)
        | {"num_nextn_predict_layers": 0, "n_group": 1, "topk_group": 1},
    ),
    "qwen3-30b-a3b": ("qwen3_moe", qwen3(2048, 48, 32, 768)),
    "qwen3-235b-a22b": ("qwen3_moe", qwen3(4096, 94, 64, 1536)),
    "llama-4-scout": ("llama4_text", llama4(16, 1)),
    "llama-4-maverick": ("llama4_text", llama4(128, 2)),
    "switch-base-128": (
        "switch_transformers",
        {
            "d_model": 768,
            "d_kv": 64,
            "d_ff": 3072,
            "num_layers": 12,
            "num_decoder_layers": 12,
            "num_sparse_encoder_layers": 6,
            "num_sparse_decoder_layers": 6,
            "num_heads": 12,
            "num_experts": 128,
            "vocab_size": 32128,
            "tie_word_embeddings": True,
        },
    ),
}
"""Family and sizes of the models whose configuration is public and whose family ``transformers`` has."""


@pytest.mark.parametrize("name", PUBLIC)
def test_the_catalogue_has_the_parameters_of_transformers(name: str) -> None:
    family, config = PUBLIC[name]
    model, has_output = reference.build(family, config)
    assert has_output
    assert model_parameters(catalogue.load(name), mtp=False).total == reference.parameters(family, model)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_import_of_the_same_configuration_is_the_catalogues_model(name: str) -> None:
    family, config = PUBLIC[name]
    ours, imported = catalogue.load(name), from_hf(config | {"model_type": family})
    assert (imported.layers, imported.encoder, imported.mtp) == (ours.layers, ours.encoder, ours.mtp)
    assert model_parameters(imported) == model_parameters(ours)
