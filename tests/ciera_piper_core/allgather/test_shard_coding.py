"""A payload that came in one piece or in two reads the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.segments import Received

DATA = torch.arange(200, dtype=torch.uint8)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_any_part_is_found_wherever_the_payload_was_cut(cut: int, begin: int, size: int) -> None:
    received = Received(DATA[:cut], DATA[cut:])
    if begin + size <= 200:
        assert torch.equal(received.part(begin, size), DATA[begin : begin + size])
    else:
        with pytest.raises(CodedDataError, match=f"bytes up to {begin + size} of a payload"):
            received.part(begin, size)


def test_only_what_was_cut_apart_is_copied() -> None:
    received = Received(DATA[:100], DATA[100:])
    assert received.part(20, 80).data_ptr() == DATA[20:].data_ptr()
    assert received.part(100, 5).data_ptr() == DATA[100:].data_ptr()
    assert received.part(99, 2).tolist() == [99, 100]


def test_without_a_second_collective_there_is_no_more_than_the_first() -> None:
    received = Received(DATA[:64])
    assert received.part(60, 4).tolist() == [60, 61, 62, 63]
    with pytest.raises(CodedDataError, match="of which 64 arrived"):
        received.part(60, 5)
