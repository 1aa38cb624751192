"""The triton programs as code: they compile for real GPUs without one, and count beyond 32 bits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'ciera-piper-bench[gpu]'")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from ciera_piper_core.exponents.layout import BF16, FP16, FP32, LAYOUTS
from ciera_piper_core.exponents.reference import ReferenceKernels
from ciera_piper_core.exponents.triton import TritonKernels
from ciera_piper_core.exponents.triton.kernels import GPU_TILE, _bits, _checksum_buffers
from ciera_piper_core.exponents.triton.loading import programs
from tests.ciera_piper_core.exponents.samples import IDS, weights

if TYPE_CHECKING:
    from pathlib import Path

    from ciera_piper_core.exponents.layout import FloatLayout

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {
    **dict.fromkeys(("exponents", "rest", "previous", "changed", "symbols"), "*u8"),
    **dict.fromkeys(("old", "hashes", "keys", "sums", "selected"), "*i64"),
}
SCAN_OUTPUTS = {"exponents", "rest", "previous", "old", "hashes", "changed", "keys", "sums"}
LAUNCHES = {
    "split": ("scan", SCAN_OUTPUTS - {"exponents", "rest"}),
    "hash_blocks": ("scan", SCAN_OUTPUTS - {"hashes"}),
    "scan_hashed": ("scan", {"exponents", "previous"}),
    "scan_exact": ("scan", {"exponents", "old", "hashes"}),
    "merge": ("merge", {"keys", "sums"}),
    "merge_checked": ("merge", set()),
    "collect": ("collect", {"previous"}),
    "collect differences": ("collect", set()),
    "apply": ("apply", set()),
}
"""By kernel, its program and which of the program's arguments it leaves out."""


def compiled(launch: str, layout: FloatLayout, target: str, integers: str = "i32") -> Any:
    """A program compiled to the target's machine code, for arguments as aligned as PyTorch's allocations."""
    name, left_out = LAUNCHES[launch]
    program = getattr(programs(interpreted=False), name)
    constants: dict[str, Any] = {**_bits(layout), "BLOCK": 512, "TILE": GPU_TILE, "DELTA": True}
    signature, values, attributes = {}, {}, {}
    for place, argument in enumerate(program.arg_names):
        if argument in constants or argument in left_out:
            signature[argument] = "constexpr"
            values[(place,)] = constants.get(argument)
        else:
            pointer = f"*i{8 * layout.value_bytes}" if argument == "values" else POINTERS.get(argument)
            signature[argument] = pointer or integers
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(program, signature, values, attributes)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": 4})


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every test compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("layout", "target"),
    [(BF16, "sm_90"), (FP16, "sm_90"), (FP32, "sm_90"), (BF16, "sm_80"), (BF16, "gfx942")],
    ids=[*(f"{name}-sm_90" for name in IDS), "bfloat16-sm_80", "bfloat16-gfx942"],
)
def test_programs_compile_without_a_gpu(layout: FloatLayout, target: str) -> None:
    for launch in LAUNCHES:
        made = compiled(launch, layout, target)
        assert made.asm["hsaco" if target == "gfx942" else "cubin"][:4] == b"\x7fELF"
        assert made.metadata.shared <= 48 * 1024


@pytest.mark.parametrize("launch", ["scan_exact", "merge_checked", "collect differences", "apply"])
def test_programs_compile_for_more_values_than_32_bits_count(launch: str) -> None:
    assert compiled(launch, BF16, "sm_90", integers="i64").asm["cubin"]


@pytest.mark.parametrize("launch", ["scan_hashed", "scan_exact", "merge_checked", "collect differences"])
def test_bf16_is_moved_in_wide_words(launch: str) -> None:
    """A thread has 32 values: moved one at a time, they alone would be 64 instructions."""
    moves = re.findall(r"(?:ld|st)\.global\S*", compiled(launch, BF16, "sm_90").asm["ptx"])
    assert 4 <= len(moves) <= 16
    assert any(".v4" in move for move in moves)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_places_beyond_32_bits(layout: FloatLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tile of a tensor of more than 2**31 values, whose memory is only touched there."""
    tile, block, tail = 1024, 512, 300
    tiles = 2**31 // tile + 3
    n = (tiles - 1) * tile + tail
    monkeypatch.setattr(
        interpreter_builder,
        "create_get_program_id",
        lambda _axis: TensorHandle(np.array([tiles - 1], dtype=np.int32), triton.language.int32),
    )
    made = programs(interpreted=True)
    last = weights(layout, tail)
    values, merged = (torch.empty(n, dtype=layout.bits_dtype) for _ in range(2))
    values[-tail:] = last
    # A part of a packed plane is looked at alone, so it must begin at a byte: a tile is a whole number of groups.
    exponents = torch.empty(layout.exponent_bytes(n), dtype=torch.uint8)
    rest = torch.empty(layout.rest_bytes(n), dtype=torch.uint8)
    hashes = torch.empty(2 * (n // block + 1), dtype=torch.int64)
    sums, keys = _checksum_buffers(values, layout, block, tiles)
    options = {**_bits(layout), "BLOCK": block, "TILE": tile}
    made.scan[(1,)](values, exponents, rest, None, None, hashes, None, keys, sums, n, **options)
    made.merge[(1,)](exponents, rest, merged, keys, sums, n, **options)
    assert torch.equal(merged[-tail:], last)

    expected_exponents = torch.empty(layout.exponent_bytes(tail), dtype=torch.uint8)
    expected_rest = torch.empty(layout.rest_bytes(tail), dtype=torch.uint8)
    ReferenceKernels().split(last, layout, expected_exponents, expected_rest)
    assert torch.equal(exponents[-expected_exponents.numel() :], expected_exponents)
    first, second = expected_rest[:tail], expected_rest[tail:]
    assert torch.equal(rest[n - tail : n], first)
    assert torch.equal(rest[rest.numel() - second.numel() :], second)
    expected_hashes = torch.empty(1, 2, dtype=torch.int64)
    ReferenceKernels().hash_blocks(last, layout, block, expected_hashes)
    assert torch.equal(hashes[-2:], expected_hashes.view(-1))


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_blocks_beyond_32_bits(layout: FloatLayout) -> None:
    """Symbols of the last blocks of a tensor of more than 2**31 values, whose memory is only touched there."""
    n, block = 2**31 + 5 * 512 + 77, 512
    blocks = -(-n // block)
    values = torch.empty(n, dtype=layout.bits_dtype)
    last = weights(layout, 512 + 77)
    values[-last.numel() :] = last
    changed = torch.zeros(blocks, dtype=torch.uint8)
    changed[-2:] = 1
    by = TritonKernels()
    symbols = torch.empty(last.numel(), dtype=torch.uint8)
    assert by.collect(values, layout, block, changed, None, symbols) == last.numel()
    exponents = torch.empty(layout.exponent_bytes(n), dtype=torch.uint8)
    by.apply(symbols, layout, n, block, changed, False, exponents)
    expected = torch.empty(layout.exponent_bytes(last.numel()), dtype=torch.uint8)
    ReferenceKernels().split(last, layout, expected, torch.empty(layout.rest_bytes(last.numel()), dtype=torch.uint8))
    assert torch.equal(exponents[-expected.numel() :], expected)
