"""The kernels in plain torch: slow, on any device, and the oracle that every other backend must agree with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.kernels import BLOCKS, GAMMA, SEEDS

if TYPE_CHECKING:
    from ciera_piper_core.exponents.layout import FloatLayout

WORD = 8
"""Bytes of a word."""


class ReferenceKernels:
    """:class:`~ciera_piper_core.exponents.kernels.Kernels` in torch operations on whole tensors.

    Every method raises ValueError if a tensor has another type or size than the protocol says.
    """

    name = "reference"

    def split(self, values: torch.Tensor, layout: FloatLayout, exponents: torch.Tensor, rest: torch.Tensor) -> None:
        n = _values(values, layout)
        _plane(exponents, layout.exponent_bytes(n), "exponents")
        _plane(rest, layout.rest_bytes(n), "rest")
        exponents.copy_(pack(symbols_of(values, layout), layout.exponent_bits))
        self._write_rest(values, layout, rest)

    def merge(self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, values: torch.Tensor) -> None:
        n = _values(values, layout)
        _plane(exponents, layout.exponent_bytes(n), "exponents")
        _plane(rest, layout.rest_bytes(n), "rest")
        symbols = unpack(exponents, layout.exponent_bits, n)
        out = values.view(torch.uint8).view(n, layout.value_bytes)
        first, second = rest[:n], rest[n:]
        if layout.exponent_bits == 5:
            sign_and_top = unpack(second, 3, n)
            out[:, 0] = first
            out[:, 1] = (sign_and_top >> 2 << 7) | (symbols << 2) | (sign_and_top & 3)
            return
        if layout.value_bytes == 4:
            out[:, :2] = second.view(n, 2)
        out[:, -2] = (symbols << 7) | (first & 0x7F)
        out[:, -1] = (first & 0x80) | (symbols >> 1)

    def merge_checked(
        self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, block: int, values: torch.Tensor
    ) -> int:
        self.merge(exponents, rest, layout, values)
        return checksum(values, block)

    def hash_blocks(self, values: torch.Tensor, layout: FloatLayout, block: int, hashes: torch.Tensor) -> None:
        n = _values(values, layout)
        _hashes(hashes, blocks_of(n, block), "hashes")
        hashes.copy_(_block_hashes(symbols_of(values, layout), block))

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
        _hashes(old, blocks, "old")
        _hashes(new, blocks, "new")
        _plane(rest, layout.rest_bytes(n), "rest")
        _plane(changed, blocks, "changed")
        hashes = _block_hashes(symbols_of(values, layout), block)
        changed.copy_((hashes != old).any(dim=1))
        new.copy_(hashes)
        self._write_rest(values, layout, rest)
        return checksum(values, block)

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
        blocks = blocks_of(n, block)
        _plane(previous, layout.exponent_bytes(n), "previous")
        _plane(rest, layout.rest_bytes(n), "rest")
        _plane(changed, blocks, "changed")
        differs = symbols_of(values, layout) != unpack(previous, layout.exponent_bits, n)
        padded = differs.new_zeros(blocks * block)
        padded[:n] = differs
        changed.copy_(padded.view(blocks, block).any(dim=1))
        self._write_rest(values, layout, rest)
        return checksum(values, block)

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
        selected = _selected(changed, n, block)
        found = symbols_of(values, layout)[selected]
        if previous is not None:
            _plane(previous, layout.exponent_bytes(n), "previous")
            before = unpack(previous, layout.exponent_bits, n)[selected]
            found = (found - before) & (2**layout.exponent_bits - 1)
        count = found.numel()
        if symbols.dtype is not torch.uint8 or symbols.numel() < count:
            raise ValueError(f"symbols has room for {symbols.numel()}, {count} are needed")
        symbols[:count] = found
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
        _plane(exponents, layout.exponent_bytes(values), "exponents")
        selected = _selected(changed, values, block)
        count = int(selected.sum())
        if symbols.dtype is not torch.uint8 or symbols.numel() < count:
            raise ValueError(f"symbols has {symbols.numel()}, the changed blocks hold {count}")
        plane = unpack(exponents, layout.exponent_bits, values)
        update = symbols[:count]
        if delta:
            update = (plane[selected] + update) & (2**layout.exponent_bits - 1)
        plane[selected] = update
        exponents.copy_(pack(plane, layout.exponent_bits))

    @staticmethod
    def _write_rest(values: torch.Tensor, layout: FloatLayout, rest: torch.Tensor) -> None:
        n = values.numel()
        parts = values.view(torch.uint8).view(n, layout.value_bytes)
        if layout.exponent_bits == 5:
            rest[:n] = parts[:, 0]
            rest[n:] = pack((parts[:, 1] >> 7 << 2) | (parts[:, 1] & 3), 3)
            return
        rest[:n] = (parts[:, -1] & 0x80) | (parts[:, -2] & 0x7F)
        if layout.value_bytes == 4:
            rest[n:] = parts[:, :2].reshape(-1)


def blocks_of(values: int, block: int) -> int:
    """How many blocks so many values make.

    Raises:
        ValueError: a block size that there is not.
    """
    if block not in BLOCKS:
        raise ValueError(f"blocks of {block} values; possible: {', '.join(map(str, BLOCKS))}")
    return -(-values // block)


def symbols_of(values: torch.Tensor, layout: FloatLayout) -> torch.Tensor:
    """The exponents of values ``[n]`` (integers of their width), one byte each: uint8 ``[n]``."""
    exponents: torch.Tensor = (values >> layout.mantissa_bits) & (2**layout.exponent_bits - 1)
    return exponents.to(torch.uint8)


def pack(symbols: torch.Tensor, width: int) -> torch.Tensor:
    """Symbols as one little-endian bit string of ``width`` bits each.

    Args:
        symbols: uint8 ``[n]``, below ``2 ** width``.

    Returns:
        uint8 ``[(n * width + 7) // 8]``, a new tensor.
    """
    if width == 8:
        return symbols.clone()
    n = symbols.numel()
    groups = -(-n // 8)
    padded = symbols.new_zeros(groups * 8, dtype=torch.int64)
    padded[:n] = symbols
    places = torch.arange(8, device=symbols.device) * width
    words = (padded.view(groups, 8) << places).sum(dim=1, dtype=torch.int64)
    bytes_of_word = torch.arange(width, device=symbols.device) * 8
    packed = ((words.unsqueeze(1) >> bytes_of_word) & 0xFF).to(torch.uint8)
    return packed.reshape(-1)[: (n * width + 7) // 8]


def unpack(packed: torch.Tensor, width: int, symbols: int) -> torch.Tensor:
    """The inverse of :func:`pack`: uint8 ``[symbols]``, a new tensor."""
    if width == 8:
        return packed.clone()
    groups = -(-symbols // 8)
    padded = packed.new_zeros(groups * width, dtype=torch.int64)
    padded[: packed.numel()] = packed
    bytes_of_word = torch.arange(width, device=packed.device) * 8
    words = (padded.view(groups, width) << bytes_of_word).sum(dim=1, dtype=torch.int64)
    places = torch.arange(8, device=packed.device) * width
    unpacked: torch.Tensor = (words.unsqueeze(1) >> places) & (2**width - 1)
    return unpacked.to(torch.uint8).reshape(-1)[:symbols]


def mix(z: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer of int64 words (two's complement of the unsigned ones)."""
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def checksum(values: torch.Tensor, block: int) -> int:
    """The checksum of values (integers of their width): see ``kernels.py``; in [0, 2**64)."""
    if not values.numel():
        return 0
    words, in_last = _words(values.view(torch.uint8), block * values.element_size())
    blocks, a_block = words.shape
    places = torch.arange(1, a_block + 1, device=values.device) * _signed(GAMMA)
    keyed = words + mix(places)
    terms = (keyed & 0xFFFFFFFF) * _shifted(keyed, 32) + words
    terms[-1, in_last:] = 0
    order = torch.arange(1, blocks + 1, device=values.device) * _signed(GAMMA)
    return int(mix(terms.sum(dim=1) + order).sum()) & (2**64 - 1)


def _block_hashes(symbols: torch.Tensor, block: int) -> torch.Tensor:
    n = symbols.numel()
    if not n:
        return torch.empty(0, 2, dtype=torch.int64, device=symbols.device)
    words, in_last = _words(symbols, block)
    blocks, a_block = words.shape
    places = torch.arange(1, a_block + 1, device=symbols.device) * _signed(GAMMA)
    in_block = torch.full((blocks,), block, dtype=torch.int64, device=symbols.device)
    in_block[-1] = n - (blocks - 1) * block
    streams = []
    for seed in SEEDS:
        terms = mix(words + (places + _signed(seed)))
        terms[-1, in_last:] = 0
        streams.append(mix(terms.sum(dim=1) + in_block))
    return torch.stack(streams, dim=1)


def _words(data: torch.Tensor, block_bytes: int) -> tuple[torch.Tensor, int]:
    """Bytes as int64 ``[blocks, words a block]``, padded with zeros, and how many words the last block has."""
    blocks = -(-data.numel() // block_bytes)
    padded = data.new_zeros(blocks * block_bytes)
    padded[: data.numel()] = data
    last = data.numel() - (blocks - 1) * block_bytes
    return padded.view(torch.int64).view(blocks, block_bytes // WORD), -(-last // WORD)


def _selected(changed: torch.Tensor, values: int, block: int) -> torch.Tensor:
    """A mask of values from a mask of blocks."""
    _plane(changed, blocks_of(values, block), "changed")
    selected: torch.Tensor = changed.bool().repeat_interleave(block)[:values]
    return selected


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right without the sign, as unsigned words do."""
    shifted: torch.Tensor = (z >> by) & (2 ** (64 - by) - 1)
    return shifted


def _signed(word: int) -> int:
    """An unsigned word as the int64 of the same bits."""
    return word - 2**64 if word >= 2**63 else word


def _values(values: torch.Tensor, layout: FloatLayout) -> int:
    if values.dtype is not layout.bits_dtype or values.dim() != 1 or not values.is_contiguous():
        raise ValueError(
            f"values of {layout.dtype} are expected as flat contiguous {layout.bits_dtype} "
            f"(FloatLayout.bits), not {values.dtype} of shape {tuple(values.shape)}"
        )
    return values.numel()


def _plane(plane: torch.Tensor, size: int, name: str) -> None:
    if plane.dtype is not torch.uint8 or plane.shape != (size,) or not plane.is_contiguous():
        raise ValueError(f"{name}: uint8 [{size}] is expected, not {plane.dtype} {list(plane.shape)}")


def _hashes(hashes: torch.Tensor, blocks: int, name: str) -> None:
    if hashes.dtype is not torch.int64 or hashes.shape != (blocks, 2) or not hashes.is_contiguous():
        raise ValueError(f"{name}: int64 [{blocks}, 2] is expected, not {hashes.dtype} {list(hashes.shape)}")
