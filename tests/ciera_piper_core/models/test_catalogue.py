"""Tests of the catalogue: known sizes follow from the dimensions, and bad tables are refused."""

from __future__ import annotations

from typing import Any

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.catalogue import MLA, Architecture

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


def known_size(architecture: Architecture, experts_a_token: int) -> float:
    """Parameters, in 1e9, of the model with so many experts in each MoE layer."""
    a = architecture
    attention = a.layers * AttentionShape.from_architecture(a).parameters()
    moe_layer = (
        experts_a_token * a.matrices_per_expert * a.hidden * a.expert_ffn
        + a.hidden * a.experts
        + 3 * a.hidden * a.shared_ffn
    )
    dense = a.dense_layers * a.matrices_per_expert * a.hidden * a.dense_ffn + a.layers * 3 * a.hidden * a.residual_ffn
    embeddings = a.vocab * a.hidden * (1 if a.tied_embeddings else 2) if a.embeddings_in_total else 0
    return (attention + (a.layers - a.dense_layers) * moe_layer + dense + embeddings) / 1e9


@pytest.mark.parametrize("name", catalogue.names())
def test_the_dimensions_give_the_known_size(name: str) -> None:
    architecture = catalogue.load(name)
    # GLaM's published 1.2e12 is rounded, and its dense layers are gated, which is not modelled.
    tolerance = 0.08 if name == "glam-1.2t" else 0.005
    size = known_size(architecture, architecture.experts)
    assert size == pytest.approx(architecture.total_params_billion, rel=tolerance)
    if architecture.active_params_billion is not None:
        active = known_size(architecture, architecture.top_k)
        assert active == pytest.approx(architecture.active_params_billion, rel=tolerance)


def test_latent_attention_decides_head_widths() -> None:
    deepseek = catalogue.load("deepseek-v3")
    assert deepseek.mla == MLA(q_lora=1536, kv_lora=512, qk_nope=128, qk_rope=64, v_head=128)
    assert (deepseek.kv_heads, deepseek.head_dim) == (128, 192)
    assert catalogue.load("deepseek-v2-lite").mla == MLA(q_lora=0, kv_lora=512, qk_nope=128, qk_rope=64, v_head=128)


@pytest.mark.parametrize(
    ("name", "kind"), [("olmoe-1b-7b", "mha"), ("mixtral-8x7b", "gqa"), ("deepseek-v3", "mla"), ("kimi-k2", "mla")]
)
def test_head_kind(name: str, kind: str) -> None:
    assert catalogue.load(name).head_kind == kind


def test_every_head_kind_is_in_the_catalogue() -> None:
    assert {catalogue.load(name).head_kind for name in catalogue.names()} == set(catalogue.HEAD_KINDS)


def test_an_unknown_name_gives_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown architecture 'mixtral8x7'; did you mean mixtral-8x7b"):
        catalogue.load("mixtral8x7")
    with pytest.raises(ValueError, match="known: olmoe-1b-7b, "):
        catalogue.load("???")


def test_a_table_becomes_an_architecture() -> None:
    assert catalogue.parse("mine", TABLE).head_kind == "gqa"
    grouped = {key: value for key, value in TABLE.items() if key not in ("kv_heads", "head_dim")}
    latent = catalogue.parse("mine", grouped | {"mla": LATENT})
    assert (latent.name, latent.kv_heads, latent.head_dim, latent.mla) == ("mine", 4, 24, MLA(**LATENT))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden": 1}, "'mine': unknown key 'hiden'; known: active_params_billion"),
        ({"kv_heads": 3}, "4 heads cannot share 3 kv_heads"),
        ({"matrices_per_expert": 4}, "matrices_per_expert is 2 or 3"),
        ({"mla": LATENT}, "head_dim, kv_heads follow from mla; leave them out"),
        ({"mla": LATENT | {"q_rank": 1}}, "'mine.mla': unknown key 'q_rank'"),
    ],
)
def test_a_bad_table_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        catalogue.parse("mine", TABLE | change)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match=r"'mine': missing 1 required positional argument: 'vocab'"):
        catalogue.parse("mine", {key: value for key, value in TABLE.items() if key != "vocab"})
