"""Fields as publishers' own configurations spell them: read as ``transformers`` reads them."""

from __future__ import annotations

from typing import Any

import pytest

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.models.hf import from_hf
from ciera_piper_core.models.parameters import model_parameters
from tests import transformers_models as reference

CASES: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    # Family, fields that the small configuration then lacks, and the publisher's fields.
    ("nemotron_h", ("layers_block_type",), {"hybrid_override_pattern": "ME*-EM"}),
    ("nemotron_h", ("n_groups",), {"mamba_n_groups": 3, "mamba_d_conv": 5, "mamba_conv_bias": False}),
    (
        "kimi_linear",
        ("linear_head_dim", "linear_num_heads", "first_k_dense_replace"),
        {
            "linear_attn_config": {
                "head_dim": 14,
                "num_heads": 3,
                "short_conv_kernel_size": 5,
                "full_attn_layers": [4, 8, 9],
                "kda_layers": [1, 2, 3, 5, 6, 7],
            },
            "first_k_dense_replace": 3,
        },
    ),
    ("kimi_linear", ("first_k_dense_replace",), {}),
    ("glm_moe_dsa", ("index_topk_freq",), {"index_topk_pattern": "FFSSFSF"}),
    ("glm_moe_dsa", (), {"index_topk_freq": 3, "index_skip_topk_offset": 1}),
    ("mistral_large4_text", (), {"no_rope_layers": [1, 0, 1, 0, 1, 0, 1], "index_topk_pattern": "FSFSFSF"}),
    ("hy_v4", (), {"indexer_types": ["full", "shared"] * 3 + ["full"]}),
    ("deepseek_v4", (), {"compress_ratios": [128, 4, 0, 128, 4, 0, 4, 4, 128]}),
    ("deepseek_v4", (), {"compress_rate_csa": 6, "compress_rate_hca": 20}),
    ("axk1", ("first_k_dense_replace",), {"first_k_dense_replace": 2, "moe_layer_freq": 2}),
    ("axk2", (), {}),
    ("dots3_note_text", (), {"use_dsa": False, "first_k_dense_replace": 2}),
    ("dots3_note_text", (), {"use_sliding_window": False, "moe_layer_freq": [1, 1, 0, 1, 0, 1, 1]}),
    (
        "dots3_note_text",
        (),
        {
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "swa_q_lora_rank": 30,
            "swa_kv_lora_rank": 18,
            "swa_head_dim": 26,
            "swa_qk_nope_head_dim": 16,
            "swa_v_head_dim": 14,
            "moe_shared_expert_intermediate_size": 37,
        },
    ),
    ("step3p5", ("num_sliding_attention_heads",), {"attention_other_setting": {"num_attention_heads": 6}}),
    ("step3p5", (), {"moe_layers_enum": "2,4,5"}),
    (
        "minimax_m3_vl_text",
        ("layer_types", "mlp_layer_types", "index_n_heads", "index_head_dim"),
        {
            "sparse_attention_config": {
                "sparse_attention_freq": [0, 0, 1, 1, 1, 1, 1],
                "sparse_num_index_heads": 5,
                "sparse_index_dim": 22,
            },
            "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1],
        },
    ),
    ("cohere2_moe", (), {"first_k_dense_replace": 2, "prefix_dense_intermediate_size": 60}),
    ("glm5_next_text", (), {"linear_attn_config": {"num_heads": 3, "head_dim": 10, "short_conv_kernel_size": 5}}),
    ("inkling_text", ("moe_intermediate_size",), {"intermediate_size": 40, "dense_intermediate_size": 90}),
    ("inkling_text", (), {"local_layer_ids": [0, 3]}),
    ("inkling2_loop_text", (), {"loop_config": {"core_start": 6, "core_end": 9, "gate_rank": 5, "num_passes": 3}}),
    ("gemma4_text", (), {"enable_moe_block": False, "num_kv_shared_layers": 0, "attention_k_eq_v": False}),
    ("granitemoehybrid", ("num_local_experts",), {"num_local_experts": 0}),
    ("laguna", (), {"gating": "per-element"}),
    ("llama4_text", (), {"moe_layers": [1, 4]}),
    ("lfm2_moe", (), {"tie_embedding": False}),
    ("mellum", (), {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 4}),
    ("qwen3_5_moe_text", (), {"full_attention_interval": 3}),
    ("unlimited_ocr_text", (), {"first_k_dense_replace": 3}),
    ("jamba", (), {"mamba_dt_rank": "auto"}),
]


@pytest.mark.parametrize(
    ("family", "without", "fields"), CASES, ids=[f"{family}-{','.join(fields)}"[:70] for family, _, fields in CASES]
)
def test_publishers_fields(family: str, without: tuple[str, ...], fields: dict[str, Any]) -> None:
    values = {name: value for name, value in reference.small_config(family).items() if name not in without} | fields
    model, has_output = reference.build(family, values)
    ours = model_parameters(from_hf(values), mtp=False)
    expected = ours.total if has_output else ours.total - ours.output
    assert expected == reference.parameters(family, model)


def test_the_window_of_mimo_does_not_count_the_query() -> None:
    values = reference.small_config("mimo_v2_flash", sliding_window_size=30)
    windows = {layer.mixer.window for layer in from_hf(values).layers if isinstance(layer.mixer, Attention)}
    assert windows == {0, 31}


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        (
            "kimi_linear",
            {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [2]}},
            "other layers than 1 to 9",
        ),
        ("nemotron_h", {"layers_block_type": ["mamba", "odd"]}, "layers_block_type has 'odd'"),
        ("glm_moe_dsa", {"index_topk_pattern": "FX"}, "index_topk_pattern must name 7 layers"),
        ("deepseek_v4", {"compress_ratios": [4, 5]}, "compress_ratios must give each of 9 layers one of 0, 4, 128"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, "moe_topk names 2 layers, but the model has 7"),
        ("ernie4_5_vl_moe_text", {"moe_intermediate_size": [8]}, "a width for text and one for images"),
        ("granitemoehybrid", {"mamba_d_head": 3}, "mamba_n_heads times mamba_d_head is 36, but mamba_expand makes 192"),
        ("qwen4_exp_text", {"ple_layer_ids": [9]}, "ple_layer_ids has 9, but layers count from 1 to 7"),
        ("laguna", {"num_attention_heads_per_layer": [8]}, "num_attention_heads_per_layer names 1 layers"),
        ("step3p5", {"layer_types": ["odd"] * 7}, "layer_types has 'odd'"),
        ("mistral_large4_text", {"no_rope_layers": [1]}, "must each name 7 layers"),
    ],
)
def test_fields_that_do_not_fit(family: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf(reference.small_config(family, **fields))


def test_layers_that_predict_further_tokens_of_nemotron() -> None:
    values = reference.small_config("nemotron_h", num_nextn_predict_layers=2, mtp_hybrid_override_pattern="*E")
    architecture = from_hf(values)
    assert len(architecture.mtp) == 2
    assert architecture.mtp[0].experts == architecture.experts
    assert isinstance(architecture.mtp[0].mixer, Attention)
    with pytest.raises(ValueError, match="a kind of block more than once"):
        from_hf(values | {"mtp_hybrid_override_pattern": "*EE"})
