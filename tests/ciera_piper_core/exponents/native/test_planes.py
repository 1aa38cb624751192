"""The C kernels do what the reference does, at every level, length and alignment, and touch nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, FP16, FP32, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.native import planes
from ciera_piper_core.exponents.native.library import available_isas
from ciera_piper_core.exponents.native.planes import NativeKernels
from ciera_piper_core.exponents.reference import ReferenceKernels
from tests.ciera_piper_core.exponents.native.guarded import Guarded
from tests.ciera_piper_core.exponents.samples import IDS, every_pattern, random_bits, stepped, weights

ISAS = available_isas()
REFERENCE = ReferenceKernels()

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels were not built")
each_isa = pytest.mark.parametrize("isa", ISAS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)


@dataclass(frozen=True)
class Inputs:
    """What kernels are run on: values, and the values that the other side holds."""

    layout: FloatLayout
    block: int
    values: torch.Tensor
    before: torch.Tensor
    old: torch.Tensor
    previous: torch.Tensor

    @classmethod
    def of(cls, layout: FloatLayout, block: int, values: torch.Tensor, before: torch.Tensor) -> Inputs:
        blocks = -(-len(before) // block)
        old = torch.empty(blocks, 2, dtype=torch.int64)
        REFERENCE.hash_blocks(before, layout, block, old)
        previous = torch.empty(layout.exponent_bytes(len(before)), dtype=torch.uint8)
        REFERENCE.split(before, layout, previous, torch.empty(layout.rest_bytes(len(before)), dtype=torch.uint8))
        return cls(layout, block, values, before, old, previous)

    @classmethod
    def random(cls, layout: FloatLayout, block: int, n: int, seed: int = 0) -> Inputs:
        """Random bits; about half the blocks changed."""
        values = random_bits(layout, n, seed)
        before = torch.where(random_bits(layout, n, seed + 1) % (2 * block) == 0, ~values, values)
        return cls.of(layout, block, values, before)


def results(
    kernels: NativeKernels | ReferenceKernels, inputs: Inputs, offsets: tuple[int, int] = (0, 0)
) -> dict[str, torch.Tensor]:
    """What every kernel makes of the inputs, in guarded buffers; ``offsets`` of values and of all else, in bytes."""
    layout, block, n = inputs.layout, inputs.block, len(inputs.values)
    blocks = -(-n // block)
    buffers: list[Guarded] = []

    def given(tensor: torch.Tensor, offset: int = offsets[1]) -> torch.Tensor:
        buffers.append(Guarded(tensor.dtype, tensor.numel(), offset, tensor.reshape(-1)))
        return buffers[-1].tensor.view(tensor.shape)

    def room(size: int, dtype: torch.dtype = torch.uint8, offset: int = offsets[1]) -> torch.Tensor:
        buffers.append(Guarded(dtype, size, offset))
        return buffers[-1].tensor

    values = given(inputs.values, offsets[0])
    exponents, rest = room(layout.exponent_bytes(n)), room(layout.rest_bytes(n))
    kernels.split(values, layout, exponents, rest)
    planes_in = given(exponents.clone()), given(rest.clone())
    merged, checked = room(n, layout.bits_dtype, offsets[0]), room(n, layout.bits_dtype, offsets[0])
    kernels.merge(*planes_in, layout, merged)
    sums = [kernels.merge_checked(*planes_in, layout, block, checked)]
    hashes, new = room(2 * blocks, torch.int64).view(-1, 2), room(2 * blocks, torch.int64).view(-1, 2)
    kernels.hash_blocks(values, layout, block, hashes)
    old, previous = given(inputs.old), given(inputs.previous)
    rests, flags = [room(layout.rest_bytes(n)) for _ in range(2)], [room(blocks) for _ in range(2)]
    sums.append(kernels.scan_hashed(values, layout, block, old, new, rests[0], flags[0]))
    sums.append(kernels.scan_exact(values, layout, block, previous, rests[1], flags[1]))
    changed = given(flags[1].clone())
    count = int(changed.bool().repeat_interleave(block)[:n].sum())
    symbols, differences = room(count), room(count)
    counts = [
        kernels.collect(values, layout, block, changed, None, symbols),
        kernels.collect(values, layout, block, changed, previous, differences),
    ]
    applied = [room(layout.exponent_bytes(n)) for _ in range(2)]
    for plane, coded, delta in zip(applied, (symbols, differences), (False, True), strict=True):
        plane.copy_(previous)
        kernels.apply(given(coded.clone()), layout, n, block, changed, delta, plane)
    for buffer in buffers:
        buffer.check()
    return {
        "exponents": exponents,
        "rest": rest,
        "merged": merged,
        "checked": checked,
        "hashes": hashes,
        "new": new,
        "rest_hashed": rests[0],
        "rest_exact": rests[1],
        "flags_hashed": flags[0],
        "flags_exact": flags[1],
        "symbols": symbols,
        "differences": differences,
        "applied": applied[0],
        "applied_delta": applied[1],
        "sums": torch.tensor([s - 2**63 for s in sums]),
        "counts": torch.tensor(counts),
    }


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], where: str) -> None:
    for name, value in expected.items():
        assert torch.equal(got[name], value), f"{name} differs at {where}"


@pytest.fixture(params=[False, True], ids=["cached", "streamed"])
def streamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of all sizes stay in the caches, or go past them."""
    monkeypatch.setattr(planes, "STREAM_BYTES", 0 if request.param else 2**62)


@each_layout
def test_every_length_at_every_level_agrees_with_the_reference(
    layout: FloatLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [NativeKernels(isa) for isa in ISAS]
    for n in range(1101):
        block = BLOCKS[n % len(BLOCKS)]
        inputs = Inputs.random(layout, block, n, seed=n)
        expected = results(REFERENCE, inputs)
        assert torch.equal(expected["merged"], inputs.values)
        monkeypatch.setattr(planes, "STREAM_BYTES", 0 if n // 2 % 2 else 2**62)
        for used in kernels:
            assert_same(results(used, inputs), expected, f"{n} values, blocks of {block}, {used.isa}")


@pytest.mark.usefixtures("streamed")
@each_layout
@each_isa
def test_every_alignment_agrees_with_the_reference(isa: str, layout: FloatLayout) -> None:
    inputs = Inputs.random(layout, 128, 777)
    expected = results(REFERENCE, inputs)
    for offset in range(66):
        for offsets in ((offset, 0), (0, offset), (offset, offset)):
            assert_same(results(NativeKernels(isa), inputs, offsets), expected, f"offsets {offsets}")


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("block", BLOCKS)
@each_layout
@each_isa
def test_lengths_around_every_block_agree_with_the_reference(isa: str, layout: FloatLayout, block: int) -> None:
    for n in {block * k + d for k in (1, 2, 5) for d in (-65, -64, -33, -8, -1, 0, 1, 7, 8, 32, 64)}:
        inputs = Inputs.random(layout, block, max(n, 0), seed=n + 100)
        assert_same(results(NativeKernels(isa), inputs), results(REFERENCE, inputs), f"{n} values")


@each_layout
@each_isa
def test_every_pattern_comes_back_and_agrees_with_the_reference(isa: str, layout: FloatLayout) -> None:
    values = every_pattern(layout)
    if layout is FP32:
        # Every lower half too, and the corners of both together.
        corners = torch.tensor([0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7F80, 0xFF80, 0x807F])
        pairs = (corners.unsqueeze(1) << 16 | corners).reshape(-1)
        values = torch.cat([values, torch.arange(2**16).to(torch.int32), pairs.to(torch.int32)])
    inputs = Inputs.of(layout, 512, values, values.flip(0).contiguous())
    got = results(NativeKernels(isa), inputs)
    assert torch.equal(got["merged"], values)
    assert torch.equal(got["checked"], values)
    assert_same(got, results(REFERENCE, inputs), "every pattern")


@each_layout
@each_isa
def test_threads_give_what_one_thread_gives(isa: str, layout: FloatLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "LEAST_RUN_BYTES", 1)
    for n in (1, 1023, 1025, 7 * 1024 + 5):
        inputs = Inputs.random(layout, 64, n)
        expected = results(NativeKernels(isa), inputs)
        for threads in (2, 3, 16):
            assert_same(results(NativeKernels(isa, threads), inputs), expected, f"{n} values, {threads} threads")


@each_layout
def test_threads_share_large_inputs_only(layout: FloatLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = NativeKernels(threads=4)
    shared: list[int] = []
    map_ = kernels._pool.map
    monkeypatch.setattr(kernels._pool, "map", lambda work, runs: (shared.append(len(runs)), map_(work, runs))[1])
    least = planes.LEAST_RUN_BYTES // layout.value_bytes
    for n in (0, 1, 2 * least - 1, 2 * least, 3 * least, 100 * least):
        hashes = torch.empty(-(-n // 1024), 2, dtype=torch.int64)
        kernels.hash_blocks(torch.zeros(n, dtype=layout.bits_dtype), layout, 1024, hashes)
    assert shared == [0, 1, 1, 2, 3, 4]


@each_isa
def test_one_object_serves_many_threads_at_once(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "LEAST_RUN_BYTES", 1)
    kernels = NativeKernels(isa, threads=2)
    inputs = [Inputs.random(BF16, 64, 5000 + k, seed=k) for k in range(4)]
    expected = [results(NativeKernels(isa), i) for i in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for got, wanted in zip(pool.map(lambda i: results(kernels, i), inputs), expected, strict=True):
                assert_same(got, wanted, "four threads")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_the_input_levels_agree_with_the_reference(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(LAYOUTS))
    block = data.draw(st.sampled_from(BLOCKS))
    n = data.draw(st.integers(0, 5000))
    values = data.draw(st.sampled_from([random_bits, weights]))(layout, n, data.draw(st.integers(0, 2**30)))
    inputs = Inputs.of(layout, block, values, stepped(values, layout, data.draw(st.floats(0, 0.01))))
    expected = results(REFERENCE, inputs)
    offsets = (data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70)))
    for isa in ISAS:
        assert_same(results(NativeKernels(isa), inputs, offsets), expected, isa)


@each_layout
@each_isa
def test_a_hash_tells_every_flipped_bit_of_an_exponent_and_no_other(isa: str, layout: FloatLayout) -> None:
    kernels, n = NativeKernels(isa), 100
    values = weights(layout, n)
    old, new = torch.empty(2, 2, dtype=torch.int64), torch.empty(2, 2, dtype=torch.int64)
    kernels.hash_blocks(values, layout, 64, old)
    rest, changed = torch.empty(layout.rest_bytes(n), dtype=torch.uint8), torch.empty(2, dtype=torch.uint8)
    checksum = kernels.scan_hashed(values, layout, 64, old, new, rest, changed)
    for place in (0, 7, 8, 63, 64, 71, 96, 99):
        for bit in range(layout.value_bytes * 8):
            flipped = values.clone()
            flipped[place] ^= torch.tensor(1 << bit).to(layout.bits_dtype)
            in_exponent = layout.mantissa_bits <= bit < layout.mantissa_bits + layout.exponent_bits
            assert kernels.scan_hashed(flipped, layout, 64, old, new, rest, changed) != checksum
            assert changed.tolist() == [int(in_exponent and place < 64), int(in_exponent and place >= 64)]
            exact = torch.empty_like(changed)
            previous = torch.empty(layout.exponent_bytes(n), dtype=torch.uint8)
            REFERENCE.split(values, layout, previous, torch.empty_like(rest))
            kernels.scan_exact(flipped, layout, 64, previous, rest, exact)
            assert torch.equal(exact, changed)


@each_isa
def test_a_hash_tells_swapped_words_swapped_blocks_and_zeros_of_other_lengths(isa: str) -> None:
    kernels = NativeKernels(isa)

    def hashes(values: torch.Tensor) -> list[tuple[int, ...]]:
        out = torch.empty(-(-len(values) // 64), 2, dtype=torch.int64)
        kernels.hash_blocks(values, BF16, 64, out)
        return [tuple(h) for h in out.tolist()]

    values = random_bits(BF16, 128)
    seen = hashes(values)
    for a, b in ((0, 1), (0, 7), (3, 4)):
        words = values.view(-1, 8).clone()
        words[[a, b]] = words[[b, a]]
        assert hashes(words.view(-1))[0] != seen[0]
    assert seen[0] != seen[1]
    assert hashes(torch.cat([values[64:], values[:64]])) == [seen[1], seen[0]]
    lengths = [hashes(torch.zeros(n, dtype=torch.int16))[0] for n in range(1, 65)]
    assert len(set(lengths)) == 64


@pytest.mark.parametrize("delta", [False, True])
@each_isa
def test_symbols_with_too_many_bits_stay_in_their_places(isa: str, delta: bool) -> None:
    symbols, plane = torch.full((100,), 0xE3, dtype=torch.uint8), torch.zeros(63, dtype=torch.uint8)
    NativeKernels(isa).apply(symbols, FP16, 100, 64, torch.ones(2, dtype=torch.uint8), delta, plane)
    expected = torch.zeros(63, dtype=torch.uint8)
    REFERENCE.apply(symbols & 31, FP16, 100, 64, torch.ones(2, dtype=torch.uint8), delta, expected)
    assert torch.equal(plane, expected)


@each_isa
def test_places_beyond_2_31_values_are_reached(isa: str) -> None:
    """Numpy's zeros take no memory until they are written (torch writes its own): only the last pages are."""
    n = 2**31 + 1500
    values, plane = torch.from_numpy(np.zeros(n, np.int16)), torch.from_numpy(np.zeros(n, np.uint8))
    values[-1500:] = weights(BF16, 1500)
    changed = torch.zeros(-(-n // 1024), dtype=torch.uint8)
    changed[-2:] = 1
    symbols = torch.zeros(1500, dtype=torch.uint8)
    kernels = NativeKernels(isa, threads=2)
    assert kernels.collect(values, BF16, 1024, changed, plane, symbols) == 1500
    expected = torch.zeros(1500, dtype=torch.uint8)
    REFERENCE.split(values[-1500:].clone(), BF16, expected, torch.empty(1500, dtype=torch.uint8))
    assert torch.equal(symbols, expected)
    kernels.apply(symbols, BF16, n, 1024, changed, True, plane)
    assert torch.equal(plane[-1500:], expected)
    assert not plane[-2000:-1500].any()


def test_wrong_tensors_are_refused_by_name_before_anything_is_written() -> None:
    kernels, n = NativeKernels(), 100
    values, out = weights(BF16, n), torch.full((n,), 7, dtype=torch.uint8)
    hashes = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"rest has 99 elements; 100 are expected"):
        kernels.split(values, BF16, out, torch.empty(99, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"values is of torch.int32; torch.int16 is expected"):
        kernels.split(values.int(), BF16, out, out.clone())
    with pytest.raises(ValueError, match="values is not contiguous"):
        kernels.split(values.repeat_interleave(2)[::2], BF16, out, out.clone())
    with pytest.raises(ValueError, match="exponents is on meta"):
        kernels.split(values, BF16, out.to("meta"), out.clone())
    with pytest.raises(ValueError, match="blocks of 100 values; known: 64, 128"):
        kernels.hash_blocks(values, BF16, 100, hashes)
    with pytest.raises(ValueError, match="blocks of 0 values"):
        kernels.apply(out, BF16, n, 0, out, False, out)
    with pytest.raises(ValueError, match=r"new has 2 elements; 4 are expected"):
        kernels.scan_hashed(values, BF16, 64, hashes, hashes[:1].clone(), out.clone(), out[:2].clone())
    with pytest.raises(ValueError, match=r"changed has 3 elements; 2 are expected"):
        kernels.scan_exact(values, BF16, 64, out.clone(), out.clone(), out[:3].clone())
    changed = torch.tensor([0, 1], dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"symbols has 35 elements; 36 at least are expected"):
        kernels.collect(values, BF16, 64, changed, None, out[:35])
    with pytest.raises(ValueError, match=r"symbols has 35 elements; 36 at least are expected"):
        kernels.apply(out[:35].clone(), BF16, n, 64, changed, False, out)
    assert (out == 7).all()


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="0 threads; at least 1 is needed"):
        NativeKernels(threads=0)


def test_the_environment_holds_the_level_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIERA_ISA", "scalar")
    assert NativeKernels().isa == "scalar"
