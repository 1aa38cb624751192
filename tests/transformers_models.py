"""The mixture-of-experts models of ``transformers``, built without memory: what imported configurations are held to."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SMALL: dict[str, Any] = {
    "vocab_size": 1003,
    "hidden_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "intermediate_size": 88,
    "moe_intermediate_size": 40,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "moe_num_experts": 6,
    "num_experts_per_tok": 3,
    "num_experts_per_token": 3,
    "moe_topk": 3,
    "moe_k": 3,
    "top_k_experts": 3,
    "n_shared_experts": 2,
    "num_shared_experts": 2,
    "moe_num_shared_experts": 2,
    "shared_expert_intermediate_size": 52,
    "moe_shared_expert_intermediate_size": 52,
    "shared_intermediate_size": 56,
    "share_expert_dim": 52,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "index_n_heads": 3,
    "index_head_dim": 14,
    "first_k_dense_replace": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_head_dim": 12,
    "linear_num_heads": 5,
    "hc_mult": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes that differ from each other, for every family that has such a field."""

LATENT = {"num_key_value_heads": 8}

ALSO: dict[str, dict[str, Any]] = {
    "aria_text": {"head_dim": 20},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    "sarvam_mla": LATENT,
    "mistral4": LATENT,
    "mistral_large4_text": LATENT | {"kv_source_layers": [0, 1, 1, 3, 3, 3, 6], "index_topk_freq": 2},
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT | {"index_topk_freq": 2},
    "axk1": LATENT,
    "axk2": LATENT | {"gated_norm_rank": 4},
    "hy_v4": LATENT,
    "hy_v4_vl_text": LATENT | {"qk_rope_head_dim": 64},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] + ["sparse"] * 6},
    "dots3_note_text": LATENT | {"shared_experts_intermediate_size": 44},
    "longcat_flash": LATENT
    | {"num_layers": 3, "ffn_hidden_size": 88, "expert_ffn_hidden_size": 40, "zero_expert_num": 3},
    "kimi_linear": LATENT | {"num_hidden_layers": 9},
    "bailing_hybrid": LATENT | {"num_hidden_layers": 13, "head_dim": 8},
    "glm5_next_text": LATENT | {"qk_rope_head_dim": 0, "index_kpool": 5, "index_topk": 50},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "o_groups": 2,
        "o_lora_rank": 18,
        "hc_mult": 3,
        "num_hidden_layers": 9,
    },
    "dbrx": {
        "d_model": 96,
        "n_heads": 8,
        "n_layers": 3,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 3},
    },
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 2},
    "ernie4_5_vl_moe_text": {
        "hidden_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "moe_intermediate_size": [40, 36],
    },
    "gemma4_text": {
        "enable_moe_block": True,
        "hidden_size_per_layer_input": 10,
        "vocab_size_per_layer_input": 900,
        "num_hidden_layers": 13,
        "num_kv_shared_layers": 3,
        "global_head_dim": 28,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "use_double_wide_mlp": True,
    },
    "diffusion_gemma_text": {"num_hidden_layers": 8, "global_head_dim": 28, "num_global_key_value_heads": 4},
    "granitemoehybrid": {
        "mamba_n_heads": 12,
        "mamba_d_head": 16,
        "mamba_d_state": 10,
        "mamba_n_groups": 2,
        "layer_types": ["mamba", "attention"] * 3 + ["mamba"],
    },
    "hunyuan_v1_moe": {"moe_topk": [1, 2, 3, 3, 2, 1, 1]},
    "inkling_text": {
        "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3,
        "swa_head_dim": 18,
        "sliding_window_size": 30,
        "rel_extent": 50,
        "d_rel": 4,
        "unpadded_vocab_size": 990,
        "dense_mlp_idx": 2,
    },
    "inkling2_text": {
        "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3,
        "swa_head_dim": 18,
        "sliding_window_size": 30,
        "rel_extent": 50,
        "d_rel": 4,
        "unpadded_vocab_size": 990,
    },
    "jamba": {"mamba_d_state": 10, "num_hidden_layers": 9},
    "jetmoe": {"num_key_value_heads": 4, "kv_channels": 18},
    "laguna": {"num_attention_heads_per_layer": [8, 4, 8, 4, 8, 4, 8], "layer_types": ["full_attention"] * 7},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3 + ["conv"]},
    "llama4_text": {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 100},
    "minimax_m3_vl_text": {
        "dense_intermediate_size": 100,
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 4,
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 5,
    },
    "muse_spark_text": {"moe_hidden_size": 64, "mlp_layer_types": ["dense"] + ["sparse"] * 6},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mlp", "moe"],
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "ssm_state_size": 12,
        "n_groups": 2,
        "moe_latent_size": 48,
    },
    "nllb-moe": {
        "d_model": 96,
        "encoder_layers": 5,
        "decoder_layers": 3,
        "encoder_ffn_dim": 88,
        "decoder_ffn_dim": 80,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 6,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 3,
    },
    "qwen2_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_vl_moe_text": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_omni_moe_text": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 52},
    "qwen3_next": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen4_exp_text": {
        "indexer_n_heads": 3,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 22,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "hc_count": 3,
        "hc_lowrank": 11,
        "ple_layer_ids": [2, 5],
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "eos_token_id": 1,
    },
    "step3p5": {
        "num_sliding_attention_heads": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"],
    },
    "switch_transformers": {
        "d_model": 96,
        "d_kv": 14,
        "d_ff": 88,
        "num_layers": 6,
        "num_decoder_layers": 4,
        "num_sparse_encoder_layers": 3,
        "num_sparse_decoder_layers": 1,
        "num_heads": 5,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 18, "cca_time0": 3, "cca_time1": 4},
}
ALSO["inkling2_loop_text"] = ALSO["inkling2_text"] | {
    "num_hidden_layers": 12,
    "n_layers_per_attn_res_block": 3,
    "loop_layer_index_start": 3,
    "loop_layer_index_end": 9,
    "loop_num_passes": 2,
    "loop_gate_rank": 7,
}
"""What some families need beside, or to show what is special to them."""

CLASSES = {
    "deepseek_ocr2_text": "DeepseekOcr2TextModel",
    "ernie4_5_vl_moe_text": "Ernie4_5_VLMoeTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "qwen3_omni_moe_talker_text": "Qwen3OmniMoeTalkerModel",
    "step3p5": "Step3p7TextModel",
    "unlimited_ocr_text": "UnlimitedOcrTextModel",
    "diffusion_gemma_text": "DiffusionGemmaDecoderModel",
}
"""Text models that no auto class builds."""


def config_class(family: str) -> type:
    """The family's configuration class."""
    return CONFIG_MAPPING[family]


def small_config(family: str, **changes: Any) -> dict[str, Any]:
    """A small ``config.json`` of the family."""
    names = {field.name for field in dataclasses.fields(config_class(family))}
    values = {name: value for name, value in SMALL.items() if name in names}
    return values | ALSO.get(family, {}) | changes | {"model_type": family}


def changed_flags(family: str) -> dict[str, bool]:
    """The other value of every flag of the family that adds or takes away weights."""
    flags = {
        field.name: not field.default
        for field in dataclasses.fields(config_class(family))
        if isinstance(field.default, bool) and ("bias" in field.name or field.name in ("use_qk_norm", "is_moe"))
    }
    if family != "dbrx":
        # Which refuses to share the embedding.
        flags["tie_word_embeddings"] = not getattr(config_class(family)(), "tie_word_embeddings", False)
    return flags


def build(family: str, values: dict[str, Any]) -> tuple[torch.nn.Module, bool]:
    """The model of a configuration on the meta device, and whether it has the projection to the vocabulary."""
    values = {name: value for name, value in values.items() if name != "model_type"}
    config = config_class(family)(**values)
    with torch.device("meta"):
        if family in ("switch_transformers", "nllb-moe"):
            return AutoModelForSeq2SeqLM.from_config(config), True
        if family == "diffusion_gemma_text":
            whole = transformers.DiffusionGemmaConfig(text_config=config)
            return _class(CLASSES[family], "diffusion_gemma")(whole), False
        if family in CLASSES:
            module = type(config).__module__.rsplit(".", 2)[-2]
            return _class(CLASSES[family], module)(config), False
        if family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            return AutoModelForCausalLM.from_config(config), True
        model = AutoModel.from_config(config)
        return model, hasattr(model, "lm_head")


@functools.cache
def _class(name: str, folder: str) -> Any:
    import importlib

    return getattr(importlib.import_module(f"transformers.models.{folder}.modeling_{folder}"), name)


def parameters(family: str, model: torch.nn.Module) -> int:
    """Weights of a model, each once.

    Left out is what is no weight of the language model: experts that only images go to, and rows that
    ``longcat_flash`` allocates for its empty experts and never uses (its checkpoints have none).
    """
    total = 0
    for name, parameter in model.named_parameters():
        if ".vision_moe." in name:
            continue
        size = parameter.numel()
        if family == "longcat_flash" and name.endswith("experts.gate_up_proj"):
            size = size // parameter.shape[0] * (parameter.shape[0] - model.config.zero_expert_num)
        total += size
    return total
