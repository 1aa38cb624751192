"""The reference kernels against the definitions, computed a value at a time with Python's integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents.kernels import BLOCKS, GAMMA, SEEDS
from ciera_piper_core.exponents.layout import BF16, FP16, FP32, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.reference import ReferenceKernels, blocks_of, checksum, pack, symbols_of, unpack
from tests.ciera_piper_core.exponents.samples import IDS, every_pattern, random_bits, stepped, weights

KERNELS = ReferenceKernels()
U64 = 2**64 - 1
LENGTHS = (0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 129, 200)


def mixed(z: int) -> int:
    z &= U64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & U64
    return z ^ z >> 31


def words(data: bytes) -> list[int]:
    padded = data + bytes(-len(data) % 8)
    return [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]


def fields(bits: torch.Tensor, layout: FloatLayout) -> list[tuple[int, int, int]]:
    """Sign, exponent and mantissa of each value."""
    found = []
    for value in bits.tolist():
        word = value & (2 ** (8 * layout.value_bytes) - 1)
        exponent = word >> layout.mantissa_bits & (2**layout.exponent_bits - 1)
        found.append((word >> (8 * layout.value_bytes - 1), exponent, word & (2**layout.mantissa_bits - 1)))
    return found


def bit_string(numbers: list[int], width: int) -> list[int]:
    whole = sum(number << (index * width) for index, number in enumerate(numbers))
    return list(whole.to_bytes((len(numbers) * width + 7) // 8, "little"))


def split(bits: torch.Tensor, layout: FloatLayout) -> tuple[torch.Tensor, torch.Tensor]:
    exponents = torch.empty(layout.exponent_bytes(bits.numel()), dtype=torch.uint8)
    rest = torch.empty(layout.rest_bytes(bits.numel()), dtype=torch.uint8)
    KERNELS.split(bits, layout, exponents, rest)
    return exponents, rest


@pytest.mark.parametrize("values", LENGTHS)
def test_bf16_planes_are_as_the_layout_says(values: int) -> None:
    bits = random_bits(BF16, values)
    exponents, rest = split(bits, BF16)
    assert exponents.tolist() == [exponent for _, exponent, _ in fields(bits, BF16)]
    assert rest.tolist() == [sign << 7 | mantissa for sign, _, mantissa in fields(bits, BF16)]


@pytest.mark.parametrize("values", LENGTHS)
def test_fp16_planes_are_as_the_layout_says(values: int) -> None:
    bits = random_bits(FP16, values)
    exponents, rest = split(bits, FP16)
    assert exponents.tolist() == bit_string([exponent for _, exponent, _ in fields(bits, FP16)], 5)
    low = [mantissa & 255 for _, _, mantissa in fields(bits, FP16)]
    top = bit_string([sign << 2 | mantissa >> 8 for sign, _, mantissa in fields(bits, FP16)], 3)
    assert rest.tolist() == low + top


@pytest.mark.parametrize("values", LENGTHS)
def test_fp32_planes_are_as_the_layout_says(values: int) -> None:
    bits = random_bits(FP32, values)
    exponents, rest = split(bits, FP32)
    assert exponents.tolist() == [exponent for _, exponent, _ in fields(bits, FP32)]
    top = [sign << 7 | mantissa >> 16 for sign, _, mantissa in fields(bits, FP32)]
    low = [byte for _, _, mantissa in fields(bits, FP32) for byte in (mantissa & 0xFFFF).to_bytes(2, "little")]
    assert rest.tolist() == top + low


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_every_pattern_comes_back_bit_for_bit(layout: FloatLayout) -> None:
    bits = every_pattern(layout)
    before = bits.clone()
    merged = torch.zeros_like(bits)
    KERNELS.merge(*split(bits, layout), layout, merged)
    assert torch.equal(merged, bits)
    assert torch.equal(bits, before)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", LENGTHS)
def test_hashes_are_as_defined(layout: FloatLayout, values: int) -> None:
    block = 64
    bits = random_bits(layout, values)
    hashes = torch.empty(blocks_of(values, block), 2, dtype=torch.int64)
    KERNELS.hash_blocks(bits, layout, block, hashes)
    symbols = [exponent for _, exponent, _ in fields(bits, layout)]
    expected = []
    for begin in range(0, values, block):
        of_block = bytes(symbols[begin : begin + block])
        for seed in SEEDS:
            total = sum(mixed(word + seed + (j + 1) * GAMMA) for j, word in enumerate(words(of_block)))
            expected.append(mixed(total + len(of_block)))
    assert [word & U64 for word in hashes.flatten().tolist()] == expected


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", LENGTHS)
def test_checksums_are_as_defined(layout: FloatLayout, values: int) -> None:
    block = 64
    bits = random_bits(layout, values)
    size = layout.value_bytes
    data = b"".join((value & (2 ** (8 * size) - 1)).to_bytes(size, "little") for value in bits.tolist())
    expected = 0
    for b, begin in enumerate(range(0, len(data), block * size)):
        total = 0
        for j, word in enumerate(words(data[begin : begin + block * size])):
            keyed = (word + mixed((j + 1) * GAMMA)) & U64
            total += (keyed & 0xFFFFFFFF) * (keyed >> 32) + word
        expected += mixed(total + (b + 1) * GAMMA)
    assert checksum(bits, block) == expected & U64


def hashes_of(symbols: torch.Tensor, block: int = 512) -> torch.Tensor:
    """Block hashes of bf16 values with these exponents."""
    hashes = torch.empty(blocks_of(symbols.numel(), block), 2, dtype=torch.int64)
    KERNELS.hash_blocks((symbols.long() << 7).to(torch.int16), BF16, block, hashes)
    return hashes


def test_a_hash_notices_any_single_bit_that_flips() -> None:
    symbols = symbols_of(weights(BF16, 64), BF16)
    flipped = symbols.repeat(64 * 8, 1)
    places = torch.arange(64 * 8)
    flipped[places, places // 8] ^= (1 << places % 8).to(torch.uint8)
    hashes = hashes_of(flipped.flatten(), block=64)
    original = hashes_of(symbols, block=64)[0]
    # Both streams see it, not only one of them.
    assert not (hashes == original).any()
    assert len({tuple(row) for row in hashes.tolist()}) == 64 * 8


def test_a_hash_notices_words_that_swap_places() -> None:
    symbols = symbols_of(random_bits(BF16, 512), BF16).view(64, 8)
    original = hashes_of(symbols.flatten())[0]
    for first in range(0, 64, 7):
        for second in range(first + 1, 64, 5):
            swapped = symbols.clone()
            swapped[[first, second]] = symbols[[second, first]]
            assert not (hashes_of(swapped.flatten())[0] == original).any()


def test_zero_blocks_of_different_lengths_have_different_hashes() -> None:
    assert len({tuple(hashes_of(torch.zeros(n, dtype=torch.uint8))[0].tolist()) for n in range(1, 513)}) == 512


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_a_checksum_notices_flipped_bits_and_swapped_words_and_blocks(layout: FloatLayout) -> None:
    bits = weights(layout, 64 * 4 + 9)
    original = checksum(bits, 64)
    for place in range(0, bits.numel(), 3):
        for bit in range(8 * layout.value_bytes):
            flipped = bits.clone()
            flipped[place] ^= -(2**bit) if bit == 8 * layout.value_bytes - 1 else 2**bit
            assert checksum(flipped, 64) != original
    a_word = 8 // layout.value_bytes
    swapped = bits.clone()
    swapped[:a_word], swapped[a_word : 2 * a_word] = bits[a_word : 2 * a_word], bits[:a_word]
    assert checksum(swapped, 64) != original
    swapped = bits.clone()
    swapped[:64], swapped[64:128] = bits[64:128], bits[:64]
    assert checksum(swapped, 64) != original
    assert checksum(bits[:-1], 64) != original


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_both_scans_find_the_blocks_whose_exponents_changed_and_no_others(layout: FloatLayout, block: int) -> None:
    values = 5 * block + 3
    before = weights(layout, values)
    now = before.clone()
    # A sign and a mantissa change nothing; exponents do, also in the short last block.
    now[0] ^= 1
    now[block + 1] ^= 1 << layout.mantissa_bits
    now[-1] ^= 2 << layout.mantissa_bits
    expected = [0, 1, 0, 0, 0, 1]
    previous, _ = split(before, layout)
    old = torch.empty(6, 2, dtype=torch.int64)
    KERNELS.hash_blocks(before, layout, block, old)
    new, of_now = torch.empty_like(old), torch.empty_like(old)
    rest, changed = torch.empty(layout.rest_bytes(values), dtype=torch.uint8), torch.empty(6, dtype=torch.uint8)
    assert KERNELS.scan_hashed(now, layout, block, old, new, rest, changed) == checksum(now, block)
    assert changed.tolist() == expected
    KERNELS.hash_blocks(now, layout, block, of_now)
    assert torch.equal(new, of_now)
    assert torch.equal(rest, split(now, layout)[1])
    rest.zero_()
    changed.fill_(7)
    assert KERNELS.scan_exact(now, layout, block, previous, rest, changed) == checksum(now, block)
    assert changed.tolist() == expected
    assert torch.equal(rest, split(now, layout)[1])


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    values=st.integers(0, 700),
    block=st.sampled_from(BLOCKS),
    delta=st.booleans(),
    rate=st.sampled_from([0.0, 0.003, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_what_was_collected_brings_the_receivers_plane_to_the_senders(
    layout: FloatLayout, values: int, block: int, delta: bool, rate: float, seed: int
) -> None:
    before = random_bits(layout, values, seed)
    now = stepped(before, layout, rate, seed)
    plane, _ = split(before, layout)
    expected, _ = split(now, layout)
    changed = torch.empty(blocks_of(values, block), dtype=torch.uint8)
    KERNELS.scan_exact(now, layout, block, plane, torch.empty(layout.rest_bytes(values), dtype=torch.uint8), changed)
    symbols = torch.full((values + 3,), 99, dtype=torch.uint8)
    count = KERNELS.collect(now, layout, block, changed, plane if delta else None, symbols)
    assert count == sum(min(block, values - b * block) for b, flag in enumerate(changed.tolist()) if flag)
    assert (symbols[count:] == 99).all()
    assert (symbols[:count].int() < 2**layout.exponent_bits).all()
    KERNELS.apply(symbols[:count], layout, values, block, changed, delta, plane)
    assert torch.equal(plane, expected)


@given(width=st.sampled_from([1, 3, 5, 8]), data=st.binary(max_size=300))
def test_packing_and_unpacking_are_inverse(width: int, data: bytes) -> None:
    symbols = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    symbols = symbols & (2**width - 1)
    packed = pack(symbols, width)
    assert packed.tolist() == bit_string(symbols.tolist(), width)
    assert torch.equal(unpack(packed, width, symbols.numel()), symbols)


def test_wrong_tensors_are_refused_by_name() -> None:
    bits = weights(BF16, 100)
    exponents, rest = split(bits, BF16)
    with pytest.raises(ValueError, match=r"FloatLayout\.bits"):
        KERNELS.split(bits.view(torch.bfloat16), BF16, exponents, rest)
    with pytest.raises(ValueError, match=r"exponents: uint8 \[100\] is expected"):
        KERNELS.split(bits, BF16, exponents[:-1], rest)
    with pytest.raises(ValueError, match="rest: uint8"):
        KERNELS.merge(exponents, rest[1:], BF16, bits)
    with pytest.raises(ValueError, match="blocks of 100 values; possible: 64"):
        KERNELS.hash_blocks(bits, BF16, 100, torch.empty(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"hashes: int64 \[2, 2\]"):
        KERNELS.hash_blocks(bits, BF16, 64, torch.empty(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="room for 99, 100 are needed"):
        KERNELS.collect(bits, BF16, 64, torch.ones(2, dtype=torch.uint8), None, torch.empty(99, dtype=torch.uint8))
    changed = torch.tensor([0, 1], dtype=torch.uint8)
    with pytest.raises(ValueError, match="the changed blocks hold 36"):
        KERNELS.apply(torch.empty(35, dtype=torch.uint8), BF16, 100, 64, changed, False, exponents)
