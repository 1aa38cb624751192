"""What a backend's kernels do: the protocol that reference, native and triton share, and its exact arithmetic.

All tensors are flat, contiguous and on the backend's device; kernels write only into what is passed
for output. ``values`` are integers of the value's width (``FloatLayout.bits``), ``block`` is the
number of values in a block (64, 128, 256, 512 or 1024; the last block may be short).

Symbols are unpacked exponents, one byte a value, for every type: blocks of them are hashed and
coded. Planes (``FloatLayout``) are what is stored and sent.

All arithmetic below is modulo 2**64, on little-endian words.

**Block hash** (128 bits, two streams s = 0, 1). The block's symbols, padded with zero bytes to
whole words, are words w_0, w_1, ... of 8 symbols each. With ``GAMMA = 0x9E3779B97F4A7C15`` and
``SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)``::

    mix(z):  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  z ^ z >> 31
    hash_s = mix(sum over j of mix(w_j + SEEDS[s] + (j + 1) * GAMMA)  +  number of values in the block)

``mix`` is SplitMix64's finalizer, a bijection: one changed word always changes both sums before the
last ``mix``, and words that swap places change them because each place adds another multiple of GAMMA
inside ``mix``.

**Checksum** of a whole segment (64 bits), over the values themselves, so that a receiver verifies
what it rebuilt, not only what arrived. The bytes of block b, padded with zeros to whole words,
are words v_0, v_1, ...::

    key_j = mix((j + 1) * GAMMA)                              (the same for every block)
    t_j = v_j + key_j
    sum_b = sum over j of low32(t_j) * high32(t_j)  +  v_j    (32 x 32 -> 64 bits)
    checksum = sum over b of mix(sum_b + (b + 1) * GAMMA)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from ciera_piper_core.exponents.layout import FloatLayout

GAMMA = 0x9E3779B97F4A7C15
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
BLOCKS = (64, 128, 256, 512, 1024)
DEFAULT_BLOCK = 512


class Kernels(Protocol):
    """The kernels of one backend."""

    name: str
    """``reference``, ``native`` or ``triton``."""

    def split(self, values: torch.Tensor, layout: FloatLayout, exponents: torch.Tensor, rest: torch.Tensor) -> None:
        """Values to planes.

        Args:
            values: int16 or int32 ``[n]``.
            exponents: uint8 ``[layout.exponent_bytes(n)]``, written.
            rest: uint8 ``[layout.rest_bytes(n)]``, written.
        """

    def merge(self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, values: torch.Tensor) -> None:
        """Planes to values: the inverse of ``split``."""

    def merge_checked(
        self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, block: int, values: torch.Tensor
    ) -> int:
        """``merge``, and the checksum of the merged values (in [0, 2**64)) from the same pass."""

    def hash_blocks(self, values: torch.Tensor, layout: FloatLayout, block: int, hashes: torch.Tensor) -> None:
        """Block hashes straight from values.

        Args:
            hashes: int64 ``[blocks, 2]``, written (two's complement of the unsigned hash).
        """

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
        """Split, hash and compare in one pass over the values.

        Args:
            old: int64 ``[blocks, 2]``, the hashes to compare with. new: the same shape, written.
            rest: uint8, the sign and mantissa plane, written.
            changed: uint8 ``[blocks]``, written: 1 where any of the 128 bits differ, else 0.

        Returns:
            the checksum of the values.
        """

    def scan_exact(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        previous: torch.Tensor,
        rest: torch.Tensor,
        changed: torch.Tensor,
    ) -> int:
        """``scan_hashed`` for a sender that keeps its exponents: compares with them, so no hash is needed.

        Args:
            previous: uint8, the exponent plane to compare with; not written.
        """

    def collect(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        changed: torch.Tensor,
        previous: torch.Tensor | None,
        symbols: torch.Tensor,
    ) -> int:
        """Compaction: the symbols of the changed blocks, block after block.

        Args:
            previous: None for the exponents themselves; an exponent plane for the differences to it,
                modulo ``2 ** layout.exponent_bits``.
            symbols: uint8, room for all symbols of the changed blocks, which come first; the rest is
                not written.

        Returns:
            how many symbols were written.
        """

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
        """The inverse of ``collect``, into an exponent plane of so many values; other blocks are left alone.

        Args:
            delta: symbols are differences to what ``exponents`` holds.
            exponents: uint8, the exponent plane, updated.
        """
