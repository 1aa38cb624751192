"""One bit a block, as a payload carries it: which blocks changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.reference import pack, unpack

if TYPE_CHECKING:
    import torch


def bitmap_bytes(blocks: int) -> int:
    """Bytes of the bitmap of so many blocks (S_bm)."""
    return (blocks + 7) // 8


def write_bitmap(changed: torch.Tensor, bitmap: torch.Tensor) -> int:
    """Flags to bits.

    Args:
        changed: uint8 ``[blocks]``, 0 or 1.
        bitmap: uint8 ``[bitmap_bytes(blocks)]``, written: block i is bit ``i % 8`` of byte ``i // 8``;
            unused bits are 0.

    Returns:
        how many blocks changed.
    """
    if changed.device.type == "cpu":
        flags = changed.numpy()
        bitmap.numpy()[:] = np.packbits(flags, bitorder="little")
        return int(np.count_nonzero(flags))
    bitmap.copy_(pack(changed, 1))
    return int(changed.sum())


def read_bitmap(bitmap: torch.Tensor, changed: torch.Tensor) -> int:
    """Bits to flags: the inverse of :func:`write_bitmap`, and how many blocks changed.

    Raises:
        CodedDataError: a bit is set that belongs to no block.
    """
    blocks = changed.numel()
    if blocks % 8 and int(bitmap[-1]) >> blocks % 8:
        raise CodedDataError(f"the bitmap marks a block that there is not; there are {blocks}")
    if changed.device.type == "cpu":
        flags = changed.numpy()
        flags[:] = np.unpackbits(bitmap.numpy(), count=blocks, bitorder="little")
        return int(np.count_nonzero(flags))
    changed.copy_(unpack(bitmap, 1, blocks))
    return int(changed.sum())
