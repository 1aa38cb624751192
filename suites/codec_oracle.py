"""What the codec's stages must give, computed by other means: numpy, straight from the definitions.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.exponents.kernels import GAMMA, SEEDS

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from ciera_piper_core.exponents.layout import FloatLayout

    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

CHUNK = 2**22
"""Values that are taken apart at once; a multiple of 8, so that packed planes can be joined."""


def symbols_of(values: torch.Tensor, layout: FloatLayout) -> Bytes:
    """Exponents, one a byte.

    Args:
        values: as integers, flat, on the CPU.
    """
    symbols = np.empty(values.numel(), dtype=np.uint8)
    for start in range(0, values.numel(), CHUNK):
        words = _words(values[start : start + CHUNK], layout)
        symbols[start : start + CHUNK] = (words >> layout.mantissa_bits) & (2**layout.exponent_bits - 1)
    return symbols


def planes_of(values: torch.Tensor, layout: FloatLayout) -> tuple[Bytes, Bytes]:
    """The exponent plane, and sign and mantissa."""
    exponents, first, second = [], [], []
    for start in range(0, values.numel(), CHUNK):
        words = _words(values[start : start + CHUNK], layout)
        fields = (words >> layout.mantissa_bits) & (2**layout.exponent_bits - 1)
        sign = words >> (layout.value_bytes * 8 - 1)
        mantissa = words & (2**layout.mantissa_bits - 1)
        exponents.append(_packed(fields, layout.exponent_bits))
        # float16 keeps its low byte whole, and packs what is above it; the others begin at the top.
        if layout.exponent_bits == 5:
            first.append((mantissa & 0xFF).astype(np.uint8))
            second.append(_packed(sign << 2 | mantissa >> 8, 3))
        else:
            low = layout.mantissa_bits - 7
            first.append((sign << 7 | mantissa >> low).astype(np.uint8))
            second.append((mantissa & (2**low - 1)).astype("<u2").view(np.uint8)[: (low + 7) // 8 * len(words)])
    rest = np.concatenate([*first, *second]) if first else np.empty(0, dtype=np.uint8)
    return (np.concatenate(exponents) if exponents else np.empty(0, dtype=np.uint8)), rest


def block_hashes(symbols: Bytes, block: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hashes of the named blocks, ``[len(blocks), 2]``: one after the other, in plain integers.

    Args:
        symbols: of the whole segment.
    """
    hashes = np.empty((len(blocks), 2), dtype=np.int64)
    for row, index in enumerate(blocks):
        part = symbols[index * block : (index + 1) * block]
        words = np.concatenate([part, np.zeros(-len(part) % 8, dtype=np.uint8)]).view("<u8").astype(np.uint64)
        places = (np.arange(len(words), dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
        for stream, seed in enumerate(SEEDS):
            total = _mix(words + np.uint64(seed) + places).sum(dtype=np.uint64) + np.uint64(len(part))
            hashes[row, stream] = _mix(np.array([total], dtype=np.uint64)).view(np.int64)[0]
    return hashes


def checksum_of(values: torch.Tensor, layout: FloatLayout, block: int) -> int:
    """The checksum of a segment's values."""
    raw = values.contiguous().numpy().view(np.uint8)
    block_bytes = block * layout.value_bytes
    keys = _mix((np.arange(block_bytes // 8, dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA))
    total, first = 0, 0
    step = max(1, CHUNK // block_bytes)
    for start in range(0, len(raw), step * block_bytes):
        part = raw[start : start + step * block_bytes]
        words = np.concatenate([part, np.zeros(-len(part) % block_bytes, dtype=np.uint8)])
        table = words.view("<u8").astype(np.uint64).reshape(-1, block_bytes // 8)
        keyed = table + keys
        sums = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32)) + table
        # A short last block has only as many words as its bytes fill.
        words_in = np.full(len(table), block_bytes // 8)
        if len(part) % block_bytes:
            words_in[-1] = -(-(len(part) % block_bytes) // 8)
        mask = np.arange(block_bytes // 8) < words_in[:, np.newaxis]
        by_block = np.where(mask, sums, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        places = (np.arange(first, first + len(table), dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
        total += int(_mix(by_block + places).sum(dtype=np.uint64))
        first += len(table)
    return total % 2**64


def _words(values: torch.Tensor, layout: FloatLayout) -> NDArray[np.int64]:
    return values.numpy().view(f"<u{layout.value_bytes}").astype(np.int64)


def _packed(fields: NDArray[np.int64], width: int) -> Bytes:
    """Fields of so many bits, one after the other, low bits first."""
    if width == 8:
        return fields.astype(np.uint8)
    bits = (fields[:, np.newaxis] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def _mix(z: Words) -> Words:
    """SplitMix64's finalizer."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
