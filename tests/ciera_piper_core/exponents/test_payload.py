"""The payload's header, records and areas: what is written is read, and anything else is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, FP16, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.payload import (
    CODINGS,
    HEADER_BYTES,
    RECORD_BYTES,
    FixedArea,
    PayloadHeader,
    SegmentRecord,
    aligned,
    chained,
    read_bytes,
    records_from_bytes,
    records_to_bytes,
    variable_offsets,
    write_bytes,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SIZES = st.integers(0, 2**60 - 1).map(lambda units: units * 16)
HEADERS = st.builds(
    PayloadHeader, U32, U32, U64, U64, SIZES, SIZES, coder_code=st.integers(0, 255), refresh_wanted=st.booleans()
)
RECORDS = st.builds(
    SegmentRecord,
    mode=st.sampled_from(CODINGS),
    changed_blocks=U32,
    symbols=st.just(-1),
    variable_bytes=st.integers(0, 2**40),
    checksum=U64,
)
HEADER = PayloadHeader(3, 17, 0xFEDCBA9876543210, 41, 4096, 4160, 2, True)


@given(HEADERS)
def test_a_header_comes_back(header: PayloadHeader) -> None:
    data = header.to_bytes()
    assert len(data) == HEADER_BYTES
    assert PayloadHeader.from_bytes(data) == header


def test_a_header_lies_as_the_format_says() -> None:
    data = HEADER.to_bytes()
    assert data[:8] == b"CIRA" + bytes([1, 1, 2, 0])
    assert struct.unpack_from("<IIQQQQQ", data, 8) == (3, 17, 0xFEDCBA9876543210, 41, 4096, 4160, 0)
    assert struct.unpack_from("<Q", data, 56) == (chained(data[:56]),)
    assert HEADER.overflow_bytes == 64
    assert replace(HEADER, variable_bytes=16).overflow_bytes == 0


@given(HEADERS, st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_of_a_header_is_noticed(header: PayloadHeader, bit: int) -> None:
    data = bytearray(header.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodedDataError):
        PayloadHeader.from_bytes(bytes(data))


@given(st.binary(max_size=80))
def test_other_bytes_are_no_header(data: bytes) -> None:
    with pytest.raises(CodedDataError):
        PayloadHeader.from_bytes(data)


def signed(data: bytes) -> bytes:
    """Bytes of a header or record with the check that belongs to them."""
    return data[:-8] + struct.pack("<Q", chained(data[:-8]))


@pytest.mark.parametrize(
    ("at", "byte", "message"),
    [
        (4, 2, "version 2"),
        (5, 2, "fields that this version has not"),
        (7, 1, "fields that this version has not"),
        (48, 1, "fields that this version has not"),
        (32, 1, "capacity_bytes 4097 is not a multiple of 16"),
        (40, 1, "variable_bytes 4097 is not a multiple of 16"),
    ],
)
def test_a_header_of_another_version_or_size_is_refused_by_name(at: int, byte: int, message: str) -> None:
    data = bytearray(HEADER.to_bytes())
    data[at] = byte
    with pytest.raises(CodedDataError, match=message):
        PayloadHeader.from_bytes(signed(bytes(data)))


@pytest.mark.parametrize("field", ["epoch", "sequence", "plan_digest", "attempt", "capacity_bytes", "coder_code"])
def test_a_header_refuses_numbers_outside_its_fields(field: str) -> None:
    for value in (-1, 2**64):
        with pytest.raises(ValueError, match=field):
            replace(HEADER, **{field: value})


@given(RECORDS)
def test_a_record_comes_back(record: SegmentRecord) -> None:
    data = record.to_bytes()
    assert len(data) == RECORD_BYTES
    assert SegmentRecord.from_bytes(data) == record


@given(RECORDS, st.integers(0, RECORD_BYTES * 8 - 1))
def test_any_flipped_bit_of_a_record_is_noticed(record: SegmentRecord, bit: int) -> None:
    data = bytearray(record.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodedDataError):
        SegmentRecord.from_bytes(bytes(data))


@pytest.mark.parametrize("at", [12, 13, 15])
def test_a_record_of_an_unknown_mode_is_refused(at: int) -> None:
    data = bytearray(SegmentRecord("block", 1, 1, 1, 1).to_bytes())
    data[at] = 2
    with pytest.raises(CodedDataError, match="unknown mode"):
        SegmentRecord.from_bytes(signed(bytes(data)))


def record(size: int) -> SegmentRecord:
    return SegmentRecord("delta", 1, -1, size, 5)


def test_segments_begin_at_multiples_of_16_in_the_variable_area() -> None:
    assert variable_offsets([record(size) for size in (1, 0, 16, 17, 5)]) == ([0, 16, 16, 32, 64], 80)
    assert variable_offsets([]) == ([], 0)


def test_records_come_back_and_are_held_to_header_and_bounds() -> None:
    records = [record(100), record(0), record(33)]
    data = records_to_bytes(records)
    assert records_from_bytes(data, 160, [100, 50, 33]) == records
    with pytest.raises(CodedDataError, match="segment 2 claims 33 coded bytes; 32 are possible"):
        records_from_bytes(data, 160, [100, 50, 32])
    with pytest.raises(CodedDataError, match="make 160, the header says 176"):
        records_from_bytes(data, 176, [100, 50, 33])
    with pytest.raises(CodedDataError, match="2 segments have 64 bytes of records: 96"):
        records_from_bytes(data, 160, [100, 50])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("values", [0, 1, 63, 512, 1025, 13_058_819, 2**33 + 1])
def test_a_fixed_area_holds_bitmap_and_rest_aligned(layout: FloatLayout, block: int, values: int) -> None:
    area = FixedArea.of(values, layout, block)
    assert area.blocks == -(-values // block)
    assert area.bitmap_bytes == -(-area.blocks // 8)
    assert area.rest_offset % 16 == area.size % 16 == 0
    assert 0 <= area.rest_offset - area.bitmap_bytes < 16
    assert 0 <= area.size - area.rest_offset - layout.rest_bytes(values) < 16


def test_sections_of_a_fixed_area_do_not_overlap_and_padding_is_cleared() -> None:
    area = FixedArea.of(1000, FP16, 64)
    fixed = torch.full((area.size,), 7, dtype=torch.uint8)
    area.bitmap(fixed).fill_(1)
    area.rest(fixed).fill_(2)
    area.clear_padding(fixed)
    expected = [1] * 2 + [0] * 14 + [2] * 1375
    assert fixed.tolist() == expected + [0] * (aligned(len(expected)) - len(expected))


def test_an_empty_segment_has_an_empty_area() -> None:
    assert FixedArea.of(0, BF16, 512).size == 0


def test_bytes_go_to_a_tensor_and_back() -> None:
    tensor = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
    write_bytes(HEADER.to_bytes(), tensor)
    assert read_bytes(tensor) == HEADER.to_bytes()
    assert read_bytes(tensor[::2]) == HEADER.to_bytes()[::2]
