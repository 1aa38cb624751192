"""A tensor-parallel rank's share of a layer: what is divided, what is whole, what is copied."""

from __future__ import annotations

import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.parameters import layer_parameters
from ciera_piper_core.planner.sharding import tensor_parallel_share


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "llama-4-maverick", "arctic"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_shares_divide_what_tensor_parallelism_divides(name: str, ranks: int) -> None:
    architecture = catalogue.load(name)
    for layer in set(architecture.layers):
        whole = layer_parameters(layer, architecture.hidden)
        share = layer_parameters(tensor_parallel_share(layer, ranks), architecture.hidden)
        assert share.routed_experts * ranks == whole.routed_experts
        assert share.dense * ranks == whole.dense
        assert (share.router, share.norms) == (whole.router, whole.norms)
        assert whole.attention / ranks <= share.attention <= whole.attention


def test_latents_are_whole_and_few_key_heads_are_copied() -> None:
    deepseek = catalogue.load("deepseek-v3")
    whole = layer_parameters(deepseek.layers[0], deepseek.hidden).attention
    share = layer_parameters(tensor_parallel_share(deepseek.layers[0], 8), deepseek.hidden).attention
    mla = deepseek.attention.mla
    assert mla is not None
    down = deepseek.hidden * (mla.q_lora + mla.kv_lora + mla.qk_rope)
    extra = deepseek.attention.extra_parameters
    assert share - down - extra == (whole - down - extra) / 8
    few = tensor_parallel_share(catalogue.load("qwen3-30b-a3b").layers[0], 8)
    assert few.mixer is not None
    assert few.mixer.kv_heads == 1  # type: ignore[union-attr]


def test_one_rank_has_the_layer_itself() -> None:
    layer = catalogue.load("mixtral-8x7b").layers[0]
    assert tensor_parallel_share(layer, 1) is layer
