"""Tests of the compute suites' tensors: data that repeats nowhere, and a comparison that counts every wrong element."""

from __future__ import annotations

import math

import pytest
import torch

from bench.errors import UsageError
from suites.tensors import (
    BLOCK,
    CHUNK,
    ITEM_BYTES,
    count_wrong,
    dtype_reason,
    fill,
    row_scale,
    tolerance,
    torch_dtype,
    whole_scale,
)


@pytest.mark.parametrize("name", ITEM_BYTES)
def test_dtypes_by_name(name: str) -> None:
    assert torch_dtype(name).itemsize == ITEM_BYTES[name]


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown dtype 'bfloat61'; did you mean bfloat16"):
        torch_dtype("bfloat61")


def test_float8_needs_a_gpu() -> None:
    assert dtype_reason("bfloat16", "cpu") is None
    assert "need a CUDA device" in str(dtype_reason("float8_e4m3fn", "cpu"))


def test_fill_is_deterministic_normal_and_scaled() -> None:
    first, again, other = (fill(torch.empty(300, 200), seed, 0.5) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.mean().abs() < 0.01
    assert first.std().item() == pytest.approx(0.5, rel=0.02)


def test_filled_rows_differ_where_the_block_repeats() -> None:
    rows = fill(torch.empty(1200, 1024), 1)
    assert rows.numel() > BLOCK
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_fill_reaches_the_last_element_of_every_dtype() -> None:
    for name in ("bfloat16", "float16", "float8_e4m3fn"):
        filled = fill(torch.full((BLOCK + 5,), float("nan"), dtype=torch_dtype(name)), 1)
        assert not filled.float().isnan().any()


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 4), (3 * CHUNK // 1000, 1000)])
def test_every_wrong_element_is_counted(shape: tuple[int, ...]) -> None:
    expected = torch.ones(shape, dtype=torch.float64)
    actual = expected.float()
    scale = row_scale(expected)
    assert count_wrong(actual, expected, 1e-3, scale=scale) == 0
    actual.view(-1)[[0, 3, -1]] = torch.tensor([1.0021, math.nan, -math.inf])
    assert count_wrong(actual, expected, 1e-3, scale=scale) == 3
    assert count_wrong(torch.full_like(actual, math.nan), expected, 1e-3, scale=scale) == expected.numel()


def test_an_expected_row_of_zeros_allows_nothing_else() -> None:
    expected = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    actual = torch.tensor([[0.0, 1e-30], [3.0, 4.0]])
    assert count_wrong(actual, expected, 0.1, scale=row_scale(expected)) == 1
    assert count_wrong(actual, expected, 0.1, scale=whole_scale(expected)) == 0


def test_scales() -> None:
    values = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    assert row_scale(values).flatten().tolist() == pytest.approx([math.sqrt(12.5), 0.0])
    assert whole_scale(values).flatten().tolist() == pytest.approx([math.sqrt(12.5), 2.5])


def test_the_tolerance_follows_the_dtype_and_the_length_of_sums() -> None:
    assert tolerance(torch.bfloat16, 1024) == pytest.approx(8 * 2**-7, rel=1e-3)
    assert tolerance(torch.float32, 4096) - tolerance(torch.float32, 1024) == pytest.approx(4 * 32 * 2**-23)
    assert tolerance(torch.float32, 4096) < 1e-4
