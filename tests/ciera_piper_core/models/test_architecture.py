"""Tests of the records of an architecture: wrong dimensions are refused by name, parts are found."""

from __future__ import annotations

from typing import Any

import pytest

from ciera_piper_core.models.architecture import (
    HEAD_KINDS,
    MLA,
    Architecture,
    Attention,
    Experts,
    FeedForward,
    Layer,
    Recurrence,
)

ATTENTION = Attention(heads=8, kv_heads=2, qk_dim=16, v_dim=16)
EXPERTS = Experts(experts=8, top_k=2, ffn=32)
MAMBA = Recurrence("mamba", matrix_parameters=100, extra_parameters=10, width=8)


def test_head_kinds() -> None:
    latent = MLA(q_lora=0, kv_lora=8, qk_nope=8, qk_rope=4, v_head=8)
    kinds = [
        Attention(8, 8, 16, 16).head_kind,
        ATTENTION.head_kind,
        Attention(8, 8, 12, 8, latent).head_kind,
    ]
    assert tuple(kinds) == HEAD_KINDS


@pytest.mark.parametrize(
    ("record", "values", "message"),
    [
        (Attention, {"heads": 0, "kv_heads": 1, "qk_dim": 8, "v_dim": 8}, "attention: heads is 0"),
        (Attention, {"heads": 4, "kv_heads": 3, "qk_dim": 8, "v_dim": 8}, "4 heads cannot share 3 kv_heads"),
        (Attention, {"heads": 4, "kv_heads": 4, "qk_dim": 8, "v_dim": 8.0}, "attention: v_dim is 8.0"),
        (Attention, {"heads": 4, "kv_heads": 4, "qk_dim": 8, "v_dim": 8, "window": -1}, "window is -1; .* at least 0"),
        (MLA, {"q_lora": 0, "kv_lora": 0, "qk_nope": 1, "qk_rope": 1, "v_head": 1}, "mla: kv_lora is 0"),
        (
            Recurrence,
            {"kind": "x", "matrix_parameters": 1, "extra_parameters": -1, "width": 1},
            "extra_parameters is -1",
        ),
        (FeedForward, {"ffn": True}, "feedforward: ffn is True"),
        (FeedForward, {"ffn": 8, "matrices": 4}, "feedforward: matrices is 4; it is 2 or 3"),
        (Experts, {"experts": 4, "top_k": 5, "ffn": 8}, "top_k is 5, but there are 4 experts"),
        (Experts, {"experts": 4, "top_k": 2, "ffn": 8, "shared_ffn": -8}, "experts: shared_ffn is -8"),
        (Experts, {"experts": 4, "top_k": 2, "ffn": 8, "shared_matrices": 1}, "shared_matrices is 1"),
        (Layer, {"mixer": None, "norm_parameters": -1}, "layer: norm_parameters is -1"),
        (Architecture, {"name": "x", "hidden": 0, "vocab": 1, "layers": (Layer(None),)}, "architecture: hidden is 0"),
        (Architecture, {"name": "x", "hidden": 1, "vocab": 1, "layers": ()}, "architecture 'x' has no layers"),
    ],
)
def test_wrong_dimensions_are_named(record: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record(**values)


def test_the_first_of_each_kind_is_found() -> None:
    dense, moe = Layer(MAMBA, dense=FeedForward(64)), Layer(ATTENTION, experts=EXPERTS)
    architecture = Architecture("x", hidden=8, vocab=10, layers=(dense, moe, moe))
    assert architecture.moe_layer is moe
    assert architecture.experts == EXPERTS
    assert architecture.attention == ATTENTION


def test_an_encoder_may_hold_what_the_decoder_lacks() -> None:
    moe = Layer(ATTENTION, experts=EXPERTS)
    assert Architecture("x", 8, 10, layers=(Layer(MAMBA),), encoder=(moe,)).moe_layer is moe


def test_what_is_not_there_is_said() -> None:
    dense = Architecture("x", hidden=8, vocab=10, layers=(Layer(MAMBA, dense=FeedForward(64)),))
    with pytest.raises(ValueError, match="'x' has no layer with routed experts"):
        _ = dense.experts
    with pytest.raises(ValueError, match="'x' has no softmax attention"):
        _ = dense.attention
