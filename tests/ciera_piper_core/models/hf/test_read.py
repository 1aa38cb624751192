"""Reading a configuration: the text part, spellings, layers that predict further tokens, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import MLA, Attention, Recurrence
from ciera_piper_core.models.hf import from_hf, read_config, supported_families
from ciera_piper_core.models.hf.fields import MOST_LAYERS
from ciera_piper_core.models.hf.read import MOST_PARAMETERS
from ciera_piper_core.models.parameters import model_parameters

if TYPE_CHECKING:
    from pathlib import Path

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "attention_bias": False,
    "tie_word_embeddings": False,
}

GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "attention_bias": True,
    "vocab_size": 201088,
}

QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "full_attention_interval": 4,
    "vocab_size": 151936,
}


def written(folder: Path, config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return file


def test_an_imported_model_is_the_one_of_the_catalogue() -> None:
    for config, name in ((MIXTRAL, "mixtral-8x7b"), (DEEPSEEK_V3, "deepseek-v3")):
        ours, theirs = catalogue.load(name), from_hf(config)
        assert (theirs.layers, theirs.mtp, theirs.extra_parameters) == (ours.layers, ours.mtp, ours.extra_parameters)
        assert model_parameters(theirs) == model_parameters(ours)


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        # The publishers' numbers, in 1e9. GPT-OSS counts the output among the active ones, not the embedding.
        (GPT_OSS, 116.83, 5.13),
        (QWEN3_NEXT, 79.67, None),
    ],
    ids=["gpt-oss-120b", "qwen3-next-80b"],
)
def test_published_sizes(config: dict[str, Any], total: float, active: float | None) -> None:
    counted = model_parameters(from_hf(config))
    assert counted.total / 1e9 == pytest.approx(total, rel=1e-4)
    if active:
        assert (counted.active - counted.embedding) / 1e9 == pytest.approx(active, rel=0.01)


def test_layers_alternate_as_the_configuration_says() -> None:
    mixers = [layer.mixer for layer in from_hf(GPT_OSS).layers]
    assert [mixer.window for mixer in mixers if isinstance(mixer, Attention)] == [128, 0] * 18
    kinds = [type(layer.mixer) for layer in from_hf(QWEN3_NEXT).layers]
    assert kinds == [Recurrence, Recurrence, Recurrence, Attention] * 12


def test_latent_attention() -> None:
    attention = from_hf(DEEPSEEK_V3).attention
    assert attention.mla == MLA(q_lora=1536, kv_lora=512, qk_nope=128, qk_rope=64, v_head=128)
    assert (attention.head_kind, attention.qk_dim, attention.v_dim) == ("mla", 192, 128)
    full_rank = from_hf(DEEPSEEK_V3 | {"q_lora_rank": None}).attention
    assert full_rank.mla is not None
    assert full_rank.mla.q_lora == 0


def test_layers_that_predict_further_tokens() -> None:
    without = from_hf(DEEPSEEK_V3 | {"num_nextn_predict_layers": 0})
    assert without.mtp == ()
    one = from_hf(DEEPSEEK_V3)
    layer = one.layers[-1]
    assert [mtp.experts for mtp in one.mtp] == [layer.experts]
    # As in the checkpoint: a layer, a projection of embedding and state, and a norm of each and of the output.
    added = model_parameters(one).total - model_parameters(one, mtp=False).total
    last = (
        model_parameters(without).total
        - model_parameters(from_hf(DEEPSEEK_V3 | {"num_hidden_layers": 60}), mtp=False).total
    )
    assert added == last + 2 * 7168**2 + 3 * 7168


@pytest.mark.parametrize("spelling", ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])
def test_every_spelling_is_read(spelling: str) -> None:
    config = {name: value for name, value in MIXTRAL.items() if name != "num_local_experts"}
    assert from_hf(config | {spelling: 8}) == from_hf(MIXTRAL)


def test_two_spellings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="num_experts is 4, but num_local_experts, the same field, is 8"):
        from_hf(MIXTRAL | {"num_experts": 4})


@pytest.mark.parametrize("part", ["text_config", "language_config", "llm_config"])
def test_the_text_part_of_a_model_of_several_modalities(part: str) -> None:
    outer = {"model_type": "some_vision_model", part: MIXTRAL, "vision_config": {"hidden_size": 1}}
    assert from_hf(outer, "x") == from_hf(MIXTRAL, "x")


def test_a_text_part_that_does_not_name_its_family() -> None:
    text = {name: value for name, value in QWEN3_NEXT.items() if name not in ("model_type", "intermediate_size")}
    named = from_hf(text | {"model_type": "qwen3_5_moe_text"}, "x")
    assert from_hf({"model_type": "qwen3_5_moe", "text_config": text}, "x") == named
    # The whole model says whether the output is the embedding.
    tied = from_hf({"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": True}, "x")
    assert tied.tied_embeddings
    assert not named.tied_embeddings


def test_a_text_part_two_levels_down() -> None:
    thinker = {"model_type": "qwen3_omni_moe_thinker", "text_config": {"num_experts": 8} | _qwen3()}
    outer = {"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {}}
    assert from_hf(outer).experts.experts == 8


def _qwen3() -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts_per_tok": 2,
        "vocab_size": 100,
    }


def test_kimi_k2_is_read_under_its_own_name() -> None:
    assert from_hf(DEEPSEEK_V3 | {"model_type": "kimi_k2"}, "x") == from_hf(DEEPSEEK_V3, "x")


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    file = written(tmp_path, MIXTRAL)
    for path in (file, str(file), tmp_path):
        architecture = read_config(path)
        assert (architecture.name, architecture.source) == (tmp_path.name, "import")
        assert architecture.layers == catalogue.load("mixtral-8x7b").layers
    other = tmp_path / "mine.json"
    file.rename(other)
    assert read_config(other).name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no table of fields"),
        ("{}", "lacks model_type; supported: afmoe, "),
        ('{"model_type": "llama"}', r"unknown family 'llama' \(field model_type\); .*supported: afmoe, .*zaya"),
        ('{"model_type": "mixtal"}', "did you mean mixtral"),
        ('{"model_type": "vitpose_backbone"}', "no language model: its experts are heads for poses"),
        ('{"model_type": "mixtral"}', r"lacks hidden_size \(also read as d_model\)"),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as caught:
        read_config(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*config\.json: No such file"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, but there are 8 experts"),
        ({"num_key_value_heads": 5}, "num_attention_heads is 32, which num_key_value_heads, 5, does not divide"),
        ({"hidden_size": -1}, "hidden_size is -1; it must be a whole number of at least 1"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"vocab_size": "big"}, "vocab_size is 'big'"),
        ({"num_hidden_layers": 3.0}, "num_hidden_layers is 3.0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"num_attention_heads": 8192}, "num_attention_heads is 8192, more than hidden_size"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers is 100000000; it must be at most 4096"),
        ({"num_local_experts": 10**5}, "num_experts is 100000; it must be at most 65536"),
        ({"vocab_size": "v" * 10**6}, r"vocab_size is 'v{59}\.\.\. \(1000002 characters\)"),
        ({"model_type": "m" * 5_000_000}, r"unknown family 'm{59}\.\.\. \(5000002 characters\) \(field model_type\)"),
        (
            {"hidden_size": 2**24, "intermediate_size": 2**24, "num_local_experts": 2**16, "num_hidden_layers": 2**12},
            "its fields make .* parameters, and a plan takes at most 1e\\+15",
        ),
    ],
)
def test_wrong_and_contradictory_values(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf(MIXTRAL | change)


@pytest.mark.parametrize("base", [MIXTRAL, DEEPSEEK_V3, GPT_OSS], ids=lambda base: str(base["model_type"]))
def test_no_size_is_without_bound(base: dict[str, Any]) -> None:
    refused = set()
    for name, value in base.items():
        if type(value) is not int:
            continue
        try:
            # What the family does not read, it may have any value.
            assert from_hf(base | {name: 10**30}) == from_hf(base), name
        except ValueError as error:
            assert "10000000000" in str(error)  # noqa: PT017
            refused.add(name)
    assert {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"} <= refused
    assert len(refused) >= 7


def test_a_model_at_every_bound_is_read_and_planned_quickly() -> None:
    deep = from_hf(MIXTRAL | {"num_hidden_layers": MOST_LAYERS, "hidden_size": 64, "intermediate_size": 64})
    assert len(deep.layers) == MOST_LAYERS
    assert model_parameters(deep).total < MOST_PARAMETERS


@pytest.mark.parametrize("part", ["[", '{"text_config":'])
def test_a_file_nested_beyond_reading_is_one_line(tmp_path: Path, part: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|is no JSON") as caught:
        read_config(written(tmp_path, part * 200_000))
    assert "\n" not in str(caught.value)
    inner = '{"text_config":' * 900 + "1" + "}" * 900
    with pytest.raises(ValueError, match=r"nested too deeply|model_type"):
        read_config(written(tmp_path, inner))


@pytest.mark.parametrize(
    "change", [{"layer_types": [[1]] * 36}, {"layer_types": [{}] * 36}, {"rope_scaling": 3, "layer_types": [None] * 36}]
)
def test_fields_of_another_form_are_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"another form|layer_types") as caught:
        read_config(written(tmp_path, json.dumps(GPT_OSS | change)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"] * 3}, "layer_types names 3 layers, but the model has 36"),
        ({"layer_types": ["odd"] * 36}, "layer_types is 'odd'; it must be one of"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention'; it must be a list"),
    ],
)
def test_lists_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf(GPT_OSS | change)


def test_a_null_is_no_number() -> None:
    with pytest.raises(ValueError, match="lacks num_experts "):
        from_hf(MIXTRAL | {"num_local_experts": None})
    # As transformers reads it: as many key/value heads as heads.
    assert from_hf(MIXTRAL | {"num_key_value_heads": None}).attention.kv_heads == 32


def test_families_are_listed() -> None:
    families = supported_families()
    assert families == sorted(families)
    assert {"mixtral", "deepseek_v3", "llama4", "gpt_oss", "qwen3_5_moe", "nllb-moe"} <= set(families)


def test_reading_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    file = written(tmp_path, DEEPSEEK_V3)
    code = f"""
import sys
from ciera_piper_core.models.catalogue import model
from ciera_piper_core.models.parameters import model_parameters
assert model_parameters(model({str(file)!r}), mtp=False).total == 671026404352
assert not {{"torch", "transformers", "numpy"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
