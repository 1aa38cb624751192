"""The kernels in Triton: on a GPU compiled, on the CPU (for tests) through Triton's interpreter.

They need nothing of a vendor: the same programs run on CUDA and on ROCm.
"""

from __future__ import annotations

import contextlib
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ciera_piper_core.exponents.kernels import GAMMA
from ciera_piper_core.exponents.reference import blocks_of, mix
from ciera_piper_core.exponents.triton.loading import programs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ciera_piper_core.exponents.layout import FloatLayout

GPU_TILE = 4096
"""Values of a program on a GPU: 32 a thread of its 4 warps, and a whole number of blocks of any size."""

INTERPRETED_TILE = 2**17
"""Most values of a program in the interpreter, which costs about as much for a few values as for many."""

INTERPRETER = threading.RLock()
"""Only one launch at a time: the interpreter patches Triton's module for as long as a program runs."""


class TritonKernels:
    """:class:`~ciera_piper_core.exponents.kernels.Kernels` in Triton.

    Every method raises ValueError if a tensor has another type, size or device than the protocol
    says. Methods that return a number wait for the GPU; the others only queue their work, on
    PyTorch's current stream. Outputs must not overlap inputs.

    Raises:
        ImportError: Triton is not installed; the message says how to.
    """

    name = "triton"

    def __init__(self) -> None:
        # Either kind raises if Triton is missing; programs of a GPU are compiled at their first start only.
        programs(interpreted=True)

    @property
    def device(self) -> torch.device:
        """Where these kernels are of use: a GPU, or, where there is none, the CPU for tests."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def split(self, values: torch.Tensor, layout: FloatLayout, exponents: torch.Tensor, rest: torch.Tensor) -> None:
        n = _values(values, layout)
        _flat(exponents, layout.exponent_bytes(n), "exponents", values)
        _flat(rest, layout.rest_bytes(n), "rest", values)
        _scan(values, layout, _ANY_BLOCK, exponents=exponents, rest=rest)

    def merge(self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, values: torch.Tensor) -> None:
        _merge(exponents, rest, layout, _ANY_BLOCK, values, checked=False)

    def merge_checked(
        self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, block: int, values: torch.Tensor
    ) -> int:
        return _merge(exponents, rest, layout, block, values, checked=True)

    def hash_blocks(self, values: torch.Tensor, layout: FloatLayout, block: int, hashes: torch.Tensor) -> None:
        blocks = blocks_of(_values(values, layout), block)
        _hashes(hashes, blocks, "hashes", values)
        _scan(values, layout, block, hashes=hashes)

    def scan_hashed(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        old: torch.Tensor,
        new: torch.Tensor,
        rest: torch.Tensor,
        changed: torch.Tensor,
    ) -> int:
        n = _values(values, layout)
        blocks = blocks_of(n, block)
        _hashes(old, blocks, "old", values)
        _hashes(new, blocks, "new", values)
        _flat(rest, layout.rest_bytes(n), "rest", values)
        _flat(changed, blocks, "changed", values)
        return _scan(values, layout, block, rest=rest, old=old, hashes=new, changed=changed, checked=True)

    def scan_exact(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        previous: torch.Tensor,
        rest: torch.Tensor,
        changed: torch.Tensor,
    ) -> int:
        n = _values(values, layout)
        _flat(previous, layout.exponent_bytes(n), "previous", values)
        _flat(rest, layout.rest_bytes(n), "rest", values)
        _flat(changed, blocks_of(n, block), "changed", values)
        return _scan(values, layout, block, rest=rest, previous=previous, changed=changed, checked=True)

    def collect(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        changed: torch.Tensor,
        previous: torch.Tensor | None,
        symbols: torch.Tensor,
    ) -> int:
        n = _values(values, layout)
        _flat(changed, blocks_of(n, block), "changed", values)
        if previous is not None:
            _flat(previous, layout.exponent_bytes(n), "previous", values)
        selected, count = _selected(changed, n, block)
        _room(symbols, count, values)
        if not count:
            return 0
        with _launch(values, selected.numel() * block, block) as (made, tile):
            made.collect[(_tiles(selected.numel() * block, tile),)](
                values, previous, selected, symbols, n, selected.numel(), **_bits(layout), BLOCK=block, TILE=tile
            )
        return count

    def apply(
        self,
        symbols: torch.Tensor,
        layout: FloatLayout,
        values: int,
        block: int,
        changed: torch.Tensor,
        delta: bool,
        exponents: torch.Tensor,
    ) -> None:
        _flat(exponents, layout.exponent_bytes(values), "exponents", exponents)
        _flat(changed, blocks_of(values, block), "changed", exponents)
        selected, count = _selected(changed, values, block)
        _room(symbols, count, exponents)
        if not count:
            return
        with _launch(exponents, selected.numel() * block, block) as (made, tile):
            made.apply[(_tiles(selected.numel() * block, tile),)](
                symbols,
                exponents,
                selected,
                values,
                selected.numel(),
                DELTA=delta,
                EXPONENT=layout.exponent_bits,
                BLOCK=block,
                TILE=tile,
            )


_ANY_BLOCK = 64
"""Stands for the block size where blocks play no part."""


def _scan(
    values: torch.Tensor,
    layout: FloatLayout,
    block: int,
    exponents: torch.Tensor | None = None,
    rest: torch.Tensor | None = None,
    previous: torch.Tensor | None = None,
    old: torch.Tensor | None = None,
    hashes: torch.Tensor | None = None,
    changed: torch.Tensor | None = None,
    checked: bool = False,
) -> int:
    """One pass over values, checked by the caller; gives the checksum, or 0 if it is not ``checked``."""
    n = values.numel()
    if not n:
        return 0
    with _launch(values, n, block) as (made, tile):
        tiles = _tiles(n, tile)
        sums, keys = _checksum_buffers(values, layout, block, tiles) if checked else (None, None)
        made.scan[(tiles,)](
            values,
            exponents,
            rest,
            previous,
            old,
            hashes,
            changed,
            keys,
            sums,
            n,
            **_bits(layout),
            BLOCK=block,
            TILE=tile,
        )
        return _total(sums)


def _merge(
    exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, block: int, values: torch.Tensor, checked: bool
) -> int:
    n = _values(values, layout)
    blocks_of(n, block)
    _flat(exponents, layout.exponent_bytes(n), "exponents", values)
    _flat(rest, layout.rest_bytes(n), "rest", values)
    if not n:
        return 0
    with _launch(values, n, block) as (made, tile):
        tiles = _tiles(n, tile)
        sums, keys = _checksum_buffers(values, layout, block, tiles) if checked else (None, None)
        made.merge[(tiles,)](exponents, rest, values, keys, sums, n, **_bits(layout), BLOCK=block, TILE=tile)
        return _total(sums)


@contextlib.contextmanager
def _launch(tensor: torch.Tensor, values: int, block: int) -> Iterator[tuple[Any, int]]:
    """The programs that run where this tensor is, and the values of a program's tile, for so many values (not 0)."""
    if tensor.device.type == "cpu":
        with INTERPRETER:
            yield programs(interpreted=True), min(INTERPRETED_TILE, max(block, 1 << (values - 1).bit_length()))
    else:
        with torch.cuda.device(tensor.device):
            yield programs(interpreted=False), GPU_TILE


def _tiles(values: int, tile: int) -> int:
    return -(-values // tile)


def _bits(layout: FloatLayout) -> dict[str, int]:
    return {
        "VALUE_BYTES": layout.value_bytes,
        "MANTISSA": layout.mantissa_bits,
        "EXPONENT": layout.exponent_bits,
    }


def _checksum_buffers(
    values: torch.Tensor, layout: FloatLayout, block: int, tiles: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for what each tile adds to the checksum, and the keys of a block's words."""
    sums = torch.empty(tiles, dtype=torch.int64, device=values.device)
    return sums, _keys(values.device)[: block * layout.value_bytes // 8]


def _total(sums: torch.Tensor | None) -> int:
    # The sum is modulo 2**64, so its order does not matter: the same on every device.
    return 0 if sums is None else int(sums.sum()) & (2**64 - 1)


@cache
def _keys(device: torch.device) -> torch.Tensor:
    """``key_j`` of the checksum for the words of the largest block of the widest values."""
    places = torch.arange(1, 1024 * 4 // 8 + 1, device=device)
    return mix(places * (GAMMA - 2**64))


def _selected(changed: torch.Tensor, values: int, block: int) -> tuple[torch.Tensor, int]:
    """The changed blocks' numbers, ascending, int64, and how many values they hold. Waits for the GPU."""
    selected = changed.nonzero().reshape(-1)
    count = selected.numel() * block
    short = -values % block
    if short and count and bool(changed[-1]):
        count -= short
    return selected, count


def _values(values: torch.Tensor, layout: FloatLayout) -> int:
    if values.dtype is not layout.bits_dtype or values.dim() != 1 or not values.is_contiguous():
        raise ValueError(
            f"values of {layout.dtype} are expected as flat contiguous {layout.bits_dtype} "
            f"(FloatLayout.bits), not {values.dtype} of shape {tuple(values.shape)}"
        )
    return values.numel()


def _flat(plane: torch.Tensor, size: int, name: str, beside: torch.Tensor) -> None:
    _expect(plane, torch.uint8, (size,), name, beside)


def _hashes(hashes: torch.Tensor, blocks: int, name: str, beside: torch.Tensor) -> None:
    _expect(hashes, torch.int64, (blocks, 2), name, beside)


def _expect(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], name: str, beside: torch.Tensor) -> None:
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: contiguous {dtype} {list(shape)} is expected, not {tensor.dtype} {list(tensor.shape)}"
        )
    if tensor.device != beside.device:
        raise ValueError(f"{name} is on {tensor.device}, the others on {beside.device}; all must be on one device")


def _room(symbols: torch.Tensor, count: int, beside: torch.Tensor) -> None:
    if symbols.numel() < count:
        raise ValueError(f"symbols: {symbols.numel()} bytes, the changed blocks hold {count} values")
    _expect(symbols, torch.uint8, (symbols.numel(),), "symbols", beside)
