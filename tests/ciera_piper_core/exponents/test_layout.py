"""Layouts: sizes of planes, views of values, and what is refused."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.exponents.layout import BF16, FP16, FP32, LAYOUTS, FloatLayout, layout_of, layout_of_code
from tests.ciera_piper_core.exponents.samples import IDS


@pytest.mark.parametrize(
    ("layout", "values", "exponents", "rest"),
    [
        (BF16, 0, 0, (0, 0)),
        (BF16, 513, 513, (513, 0)),
        (FP16, 1, 1, (1, 1)),
        (FP16, 8, 5, (8, 3)),
        (FP16, 513, 321, (513, 193)),
        (FP32, 513, 513, (513, 1026)),
        (FP16, 2**33, 5 * 2**30, (2**33, 3 * 2**30)),
    ],
)
def test_planes_take_what_the_bits_need(
    layout: FloatLayout, values: int, exponents: int, rest: tuple[int, int]
) -> None:
    assert layout.exponent_bytes(values) == exponents
    assert layout.rest_parts(values) == rest
    assert layout.rest_bytes(values) == sum(rest)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_bits_share_the_values_memory_and_take_either_type(layout: FloatLayout) -> None:
    values = torch.zeros(3, 4, dtype=layout.dtype)
    bits = layout.bits(values)
    assert bits.dtype is layout.bits_dtype
    assert bits.shape == (12,)
    bits[5] = 1
    assert layout.bits(values)[5] == 1
    assert layout.bits(bits).data_ptr() == values.data_ptr()


def test_bits_refuse_other_types_and_tensors_with_gaps() -> None:
    with pytest.raises(ValueError, match=r"torch\.float32, where torch\.bfloat16 is expected"):
        BF16.bits(torch.zeros(3))
    with pytest.raises(ValueError, match=r"not contiguous; pass \.contiguous"):
        BF16.bits(torch.zeros(4, 4, dtype=torch.bfloat16).t())


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_layouts_are_found_by_type_and_by_code(layout: FloatLayout) -> None:
    assert layout_of(layout.dtype) is layout
    assert layout_of_code(layout.code) is layout


def test_unknown_types_and_codes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"torch\.int8 cannot be coded; known: torch\.bfloat16"):
        layout_of(torch.int8)
    with pytest.raises(ValueError, match="unknown value type 77"):
        layout_of_code(77)
