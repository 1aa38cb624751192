"""Tests of the catalogue: known sizes follow from the dimensions, and bad tables are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import HEAD_KINDS, MLA, Attention
from ciera_piper_core.models.parameters import model_parameters

if TYPE_CHECKING:
    from pathlib import Path

TABLE: dict[str, Any] = {
    "hidden": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "experts": 8,
    "top_k": 2,
    "expert_ffn": 32,
    "matrices_per_expert": 3,
    "vocab": 100,
    "total_params_billion": 0.1,
    "source": "size",
}
LATENT = {"q_lora": 8, "kv_lora": 8, "qk_nope": 16, "qk_rope": 8, "v_head": 16}
ROUNDED = {"glam-1.2t": 1e11}
"""Models of which the publisher gives no more than these parameters as the last digit."""


@pytest.mark.parametrize("name", catalogue.names())
def test_the_dimensions_give_the_known_size(name: str) -> None:
    architecture = catalogue.load(name)
    counted = model_parameters(architecture, mtp=False)
    without = 0 if architecture.embeddings_in_total else counted.embedding + counted.output
    assert architecture.total_params_billion is not None
    known = architecture.total_params_billion * 1e9
    allowed = ROUNDED[name] / 2 if name in ROUNDED else known * 0.001
    assert counted.total - without == pytest.approx(known, abs=allowed)


@pytest.mark.parametrize(
    "name", [name for name in catalogue.names() if catalogue.load(name).active_params_billion is not None]
)
def test_the_dimensions_give_the_published_active_size(name: str) -> None:
    architecture = catalogue.load(name)
    assert architecture.active_params_billion is not None
    active = model_parameters(architecture, mtp=False).active
    assert active / 1e9 == pytest.approx(architecture.active_params_billion, rel=0.01)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # To the last weight, as the published checkpoints have them.
        ("olmoe-1b-7b", 6_919_161_856),
        ("deepseek-moe-16b", 16_375_728_128),
        ("mixtral-8x7b", 46_702_792_704),
        ("dbrx", 131_596_523_520),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        # Without the bias that balances the router, which is no weight: 58 layers of 256, and 60 of 384.
        ("deepseek-v3", 671_026_419_200 - 58 * 256),
        ("kimi-k2", 1_026_408_232_448 - 60 * 384),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_known_checkpoints_to_the_last_weight(name: str, total: int) -> None:
    assert model_parameters(catalogue.load(name), mtp=False).total == total


@pytest.mark.parametrize(("experts", "printed"), [(16, 110), (32, 218), (64, 432), (128, 862), (256, 1721)])
def test_the_scaling_family_of_the_piper_paper_has_the_printed_sizes(experts: int, printed: int) -> None:
    # Figure 14 prints 110 twice; the model of 32 experts has 218e9.
    table = dict(TABLE, hidden=5120, layers=32, heads=40, kv_heads=40, head_dim=128, experts=experts, expert_ffn=20480)
    table |= {"matrices_per_expert": 2, "vocab": 50257}
    counted = model_parameters(catalogue.parse("m10b", table))
    assert (counted.total - counted.embedding - counted.output) // 10**9 == printed
    if experts == 16:
        assert catalogue.load("m10b-e16").layers == catalogue.parse("m10b", table).layers


def test_the_predicting_layer_of_deepseek_v3_has_the_published_size() -> None:
    counted = model_parameters(catalogue.load("deepseek-v3"))
    alone = counted.total - model_parameters(catalogue.load("deepseek-v3"), mtp=False).total
    # 14e9 with the copies of embedding and output that its checkpoint has: 685e9 in all.
    assert (alone + counted.embedding + counted.output) / 1e9 == pytest.approx(14, abs=0.6)


def test_latent_attention_decides_head_widths() -> None:
    deepseek = catalogue.load("deepseek-v3").attention
    assert deepseek.mla == MLA(q_lora=1536, kv_lora=512, qk_nope=128, qk_rope=64, v_head=128)
    assert (deepseek.kv_heads, deepseek.qk_dim, deepseek.v_dim) == (128, 192, 128)
    lite = catalogue.load("deepseek-v2-lite").attention
    assert lite.mla == MLA(q_lora=0, kv_lora=512, qk_nope=128, qk_rope=64, v_head=128)


@pytest.mark.parametrize(
    ("name", "kind"), [("olmoe-1b-7b", "mha"), ("mixtral-8x7b", "gqa"), ("deepseek-v3", "mla"), ("kimi-k2", "mla")]
)
def test_head_kind(name: str, kind: str) -> None:
    assert catalogue.load(name).attention.head_kind == kind


def test_every_head_kind_is_in_the_catalogue() -> None:
    assert {catalogue.load(name).attention.head_kind for name in catalogue.names()} == set(HEAD_KINDS)


def test_dense_layers_are_first_or_every_second() -> None:
    kinds = {
        name: [layer.experts is None for layer in catalogue.load(name).layers]
        for name in ("deepseek-v3", "llama-4-maverick")
    }
    assert kinds["deepseek-v3"] == [True] * 3 + [False] * 58
    assert kinds["llama-4-maverick"] == [True, False] * 24


def test_a_dense_block_beside_the_experts() -> None:
    layer = catalogue.load("arctic").layers[0]
    assert layer.experts is not None
    assert layer.dense is not None
    assert (layer.experts.ffn, layer.dense.ffn) == (4864, 7168)


def test_an_encoder_and_a_decoder() -> None:
    switch = catalogue.load("switch-base-128")
    assert len(switch.encoder) == len(switch.layers) == 12
    for stack, causal in ((switch.encoder, False), (switch.layers, True)):
        assert [layer.experts is None for layer in stack] == [True, False] * 6
        assert all(isinstance(layer.mixer, Attention) and layer.mixer.causal == causal for layer in stack)
    assert all(layer.cross is None for layer in switch.encoder)
    assert all(layer.cross is not None and not layer.cross.causal for layer in switch.layers)


def test_an_unknown_name_gives_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown architecture 'mixtral8x7'; did you mean mixtral-8x7b"):
        catalogue.load("mixtral8x7")
    with pytest.raises(ValueError, match="known: olmoe-1b-7b, "):
        catalogue.load("???")


def test_a_model_is_a_name_or_a_configuration(tmp_path: Path) -> None:
    assert catalogue.model("dbrx") is catalogue.load("dbrx")
    config = {
        "model_type": "olmoe",
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 100,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert catalogue.model(str(file)) == catalogue.model(str(tmp_path))
    assert catalogue.model(str(file)).experts.top_k == 2
    with pytest.raises(ValueError, match=r"cannot read .*other\.json"):
        catalogue.model(str(tmp_path / "other.json"))
    with pytest.raises(
        ValueError, match=r"unknown model 'mixtral8x7'; did you mean .*\? Otherwise give the path of a config"
    ):
        catalogue.model("mixtral8x7")


def test_a_table_becomes_an_architecture() -> None:
    assert catalogue.parse("mine", TABLE).attention.head_kind == "gqa"
    grouped = {key: value for key, value in TABLE.items() if key not in ("kv_heads", "head_dim")}
    latent = catalogue.parse("mine", grouped | {"mla": LATENT})
    attention = latent.attention
    assert (latent.name, attention.kv_heads, attention.qk_dim, attention.mla) == ("mine", 4, 24, MLA(**LATENT))


@pytest.mark.parametrize(
    ("change", "weights"),
    [
        ({"qkv_bias": True}, 2 * (4 + 2 + 2) * 16),
        ({"qk_norm": "head"}, 2 * 2 * 16),
        ({"qk_norm": "all"}, 2 * (4 + 2) * 16),
        ({"norms_per_layer": 4}, 2 * 2 * 64),
        ({"position_buckets": 5}, 5 * 4),
        ({"shared_ffn": 10}, 2 * 3 * 64 * 10),
        ({"shared_ffn": 10, "shared_gate": True}, 2 * (3 * 64 * 10 + 64)),
        ({"residual_ffn": 10}, 2 * 3 * 64 * 10),
        ({"tied_embeddings": True}, -100 * 64),
    ],
)
def test_what_each_key_adds(change: dict[str, Any], weights: int) -> None:
    plain, changed = (model_parameters(catalogue.parse("mine", TABLE | more)).total for more in ({}, change))
    assert changed - plain == weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden": 1}, "'mine': unknown key 'hiden'; known: active_params_billion"),
        ({"kv_heads": 3}, "'mine': attention: 4 heads cannot share 3 kv_heads"),
        ({"matrices_per_expert": 4}, "'mine': experts: matrices is 4; it is 2 or 3"),
        ({"mla": LATENT}, "head_dim, kv_heads follow from mla; leave them out"),
        ({"mla": LATENT | {"q_rank": 1}}, r"'mine\.mla': unknown key 'q_rank'"),
        ({"qk_norm": "some"}, "qk_norm is 'some'; it is none, head or all"),
        ({"dense_at": "last"}, "dense_at is 'last'; it is first or even"),
        ({"dense_layers": 2, "dense_ffn": 8}, "dense_layers is 2, but there are 2 layers in all"),
        ({"layers": 3, "dense_layers": 1, "dense_ffn": 8, "dense_at": "even"}, "half of 3 layers, not 1"),
        ({"encoder_layers": 2}, "encoder_layers is 2, but there are 2 layers in all"),
        ({"expert_ffn": -1}, "'mine': experts: ffn is -1"),
        ({"dense_layers": 1}, "'mine': feedforward: ffn is 0"),
    ],
)
def test_a_bad_table_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        catalogue.parse("mine", TABLE | change)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match=r"'mine': missing key 'vocab'"):
        catalogue.parse("mine", {key: value for key, value in TABLE.items() if key != "vocab"})
