"""Tests of an attention block's products and operations, against the counts that the rest of the project uses."""

from __future__ import annotations

import numpy as np
import pytest

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.flops import layer_flops
from ciera_piper_core.platforms import shapes


@pytest.mark.parametrize("name", catalogue.names())
def test_operations_are_those_of_the_flop_counts(name: str) -> None:
    architecture = catalogue.load(name)
    layer = architecture.moe_layer
    assert isinstance(layer.mixer, Attention)
    expected = layer_flops(layer, architecture.hidden, 4096, "causal")
    mine = shapes.projection_flops(layer.mixer, architecture.hidden), shapes.score_flops(layer.mixer, 4096)
    crossed = [shapes.projection_flops(layer.cross, architecture.hidden)] if layer.cross else []
    crossed_scores = [shapes.score_flops(layer.cross, 4096)] if layer.cross else []
    assert sum([float(mine[0]), *map(float, crossed)]) == pytest.approx(expected["attention_projections"])
    assert sum([float(mine[1]), *map(float, crossed_scores)]) == pytest.approx(expected["attention_scores"])


@pytest.mark.parametrize("name", ["olmoe-1b-7b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_share_of_the_heads_is_that_of_the_suite(name: str, ranks: int) -> None:
    architecture = catalogue.load(name)
    expected = AttentionShape.from_architecture(architecture).shard(ranks).forward_flops(1, 512)
    a_token = shapes.block_flops(architecture.attention, architecture.hidden, 512, ranks)
    assert float(a_token) * 512 == pytest.approx(expected)


def test_a_gate_widens_the_query() -> None:
    plain, gated = (Attention(4, 4, 64, 64, gated=gated) for gated in (False, True))
    more = shapes.projection_flops(gated, 256) - shapes.projection_flops(plain, 256)
    assert float(more) == 2 * 4 * 64 * 256


def test_keys_that_a_query_sees() -> None:
    causal, windowed = Attention(1, 1, 1, 1), Attention(1, 1, 1, 1, window=3)
    both_ways = Attention(1, 1, 1, 1, causal=False)
    by_hand = [min(position + 1, 3) for position in range(10)]
    assert float(shapes.keys_per_query(causal, 10)) == pytest.approx(5.5)
    assert float(shapes.keys_per_query(windowed, 10)) == pytest.approx(np.mean(by_hand))
    assert float(shapes.keys_per_query(windowed, 2)) == pytest.approx(1.5)
    assert float(shapes.keys_per_query(both_ways, 10)) == 10


def test_degrees_may_be_arrays() -> None:
    attention = Attention(48, 8, 128, 128)
    together = shapes.block_flops(attention, 6144, 4096, np.array([1, 2, 8, 16]))
    alone = [float(shapes.block_flops(attention, 6144, 4096, ranks)) for ranks in (1, 2, 8, 16)]
    assert together.tolist() == alone
