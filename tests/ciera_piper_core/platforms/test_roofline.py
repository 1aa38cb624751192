"""Tests of times from declared efficiencies: bounds, growth, and the effects of tiles and few rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.platforms.roofline import Efficiency, Roofline, Tile

PEAK, BANDWIDTH = 100e12, 1e12
EFFICIENCY = Efficiency(0.8, 0.5, 0.9, (Tile(128, 128, 1.0), Tile(16, 64, 0.5)), compute_units=100, kernel_seconds=0.0)
DEVICE = Roofline(PEAK, BANDWIDTH, EFFICIENCY)
EDGES = st.integers(1, 20_000)


def test_a_large_product_reaches_the_largest_share() -> None:
    m, n, k = 128 * 100, 128 * 100, 8192
    assert float(DEVICE.product_seconds(m, n, k)) == pytest.approx(2 * m * n * k / (0.8 * PEAK))


def test_few_rows_are_bound_by_the_weights_in_memory() -> None:
    expected = 2 * (8192 * 8192 + 2 * 8192) / (0.9 * BANDWIDTH)
    assert float(DEVICE.product_seconds(1, 8192, 8192)) == pytest.approx(expected)


def test_a_row_more_than_a_tile_pads() -> None:
    wide = replace(DEVICE, efficiency=replace(EFFICIENCY, tiles=(Tile(128, 128, 1.0),), compute_units=1))
    one, two = wide.product_seconds([128, 129], 4096, 65536)
    assert two == pytest.approx(2 * one)


def test_the_last_wave_is_as_long_as_a_full_one() -> None:
    wide = replace(DEVICE, efficiency=replace(EFFICIENCY, tiles=(Tile(128, 128, 1.0),)))
    full, one_more = wide.product_seconds(128, [128 * 100, 128 * 101], 1 << 20)
    assert one_more == pytest.approx(2 * full)


def test_small_products_take_the_smaller_tile() -> None:
    large = replace(DEVICE, efficiency=replace(EFFICIENCY, tiles=(Tile(128, 128, 1.0),), compute_units=1))
    both = replace(DEVICE, efficiency=replace(EFFICIENCY, compute_units=1))
    assert float(both.product_seconds(16, 64, 1 << 20)) < float(large.product_seconds(16, 64, 1 << 20))


def test_groups_share_waves() -> None:
    one_tile = replace(DEVICE, efficiency=replace(EFFICIENCY, tiles=(Tile(128, 128, 1.0),)))
    together = float(one_tile.product_seconds(128, 1280, 4096, 10))
    assert together == pytest.approx(float(one_tile.product_seconds(128, 1280, 4096)))


def test_float32_moves_twice_the_bytes() -> None:
    single = replace(DEVICE, element_bytes=4)
    assert float(single.product_seconds(1, 8192, 8192)) == pytest.approx(
        2 * float(DEVICE.product_seconds(1, 8192, 8192))
    )


def test_nothing_takes_no_time() -> None:
    slow = replace(DEVICE, efficiency=replace(EFFICIENCY, kernel_seconds=1e-3))
    assert float(slow.product_seconds(0, 128, 128)) == 0
    assert float(slow.product_seconds(1, 128, 128)) > 1e-3


def test_gradients_are_products_of_other_shapes() -> None:
    passes = DEVICE.products(1000, 4096, 512)
    assert passes.backward_input == DEVICE.product_seconds(1000, 512, 4096)
    assert passes.backward_weight == DEVICE.product_seconds(512, 4096, 1000)
    assert passes.backward == passes.backward_input + passes.backward_weight


@given(EDGES, EDGES, EDGES, st.integers(1, 64))
def test_no_rate_is_above_the_peak_or_the_bandwidth(m: int, n: int, k: int, groups: int) -> None:
    seconds = float(DEVICE.product_seconds(m, n, k, groups))
    assert 2 * m * n * k * groups / seconds <= 0.8 * PEAK * (1 + 1e-9)
    assert 2 * groups * (m * k + k * n + m * n) / seconds <= 0.9 * BANDWIDTH * (1 + 1e-9)


@given(EDGES, EDGES, EDGES, st.sampled_from([0, 1, 2]), st.integers(0, 5000))
def test_a_larger_product_is_never_faster(m: int, n: int, k: int, edge: int, more: int) -> None:
    larger = [m, n, k]
    larger[edge] += more
    assert float(DEVICE.product_seconds(*larger)) >= float(DEVICE.product_seconds(m, n, k)) * (1 - 1e-9)


@given(st.integers(1, 1 << 20), st.integers(1, 8192), st.sampled_from([1, 2, 4, 8]))
def test_fused_attention_stays_below_its_share(tokens: int, sequence: int, ranks: int) -> None:
    attention = Attention(64, 8, 128, 128)
    passes = DEVICE.scores(attention, sequence, tokens, ranks)
    flops = 2 * (64 / ranks) * 256 * (sequence + 1) / 2 * tokens
    assert flops / float(passes.forward) <= 0.5 * PEAK * (1 + 1e-9)
    assert float(passes.backward) >= 2 * float(passes.forward) * (1 - 1e-9)
    assert float(passes.backward_weight) == 0


def test_many_shapes_at_once_are_the_same_as_one_by_one() -> None:
    rows, columns = np.array([[1.0], [64.0], [5000.0]]), np.array([128.0, 768.0])
    together = DEVICE.experts(rows, 4, 2048, columns, 3).forward
    alone = [[float(DEVICE.experts(row, 4, 2048, column, 3).forward) for column in columns] for row in rows[:, 0]]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    "change",
    [
        {"largest_share": 1.1},
        {"attention_share": 0.0},
        {"memory_share": float("nan")},
        {"tiles": ()},
        {"tiles": (Tile(1, 1, 2.0),)},
        {"compute_units": 0},
        {"kernel_seconds": -1.0},
    ],
)
def test_impossible_efficiencies_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be above 0|needs a tile"):
        replace(EFFICIENCY, **change)
