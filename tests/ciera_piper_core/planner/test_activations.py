"""Tests of what layers keep: against torch's memory tracker at full size, and of what must not change it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ciera_piper_core.models.architecture import Attention, Experts, FeedForward, Layer, Recurrence
from ciera_piper_core.planner.activations import CHECKPOINTING, Checkpointing, activation_bytes_per_token, kept_tensors
from ciera_piper_core.planner.static_memory import layer_static_bytes
from tests.ciera_piper_core.fake_layers import LAYERS, measure

BATCH, SEQUENCE = 2, 1024


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "scores"])
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("name", LAYERS)
def test_kept_bytes_are_what_the_tracker_counts(name: str, checkpointing: Checkpointing, flash: bool) -> None:
    layer, hidden = LAYERS[name]
    measured = measure(name, BATCH, SEQUENCE, flash=flash, checkpointing=checkpointing).kept
    parts = activation_bytes_per_token(layer, hidden, SEQUENCE, checkpointing=checkpointing, flash=flash)
    # Only the ends of the experts' groups, four bytes an expert, are left out.
    assert sum(parts.values()) * BATCH * SEQUENCE == pytest.approx(measured, rel=1e-4)


def test_the_scores_alone_depend_on_the_sequence() -> None:
    layer, hidden = LAYERS["qwen3-235b"]
    for flash, checkpointing in ((True, "none"), (False, "selective"), (False, "full")):
        options = {"flash": flash, "checkpointing": checkpointing}
        assert activation_bytes_per_token(layer, hidden, 1024, **options) == activation_bytes_per_token(
            layer, hidden, 8192, **options
        )
    short, long = (activation_bytes_per_token(layer, hidden, s, flash=False)["attention"] for s in (1024, 8192))
    assert long - short == 64 * 2 * (8192 - 1024)


def test_more_expert_parallel_ranks_lower_weights_but_not_expert_activations() -> None:
    # NVIDIA/Megatron-LM 1784, 2439, 4050: reports that divided activations by the ranks, or ignored top-k.
    layer, hidden = LAYERS["qwen3-235b"]
    few, many = (layer_static_bytes(layer, hidden, expert_parallel=ranks)["routed_experts"] for ranks in (8, 64))
    assert few.total == 8 * many.total
    parts = activation_bytes_per_token(layer, hidden, 4096)
    assert parts["routed_experts"] == 2 * 8 * 3 * 1536
    assert parts["dispatch"] == 8 * (2 * 4096 + 4 + 8 + 8)
    assert layer.experts is not None
    one = activation_bytes_per_token(replace(layer, experts=replace(layer.experts, top_k=1)), hidden, 4096)
    assert parts["routed_experts"] == 8 * one["routed_experts"]


def test_imbalance_scales_what_experts_receive_and_nothing_else() -> None:
    layer, hidden = LAYERS["deepseek-v3"]
    even = activation_bytes_per_token(layer, hidden, 4096)
    skewed = activation_bytes_per_token(layer, hidden, 4096, load_factor=np.array([1.0, 2.5]))
    np.testing.assert_array_equal(skewed["routed_experts"], even["routed_experts"] * np.array([1, 2.5]))
    indices = 16 * 8
    np.testing.assert_allclose(skewed["dispatch"], [even["dispatch"], 2.5 * (even["dispatch"] - indices) + indices])
    assert all(skewed[part] == even[part] for part in even if part not in ("routed_experts", "dispatch"))


def test_a_tensor_parallel_rank_keeps_what_its_share_of_the_layer_keeps() -> None:
    layer, hidden = LAYERS["arctic"]
    assert isinstance(layer.mixer, Attention)
    assert layer.experts is not None
    share = replace(
        layer,
        mixer=replace(layer.mixer, heads=7, kv_heads=1),
        experts=replace(layer.experts, ffn=4864 // 8),
        dense=FeedForward(7168 // 8),
    )
    for flash in (True, False):
        assert activation_bytes_per_token(
            layer, hidden, 4096, flash=flash, tensor_parallel=8
        ) == activation_bytes_per_token(share, hidden, 4096, flash=flash)
    with pytest.raises(ValueError, match="56 heads do not divide over 3"):
        activation_bytes_per_token(layer, hidden, 4096, tensor_parallel=3)


def test_full_checkpointing_keeps_two_boundaries_a_layer() -> None:
    layer, hidden = LAYERS["mixtral-8x7b"]
    assert sum(activation_bytes_per_token(layer, hidden, 4096, checkpointing="full").values()) == 2 * 2 * hidden


def test_wider_numbers_double_what_is_not_float32_already() -> None:
    layer, hidden = LAYERS["olmoe"]
    half, single = (activation_bytes_per_token(layer, hidden, 4096, precision=name) for name in ("bf16", "fp32"))
    assert half == activation_bytes_per_token(layer, hidden, 4096, precision="fp16")
    assert single["routed_experts"] == 2 * half["routed_experts"]
    assert single["router"] == half["router"]


def test_parts_that_are_counted_but_not_built() -> None:
    attention = Attention(8, 8, 64, 64)
    plain = kept_tensors(Layer(attention), 512, 1024)
    crossed = kept_tensors(Layer(attention, cross=attention), 512, 1024)
    assert sum(crossed["attention"].values()) == 2 * sum(plain["attention"].values())
    gated = kept_tensors(Layer(replace(attention, gated=True)), 512, 1024)["attention"]
    assert sum(gated.values()) - sum(plain["attention"].values()) == 2 * 2 * 512
    assert kept_tensors(Layer(Recurrence("mamba", 10**6, 0, 3000)), 512, 1024)["attention"] == {"inner": 6000}
    narrow = kept_tensors(Layer(None, Experts(8, 2, 256, expert_hidden=128)), 512, 1024)
    assert narrow["dispatch"]["received"] == 2 * 2 * 128
    assert narrow["shared_experts"] == {"combined": 256}


def test_unknown_names_are_refused() -> None:
    layer, hidden = LAYERS["olmoe"]
    with pytest.raises(ValueError, match="unknown checkpointing 'some'; known: none, selective, full"):
        activation_bytes_per_token(layer, hidden, 4096, checkpointing="some")
    with pytest.raises(ValueError, match="unknown precision 'fp8'; known: bf16, fp16, fp32"):
        activation_bytes_per_token(layer, hidden, 4096, precision="fp8")
