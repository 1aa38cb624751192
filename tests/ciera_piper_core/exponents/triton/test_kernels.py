"""The triton kernels, through Triton's interpreter on the CPU, against reference; on a GPU where there is one."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed: pip install 'ciera-piper-bench[gpu]'")

from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, FP16, LAYOUTS
from ciera_piper_core.exponents.reference import ReferenceKernels, blocks_of
from ciera_piper_core.exponents.triton import TritonKernels, kernels, loading
from tests.ciera_piper_core.exponents.samples import IDS, every_pattern, random_bits, stepped, weights

if TYPE_CHECKING:
    from ciera_piper_core.exponents.kernels import Kernels
    from ciera_piper_core.exponents.layout import FloatLayout

GUARD = 16
"""Bytes of a pattern around every output, which nobody may write."""


class Stages:
    """Every kernel of a backend over one pair of tensors, with outputs that start at an odd place between guards."""

    def __init__(self, by: Kernels, layout: FloatLayout, block: int, device: str = "cpu") -> None:
        self.by, self.layout, self.block, self.device = by, layout, block, device
        self.found: dict[str, torch.Tensor | int] = {}
        self._rooms: list[tuple[str, torch.Tensor, int]] = []

    def run(self, now: torch.Tensor, before: torch.Tensor) -> dict[str, torch.Tensor | int]:
        now, before = now.to(self.device), before.to(self.device)
        inputs = [now.clone(), before.clone()]
        n, layout, block, by = now.numel(), self.layout, self.block, self.by
        blocks = blocks_of(n, block)
        previous, rest = self._plane("previous", layout.exponent_bytes(n)), self._plane("rest", layout.rest_bytes(n))
        by.split(before, layout, previous, rest)
        exponents, rest = self._plane("exponents", layout.exponent_bytes(n)), self._plane("rest", layout.rest_bytes(n))
        by.split(now, layout, exponents, rest)
        old, new = self._hashes(blocks), self._hashes(blocks)
        by.hash_blocks(before, layout, block, old)
        changed, scanned = self._plane("changed", blocks), self._plane("scanned", layout.rest_bytes(n))
        total = by.scan_hashed(now, layout, block, old, new, scanned, changed)
        exact, again = self._plane("exact", blocks), self._plane("again", layout.rest_bytes(n))
        exact_total = by.scan_exact(now, layout, block, previous, again, exact)
        symbols, differences = self._plane("symbols", n), self._plane("differences", n)
        count = by.collect(now, layout, block, changed, None, symbols)
        by.collect(now, layout, block, changed, previous, differences)
        applied, patched = previous.clone(), previous.clone()
        by.apply(symbols[:count], layout, n, block, changed, False, applied)
        by.apply(differences[:count], layout, n, block, changed, True, patched)
        merged, plainly = torch.zeros_like(now), torch.zeros_like(now)
        merged_total = by.merge_checked(patched, scanned, layout, block, merged)
        by.merge(exponents, rest, layout, plainly)
        assert torch.equal(now, inputs[0])
        assert torch.equal(before, inputs[1])
        assert torch.equal(merged, now)
        assert torch.equal(plainly, now)
        assert torch.equal(applied, exponents)
        assert torch.equal(patched, exponents)
        assert total == exact_total == merged_total
        self._check_guards()
        tensors = [previous, exponents, rest, old, new, changed, scanned, exact, again, symbols, differences]
        return {"tensors": [tensor.cpu().clone() for tensor in tensors], "total": total, "count": count}

    def _plane(self, name: str, size: int) -> torch.Tensor:
        room = torch.full((size + 2 * GUARD,), 0xA5, dtype=torch.uint8, device=self.device)
        start = GUARD + 1 + len(self._rooms) % 3
        self._rooms.append((name, room, start))
        return room[start : start + size]

    def _hashes(self, blocks: int) -> torch.Tensor:
        return torch.zeros(blocks, 2, dtype=torch.int64, device=self.device)

    def _check_guards(self) -> None:
        for name, room, start in self._rooms:
            behind = start + room.numel() - 2 * GUARD
            assert bool((room[:start] == 0xA5).all()), f"before {name}"
            assert bool((room[behind:] == 0xA5).all()), f"behind {name}"


def check_as_reference(
    now: torch.Tensor, before: torch.Tensor, layout: FloatLayout, block: int, device: str = "cpu"
) -> None:
    expected = Stages(ReferenceKernels(), layout, block).run(now, before)
    found = Stages(TritonKernels(), layout, block, device).run(now, before)
    assert found["total"] == expected["total"]
    assert found["count"] == expected["count"]
    for place, (a, b) in enumerate(zip(expected["tensors"], found["tensors"], strict=True)):
        assert torch.equal(a, b), f"tensor {place}"


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a GPU's size, so that a few thousand values are several programs."""
    monkeypatch.setattr(kernels, "INTERPRETED_TILE", 1024)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 15, 17, 63, 64, 65, 127, 129, 511, 512, 513, 1023, 1025, 1100])
def test_lengths_around_every_width(layout: FloatLayout, n: int) -> None:
    before = random_bits(layout, n, seed=n)
    now = torch.where(torch.arange(n) % 300 == n % 300, random_bits(layout, n, seed=n + 1), before)
    check_as_reference(now, before, layout, 64)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_of_every_size(layout: FloatLayout, block: int, small_tiles: None) -> None:
    for n in (5 * block - 3, 4096 + block // 2 + 1):
        before = weights(layout, n)
        check_as_reference(stepped(before, layout, 0.3 / block), before, layout, block)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_every_pattern(layout: FloatLayout) -> None:
    patterns = every_pattern(layout)
    check_as_reference(patterns, patterns.flip(0).contiguous(), layout, 512)
    check_as_reference(patterns, patterns.roll(1), layout, 128)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("pattern", ["nothing", "everything", "first", "last", "sign and mantissa"])
def test_what_changed(layout: FloatLayout, pattern: str, small_tiles: None) -> None:
    n = 512 * 9 + 77
    before = weights(layout, n)
    exponent = 1 << layout.mantissa_bits
    now = before.clone()
    if pattern == "everything":
        now ^= exponent
    elif pattern == "first":
        now[0] ^= exponent
    elif pattern == "last":
        now[-1] ^= exponent
    elif pattern == "sign and mantissa":
        now ^= torch.tensor(-(2 ** (8 * layout.value_bytes - 1)), dtype=now.dtype)
        now ^= 1
    check_as_reference(now, before, layout, 512)


@settings(max_examples=25, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    block=st.sampled_from(BLOCKS),
    n=st.integers(0, 5000),
    rate=st.sampled_from([0.0, 0.0005, 0.01, 1.0]),
    seed=st.integers(0, 2**16),
    offset=st.integers(0, 9),
)
def test_any_values(layout: FloatLayout, block: int, n: int, rate: float, seed: int, offset: int) -> None:
    before = random_bits(layout, n + offset, seed)[offset:]
    other = random_bits(layout, n + offset, seed + 1)[offset:]
    chosen = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < rate
    check_as_reference(torch.where(chosen, other, before), before, layout, block)


def test_launches_of_several_threads_do_not_meet() -> None:
    before = weights(BF16, 3000)
    now = stepped(before, BF16, 0.01)

    def check(_: int) -> None:
        check_as_reference(now, before, BF16, 64)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(8)))


def test_wrong_tensors_are_refused_by_name() -> None:
    values, plane = weights(BF16, 100), torch.zeros(100, dtype=torch.uint8)
    by = TritonKernels()
    with pytest.raises(ValueError, match=r"rest: contiguous torch.uint8 \[100\] is expected, not torch.uint8 \[99\]"):
        by.split(values, BF16, plane, plane[:99])
    with pytest.raises(ValueError, match=r"exponents: contiguous torch.uint8 \[63\]"):
        by.split(values, FP16, plane, plane)
    with pytest.raises(ValueError, match="flat contiguous"):
        by.split(values[::2], BF16, plane[:50], plane[:50])
    with pytest.raises(ValueError, match=r"hashes: contiguous torch.int64 \[2, 2\]"):
        by.hash_blocks(values, BF16, 64, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="blocks of 100 values"):
        by.hash_blocks(values, BF16, 100, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="symbols: 35 bytes, the changed blocks hold 36 values"):
        by.collect(values, BF16, 64, torch.tensor([0, 1], dtype=torch.uint8), None, plane[:35])
    with pytest.raises(ValueError, match="on meta"):
        by.split(values, BF16, plane.to("meta"), plane)


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    loading.programs.cache_clear()
    monkeypatch.setitem(sys.modules, "triton.language", None)
    try:
        with pytest.raises(ImportError, match=r"need Triton .*pip install 'ciera-piper-bench\[gpu\]'"):
            TritonKernels()
    finally:
        loading.programs.cache_clear()


def test_a_long_odd_tensor() -> None:
    n = 5 * kernels.INTERPRETED_TILE + 12_345
    before = weights(BF16, n)
    check_as_reference(stepped(before, BF16, 0.0005), before, BF16, 512)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: PyTorch sees no CUDA or ROCm device")
def test_on_a_gpu(layout: FloatLayout) -> None:
    for block in BLOCKS:
        for n in (0, 1, 9, 511, 5 * block - 3, 100_000):
            before = random_bits(layout, n, seed=n)
            now = torch.where(torch.arange(n) % 700 == 0, random_bits(layout, n, seed=n + 1), before)
            check_as_reference(now, before, layout, block, "cuda")
            # From the second value on: no address is a multiple of more than a value.
            check_as_reference(now[1:], before[1:], layout, block, "cuda")
    check_as_reference(every_pattern(layout), every_pattern(layout).flip(0).contiguous(), layout, 512, "cuda")
    before = weights(layout, 13_058_819)
    check_as_reference(stepped(before, layout, 0.0005), before, layout, 512, "cuda")
