"""The container's front: where sections lie, and what is refused before anything is decoded."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.container_format import ContainerFormat, Entry
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, FP16, LAYOUTS
from ciera_piper_core.exponents.payload import chained


def whole(described: ContainerFormat, entries: list[Entry]) -> torch.Tensor:
    """A container with a right front and nothing but zeros behind."""
    data = torch.zeros(described.coded_begins(entries)[-1], dtype=torch.uint8)
    front = described.front_to_bytes(entries)
    data[: len(front)] = torch.frombuffer(bytearray(front), dtype=torch.uint8)
    return data


@given(
    layout=st.sampled_from(LAYOUTS),
    coder=st.integers(0, 255),
    shape=st.lists(st.integers(0, 20), max_size=4),
    block=st.sampled_from(BLOCKS),
    parts=st.integers(1, 3),
    checksum=st.integers(0, 2**64 - 1),
)
def test_a_front_comes_back(
    layout: object, coder: int, shape: list[int], block: int, parts: int, checksum: int
) -> None:
    described = ContainerFormat(layout, coder, tuple(shape), block, parts * 1024)  # type: ignore[arg-type]
    entries = [Entry(checksum, 7 + index) for index in range(described.part_count)]
    assert ContainerFormat.parse(whole(described, entries)) == (described, entries)


def test_sections_follow_one_another_aligned() -> None:
    described = ContainerFormat(FP16, 1, (3, 1000), 512, 1024)
    assert (described.values, described.part_count) == (3000, 3)
    assert (described.directory_at, described.rest_at) == (48, 96)
    assert [described.part(index).begin for index in range(3)] == [0, 1024, 2048]
    assert [described.part(index).end for index in range(3)] == [1024, 2048, 3000]
    assert [described.part(index).rest_at for index in range(3)] == [96, 96 + 1408, 96 + 2816]
    assert described.coded_at == 96 + 2816 + 1312
    assert described.coded_begins([Entry(0, 5), Entry(0, 0), Entry(0, 16)]) == [4224, 4240, 4240, 4256]


def test_places_beyond_4_gib_are_right() -> None:
    described = ContainerFormat(BF16, 1, (2**20, 2**14), 512, 2**18)
    assert described.part(2**16 - 1).rest_at == described.rest_at + (2**16 - 1) * 2**18
    assert described.coded_at == described.rest_at + 2**34


GOOD = ContainerFormat(BF16, 3, (10, 10), 512, 1024)
AT_BLOCK, AT_PART, AT_VALUES = 8, 12, 16


@pytest.mark.parametrize(
    ("at", "code", "value", "message"),
    [
        (0, "<4s", b"CIRA", "begins with"),
        (4, "<B", 9, "version 9"),
        (5, "<B", 77, "unknown value type 77"),
        (AT_BLOCK, "<I", 100, "impossible blocks"),
        (AT_PART, "<I", 0, "impossible blocks"),
        (AT_PART, "<I", 1000, "impossible blocks"),
        (AT_VALUES, "<Q", 2**63, "cannot hold"),
        (AT_VALUES, "<Q", 99, "99 values, its shape"),
        (7, "<B", 255, "shape and directory alone take"),
    ],
)
def test_impossible_fronts_are_refused_by_name(at: int, code: str, value: bytes | int, message: str) -> None:
    data = bytearray(whole(GOOD, [Entry(1, 40)]).numpy().tobytes())
    struct.pack_into(code, data, at, value)
    # With the check that belongs to it, so that only the field itself is wrong.
    front = GOOD.rest_at
    struct.pack_into("<Q", data, 24, chained(bytes(data[:24]) + bytes(data[32:front])))
    with pytest.raises(CodedDataError, match=message):
        ContainerFormat.parse(torch.frombuffer(data, dtype=torch.uint8))


@given(bit=st.integers(0, GOOD.rest_at * 8 - 1))
def test_any_flipped_bit_of_the_front_is_noticed(bit: int) -> None:
    data = whole(GOOD, [Entry(1, 40)])
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodedDataError):
        ContainerFormat.parse(data)


def test_missing_and_spare_bytes_are_an_error() -> None:
    data = whole(GOOD, [Entry(1, 40)])
    for wrong in (data[:-1], data[:31], data[:40], torch.cat([data, data[:16]])):
        with pytest.raises(CodedDataError, match=r"bytes"):
            ContainerFormat.parse(wrong)
