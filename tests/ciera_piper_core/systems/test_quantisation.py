"""Tests of block quantisation: errors within their bounds, the formulas of DeepSpeed's kernels and of its Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.systems.quantisation import (
    GROUP_VALUES_LIMIT,
    TARGET_GROUP_VALUES,
    blocks_of,
    code_bytes,
    dequantise,
    gradient_block,
    gradient_groups,
    quantise,
    rounding_bound,
    weight_block,
    weight_groups,
)


def kernel_oracle(block: list[float], bits: int) -> tuple[list[int], float]:
    """One block as ``quantize::Params<Type::Symmetric, bits>`` has it, value by value."""
    largest = max(abs(value) for value in block)
    scale = 1.0 if largest == 0 else (1 << bits) / (2 * largest)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    # Python's round goes to the even number at ties, as the kernel's does.
    return [min(max(round(value * scale), low), high) for value in block], 1 / scale


@pytest.mark.parametrize("bits", [4, 8])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_codes_and_steps_are_those_of_the_kernel(bits: int, data: st.DataObject) -> None:
    # Multiples of a power of two, so that no product is rounded and ties are real ones.
    whole = data.draw(st.lists(st.integers(-64, 64), min_size=1, max_size=40))
    block = data.draw(st.integers(1, 48))
    values = torch.tensor([[one / 16 for one in whole]])
    codes, steps = quantise(values, block, bits)
    expected = [kernel_oracle(values[0, at : at + block].tolist(), bits) for at in range(0, len(whole), block)]
    assert steps[0].tolist() == pytest.approx([step for _, step in expected], rel=1e-6)
    got = dequantise(codes, torch.ones_like(steps), len(whole), block, bits)
    wanted = torch.tensor([float(code) for of_block, _ in expected for code in of_block])
    exact = values[0] / steps[0].repeat_interleave(block)[: len(whole)] % 1 != 0.5
    # At ties that division did not keep exact, the neighbour is as near.
    assert torch.equal(got[0][exact], wanted[exact])
    assert (got[0] - wanted).abs().max() <= 1


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("values", "block"), [(1, 1), (7, 3), (64, 64), (65, 64), (1000, 37), (5, 100)])
def test_errors_stay_within_the_bound(bits: int, dtype: torch.dtype, values: int, block: int) -> None:
    generator = torch.Generator().manual_seed(values)
    x = torch.randn(3, values, generator=generator).to(dtype)
    codes, steps = quantise(x, block, bits)
    assert codes.shape == (3, code_bytes(values, bits))
    assert steps.shape == (3, blocks_of(values, block))
    error = (dequantise(codes, steps, values, block, bits) - x.float()).abs()
    assert (error <= rounding_bound(x, block, bits)).all()


def test_the_bound_is_not_loose() -> None:
    x = torch.randn(1, 4096, generator=torch.Generator().manual_seed(0))
    error = (dequantise(*quantise(x, 256, 4), 4096, 256, 4) - x).abs()
    assert error.sum() > 0.4 * rounding_bound(x, 256, 4).sum()


def test_the_largest_value_is_a_step_off_at_the_positive_end_alone() -> None:
    for sign, code in ((1, 7), (-1, -8)):
        codes, steps = quantise(torch.tensor([[sign * 8.0, 1.0]]), 2, 4)
        assert dequantise(codes, steps, 2, 2, 4).tolist() == [[code, 1.0]]


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_stay_zeros_and_what_is_not_finite_stays_visible(bits: int) -> None:
    x = torch.tensor([[0.0, 0.0, math.inf, 1.0, math.nan, 1.0]])
    codes, steps = quantise(x, 2, bits)
    back = dequantise(codes, steps, 6, 2, bits)
    assert back[0, :2].tolist() == [0, 0]
    assert not back[0, 2:].isfinite().any()


@given(values=st.integers(1, 40000).map(lambda eighths: 8 * eighths))
@settings(max_examples=200, deadline=None)
def test_groups_of_weights_are_whole_and_below_the_limit(values: int) -> None:
    try:
        groups = weight_groups(values)
    except ValueError:
        # A number with one large prime factor: no divisor makes groups that are small enough.
        assert not any(
            values % (8 * groups) == 0 and values / groups < GROUP_VALUES_LIMIT
            for groups in range(math.ceil(values / TARGET_GROUP_VALUES), values)
        )
        return
    assert values % (8 * groups) == 0
    assert values / groups < GROUP_VALUES_LIMIT


def test_groups_are_those_of_deepspeed() -> None:
    """Worked by hand from ``CUDAQuantizer.quantize`` and ``all_to_all_quant_reduce``."""
    # Below the target: one group. At twice the target, two groups divide; 2,048 x 2,048 goes by powers of two.
    assert [weight_groups(n) for n in (8, 8000, 16000, 2048 * 2048)] == [1, 1, 2, 1024]
    # 3 x 8,008 = 24,024: four groups is the first count whose size is a multiple of 8 (4 does not divide, 7 does).
    assert weight_groups(24024) == next(g for g in range(4, 24024) if 24024 % (8 * g) == 0)
    with pytest.raises(ValueError, match="multiple of 8"):
        weight_groups(12)
    assert [gradient_groups(shape, 4) for shape in ((2, 3), (512, 2048), (8, 96, 64))] == [4, 2048, 96]
    assert [gradient_block(shape, 4) for shape in ((2, 3), (512, 2048), (8, 96, 64))] == [1, 512, 512]
    with pytest.raises(ValueError, match="vectors"):
        gradient_groups((7,), 4)


def test_groups_are_those_of_the_installed_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.partition_parameters import CUDAQuantizer

    class Kernel:
        Symmetric = 0

        def quantize(self, param: torch.Tensor, groups: int, bits: int, kind: int) -> tuple[int, int]:
            return groups, bits

    theirs = CUDAQuantizer.__new__(CUDAQuantizer)
    theirs.quantizer_cuda_module = Kernel()
    for values in (8, 64, 4096, 8000, 16000, 24024, 65536, 98304, 123456, 2048 * 2048):
        assert theirs.quantize(torch.zeros(values)) == (weight_groups(values), 8)


@pytest.mark.parametrize("values", [1, 5, 8, 1000, 7999, 8000, 8001, 100_003, 98304])
def test_any_shard_has_blocks(values: int) -> None:
    assert 1 <= weight_block(values) < GROUP_VALUES_LIMIT
