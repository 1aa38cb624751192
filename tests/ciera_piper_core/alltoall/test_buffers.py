"""Memory that grows and stays, and rows of any dtype as rows of integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.alltoall.buffers import Buffers, as_units, row_numel, row_unit


def like(width: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty((0, width), dtype=dtype)


def test_memory_is_allocated_once_and_grows_when_it_must() -> None:
    buffers = Buffers()
    first = buffers.take("packed", 100, like(4))
    assert first.shape == (100, 4)
    assert first.dtype == torch.int64
    assert buffers.take("packed", 100, like(4)) is first
    assert buffers.take("packed", 60, like(4)).data_ptr() == first.data_ptr()
    assert buffers.take("packed", 200, like(4, torch.int32)).data_ptr() == first.data_ptr()
    assert buffers.bytes == 3200
    assert buffers.take("packed", 101, like(4)).data_ptr() != first.data_ptr()
    # A quarter more than was there, so that slow growth does not allocate each time.
    assert buffers.bytes == 4000


def test_names_do_not_share_memory() -> None:
    buffers = Buffers()
    one, two = buffers.take("packed", 8, like(2)), buffers.take("staged", 8, like(2))
    one.fill_(1)
    two.fill_(2)
    assert bool((one == 1).all())
    assert buffers.take("packed", 0, like(2)).shape == (0, 2)


@pytest.mark.parametrize(
    ("row_bytes", "unit"), [(8, torch.int64), (24, torch.int64), (12, torch.int32), (6, torch.uint8), (1, torch.uint8)]
)
def test_rows_move_as_the_widest_integers_that_fit(row_bytes: int, unit: torch.dtype) -> None:
    assert row_unit(row_bytes) == unit


@given(
    st.sampled_from([torch.int8, torch.int16, torch.bool, torch.bfloat16, torch.float8_e5m2, torch.complex128]),
    st.integers(0, 4),
    st.lists(st.integers(1, 4), max_size=3),
)
def test_units_are_the_same_memory(dtype: torch.dtype, rows: int, shape: list[int]) -> None:
    tensor = torch.zeros((rows, *shape), dtype=dtype)
    units = as_units(tensor)
    assert units is not None
    assert units.shape[0] == rows
    assert units.shape[1] * units.itemsize == row_numel(tensor.shape) * tensor.itemsize
    if rows:
        assert units.data_ptr() == tensor.data_ptr()


def test_what_cannot_be_seen_as_integers_is_said() -> None:
    assert as_units(torch.zeros(4, 4).t()[1:]) is None
    assert as_units(torch.zeros(9)[1:].view(4, 2)) is None
    assert as_units(torch.zeros(4, 2, dtype=torch.complex64).conj()) is None
    # Strides of an empty tensor mean nothing, and may be such as cannot be viewed.
    empty = as_units(torch.zeros(1, 1).expand(4, 2)[:0])
    assert empty is not None
    assert empty.shape == (0, 1)
