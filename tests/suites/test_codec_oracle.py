"""The codec suite's oracle, held to the definitions with Python's own integers, bit by bit."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.exponents.kernels import GAMMA, SEEDS
from ciera_piper_core.exponents.layout import BF16, FP16, FP32, LAYOUTS, FloatLayout
from suites import codec_oracle
from suites.codec_oracle import block_hashes, checksum_of, planes_of, symbols_of

MASK = 2**64 - 1
NAMES = [str(layout.dtype) for layout in LAYOUTS]


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def words_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little") for at in range(0, len(data), 8)]


def values_of(bits: list[int], layout: FloatLayout) -> torch.Tensor:
    raw = struct.pack(f"<{len(bits)}{'I' if layout is FP32 else 'H'}", *bits)
    return torch.frombuffer(bytearray(raw), dtype=layout.bits_dtype) if bits else torch.empty(0, dtype=torch.int16)


def packed(fields: list[int], width: int) -> bytes:
    whole = sum(field << (width * place) for place, field in enumerate(fields))
    return whole.to_bytes((len(fields) * width + 7) // 8, "little")


def random_bits(layout: FloatLayout, count: int, seed: int = 0) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(word) for word in random.integers(0, 2 ** (8 * layout.value_bytes), count, dtype=np.uint64)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1003])
def test_planes_are_the_layouts(layout: FloatLayout, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_oracle, "CHUNK", 64)
    bits = random_bits(layout, count)
    width = layout.value_bytes * 8
    exponents = [word >> layout.mantissa_bits & 2**layout.exponent_bits - 1 for word in bits]
    signs, mantissas = [word >> width - 1 for word in bits], [word & 2**layout.mantissa_bits - 1 for word in bits]
    pairs = list(zip(signs, mantissas, strict=True))
    if layout is FP16:
        rest = bytes(m & 0xFF for m in mantissas) + packed([s << 2 | m >> 8 for s, m in pairs], 3)
    elif layout is BF16:
        rest = bytes(s << 7 | m for s, m in pairs)
    else:
        rest = bytes(s << 7 | m >> 16 for s, m in pairs) + packed([m & 0xFFFF for m in mantissas], 16)
    values = values_of(bits, layout)
    found = planes_of(values, layout)
    assert found[0].tobytes() == packed(exponents, layout.exponent_bits)
    assert found[1].tobytes() == rest
    assert symbols_of(values, layout).tolist() == exponents


@pytest.mark.parametrize("layout", [BF16, FP16], ids=NAMES[:2])
def test_every_pattern_is_in_the_planes(layout: FloatLayout) -> None:
    values = values_of(list(range(2**16)), layout)
    exponents, rest = planes_of(values, layout)
    assert (len(exponents), len(rest)) == (layout.exponent_bytes(2**16), layout.rest_bytes(2**16))
    assert np.bincount(symbols_of(values, layout)).tolist() == [2 ** (16 - layout.exponent_bits)] * (
        2**layout.exponent_bits
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_nothing_has_no_planes(layout: FloatLayout) -> None:
    empty = torch.empty(0, dtype=layout.bits_dtype)
    assert [len(plane) for plane in planes_of(empty, layout)] == [0, 0]
    assert len(symbols_of(empty, layout)) == 0


@given(st.binary(min_size=1, max_size=300), st.sampled_from([64, 128, 256]))
def test_hashes_follow_their_definition(data: bytes, block: int) -> None:
    symbols = np.frombuffer(data, dtype=np.uint8)
    blocks = np.arange(-(-len(data) // block))
    expected = []
    for index in blocks:
        part = data[index * block : (index + 1) * block]
        for seed in SEEDS:
            total = sum(mix(word + seed + (j + 1) * GAMMA & MASK) for j, word in enumerate(words_of(part)))
            expected.append(mix(total + len(part) & MASK))
    assert block_hashes(symbols, block, blocks).view(np.uint64).ravel().tolist() == expected


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("count", [1, 3, 64, 65, 127, 128, 600])
def test_the_checksum_follows_its_definition(layout: FloatLayout, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_oracle, "CHUNK", 512)
    block = 64
    values = values_of(random_bits(layout, count, seed=count), layout)
    data = values.numpy().tobytes()
    size = block * layout.value_bytes
    total = 0
    for number, start in enumerate(range(0, len(data), size)):
        inner = 0
        for j, word in enumerate(words_of(data[start : start + size])):
            keyed = word + mix((j + 1) * GAMMA & MASK) & MASK
            inner += (keyed & 0xFFFFFFFF) * (keyed >> 32) + word
        total += mix(inner + (number + 1) * GAMMA & MASK)
    assert checksum_of(values, layout, block) == total & MASK
