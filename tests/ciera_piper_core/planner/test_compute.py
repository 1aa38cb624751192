"""Tests of a layer's compute time: against Piper's published single-layer rates, and its growth and bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import Attention, Experts, FeedForward, Layer, Recurrence
from ciera_piper_core.models.flops import layer_flops
from ciera_piper_core.planner import communication, compute
from ciera_piper_core.platforms import load_platform

FRONTIER = load_platform("frontier")
MEASURED = load_platform(str(Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"))
PLATFORMS = pytest.mark.parametrize("platform", [FRONTIER, MEASURED], ids=["specification", "profile"])

PIPER_FIG_11 = {
    "mixtral-8x22b": 129.4,
    "mixtral-8x7b": 117.5,
    "llama-4-maverick": 112.4,
    "llama-4-scout": 109.6,
    "arctic": 104.2,
    "deepseek-v3": 84.3,
    "kimi-k2": 81.7,
    "deepseek-v2": 78.3,
}
"""TFLOP/s a GCD, one layer in training on one Frontier node, experts over its eight GCDs; read off a bar chart."""

LAYER = Layer(
    Attention(16, 4, 128, 128),
    Experts(64, 6, 1024, shared_ffn=2048),
    dense=FeedForward(4096),
)


def fig_11_rate(name: str, sequences: int = 4, sequence: int = 4096) -> float:
    """Predicted TFLOP/s a GCD: causal operations, forward and backward, with four all-to-alls in the open."""
    architecture = catalogue.load(name)
    layer, hidden = architecture.moe_layer, architecture.hidden
    assert layer.experts is not None
    tokens = sequences * sequence
    passes = compute.total(compute.layer_passes(FRONTIER, layer, hidden, sequence, tokens, expert_parallel=8))
    rows = communication.dispatch_bytes(tokens, layer.experts.top_k, hidden)
    exchange = 4 * communication.all_to_all_seconds(FRONTIER, rows, 8)
    flops = 3 * tokens * sum(layer_flops(layer, hidden, sequence, "causal").values())
    return flops / float(passes.forward + passes.backward + exchange) / 1e12


def test_frontier_meets_the_published_single_layer_rates() -> None:
    """The paper gives neither batch nor convention: ours are four sequences of 4096, causal.

    Off by: mixtral-8x22b -8 %, mixtral-8x7b -3 %, maverick -1 %, scout +1 %, arctic +5 %,
    deepseek-v3 +1 %, kimi-k2 +4 %, deepseek-v2 +2 %. Two shares were set to reach this, so it shows
    that the model can tell the shapes apart, and not how well it predicts another machine.
    """
    off = {name: fig_11_rate(name) / rate - 1 for name, rate in PIPER_FIG_11.items()}
    assert np.mean(np.abs(list(off.values()))) < 0.05
    assert max(abs(value) for value in off.values()) < 0.10
    assert abs(np.mean(list(off.values()))) < 0.03


def test_large_experts_are_faster_than_small_ones() -> None:
    rates = {name: fig_11_rate(name) for name in PIPER_FIG_11}
    small = ("deepseek-v3", "kimi-k2", "deepseek-v2")
    assert max(rates[name] for name in small) < min(rates[name] for name in rates.keys() - set(small))
    assert rates["mixtral-8x22b"] == max(rates.values())
    assert rates["deepseek-v2"] == min(rates.values())


def test_the_batch_hardly_matters_to_that() -> None:
    for sequences in (1, 8):
        off = [fig_11_rate(name, sequences) / rate - 1 for name, rate in PIPER_FIG_11.items()]
        assert np.mean(np.abs(off)) < 0.05


@PLATFORMS
def test_components_are_those_that_the_layer_has(platform: Any) -> None:
    assert set(compute.layer_seconds(platform, LAYER, 2048, 1024, 4096)) == {
        "attention_projections",
        "attention_scores",
        "router",
        "routed_experts",
        "shared_experts",
        "dense",
        "elementwise",
    }
    dense_only = Layer(None, dense=FeedForward(4096))
    assert set(compute.layer_seconds(platform, dense_only, 2048, 1024, 4096)) == {"dense", "elementwise"}
    mamba = Layer(Recurrence("mamba", 10_000_000, 1000, 4096))
    assert set(compute.layer_seconds(platform, mamba, 2048, 1024, 4096)) == {"recurrence", "elementwise"}


@PLATFORMS
def test_cross_attention_counts_as_another_block(platform: Any) -> None:
    attention = Attention(16, 16, 128, 128, causal=False)
    once = compute.layer_seconds(platform, Layer(attention), 2048, 512, 4096)
    twice = compute.layer_seconds(platform, Layer(attention, cross=attention), 2048, 512, 4096)
    for name in ("attention_projections", "attention_scores", "elementwise"):
        assert twice[name] == pytest.approx(2 * once[name])


@PLATFORMS
@given(
    tokens=st.lists(st.integers(1, 1 << 18), min_size=2, max_size=5),
    ep=st.sampled_from([1, 4, 8, 64]),
    tp=st.sampled_from([1, 2, 4]),
    load=st.floats(1, 8),
)
def test_times_are_positive_and_grow_with_tokens(
    platform: Any, tokens: list[int], ep: int, tp: int, load: float
) -> None:
    passes = compute.layer_passes(
        platform, LAYER, 2048, 512, sorted(tokens), expert_parallel=ep, tensor_parallel=tp, load_factor=load
    )
    for part in passes.values():
        for seconds in (part.forward, part.backward):
            assert (seconds > 0).all()
            assert (np.diff(seconds) >= -1e-9 * seconds[1:]).all()


@PLATFORMS
@given(
    tokens=st.integers(1, 1 << 18),
    ep=st.sampled_from([1, 4, 8, 64]),
    sequence=st.sampled_from([128, 512, 1024, 4096]),
)
def test_mfu_never_exceeds_one(platform: Any, tokens: int, ep: int, sequence: int) -> None:
    passes = compute.total(compute.layer_passes(platform, LAYER, 2048, sequence, tokens, expert_parallel=ep))
    flops = tokens * sum(layer_flops(LAYER, 2048, sequence, "causal").values())
    assert flops / float(passes.forward) < platform.peak
    assert 2 * flops / float(passes.backward) < platform.peak


@PLATFORMS
def test_imbalance_costs_time(platform: Any) -> None:
    even, skewed = (
        compute.layer_seconds(platform, LAYER, 2048, 1024, 8192, expert_parallel=8, load_factor=load)
        for load in (1.0, 3.0)
    )
    assert skewed["routed_experts"] > 2 * even["routed_experts"]
    assert skewed["elementwise"] > even["elementwise"]
    assert skewed["attention_scores"] == even["attention_scores"]


def test_expert_parallelism_joins_rows_and_leaves_their_number() -> None:
    experts = LAYER.experts
    assert experts is not None
    rows = compute.tokens_per_expert(experts, 4096, [1, 8, 64], 1.0)
    assert rows.tolist() == [4096 * 6 / 64, 4096 * 6 / 8, 4096 * 6]
    seconds = compute.layer_seconds(FRONTIER, LAYER, 2048, 1024, 256, expert_parallel=[1, 8, 64])["routed_experts"]
    assert seconds[0] > seconds[1] > seconds[2]


def test_fewer_rows_than_experts_touch_fewer_experts() -> None:
    experts = LAYER.experts
    assert experts is not None
    assert float(compute.tokens_per_expert(experts, 1, 1, 1.0)) == 1
    one, all_of_them = (
        compute.layer_seconds(FRONTIER, LAYER, 2048, 1024, tokens)["routed_experts"] for tokens in (1, 11)
    )
    assert float(all_of_them) > 5 * float(one)


@PLATFORMS
def test_tensor_parallelism_divides_the_work(platform: Any) -> None:
    seconds = compute.layer_seconds(platform, LAYER, 2048, 1024, 65536, tensor_parallel=[1, 2, 4])
    for name in ("attention_projections", "routed_experts", "shared_experts", "dense"):
        assert seconds[name][0] > seconds[name][1] > seconds[name][2], name


@PLATFORMS
def test_many_strategies_at_once_are_the_same_as_one_by_one(platform: Any) -> None:
    tokens, ep, tp = np.array([[512.0], [4096.0]]), np.array([1, 8, 64]), np.array([4, 2, 1])
    together = compute.backward_seconds(
        platform, LAYER, 2048, 1024, tokens, expert_parallel=ep, tensor_parallel=tp, load_factor=1.5
    )
    for i in range(2):
        for j in range(3):
            alone = compute.backward_seconds(
                platform,
                LAYER,
                2048,
                1024,
                float(tokens[i, 0]),
                expert_parallel=int(ep[j]),
                tensor_parallel=int(tp[j]),
                load_factor=1.5,
            )
            for name, seconds in together.items():
                assert float(np.broadcast_to(seconds, (2, 3))[i, j]) == pytest.approx(float(alone[name])), name


def test_a_layer_of_a_catalogue_model_at_every_degree() -> None:
    for name in catalogue.names():
        architecture = catalogue.load(name)
        passes = compute.layer_passes(
            FRONTIER, architecture.moe_layer, architecture.hidden, 2048, 2048, expert_parallel=[1, 8]
        )
        assert (compute.total(passes).forward > 0).all()


def test_output_and_optimizer() -> None:
    passes = compute.output_passes(FRONTIER, 7168, 129280, [1024, 4096], tensor_parallel=1)
    flops = 2 * 4096 * 7168 * 129280
    assert 0.5 * FRONTIER.peak < flops / passes.forward[1] < FRONTIER.peak
    assert passes.forward[0] < passes.forward[1]
    assert float(compute.optimizer_seconds(FRONTIER, 16e9)) == pytest.approx(2 * 16e9 / (0.8 * 1.6e12))


def test_notes_say_how_a_strategys_terms_are_known() -> None:
    architecture = catalogue.load("qwen3-30b-a3b")
    layer = architecture.moe_layer
    said = compute.notes(MEASURED, layer, architecture.hidden, 512, 512, expert_parallel=4)
    assert said["routed_experts"].startswith("measured; 128 tokens an expert, measured at this shape")
    assert said["attention"].startswith("measured; between measured gqa")
    assumed = compute.notes(FRONTIER, layer, architecture.hidden, 512, 512)
    assert set(assumed.values()) >= {"assumed; from the declared efficiencies"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 0}, "tokens must be above 0"),
        ({"tokens": [1.0, float("nan")]}, "tokens must be above 0"),
        ({"expert_parallel": 0}, "expert_parallel must be at least 1"),
        ({"tensor_parallel": [1, 0]}, "tensor_parallel must be at least 1, not 0"),
        ({"load_factor": 0.5}, "load_factor must be at least 1"),
    ],
)
def test_numbers_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"tokens": 128} | change
    with pytest.raises(ValueError, match=message):
        compute.layer_passes(FRONTIER, LAYER, 2048, 1024, **arguments)


def test_a_faster_memory_helps_elementwise_work_alone() -> None:
    rates = replace(FRONTIER.rates, memory_bandwidth_bytes_s=3.2e12)  # type: ignore[type-var]
    faster = replace(FRONTIER, rates=rates)
    before, after = (compute.layer_seconds(p, LAYER, 2048, 1024, 65536) for p in (FRONTIER, faster))
    assert after["elementwise"] == pytest.approx(before["elementwise"] / 2)
    assert after["attention_scores"] == pytest.approx(before["attention_scores"])
