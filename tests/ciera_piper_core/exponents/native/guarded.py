"""Buffers at any alignment whose surroundings tell if a kernel wrote beyond them."""

from __future__ import annotations

import torch

GUARD_BYTES = 256
GUARD = 0xA7


class Guarded:
    """``size`` elements, ``offset`` bytes after a 64-byte boundary, with guard bytes around.

    The offset may be one that no view of a tensor has: C gets a bare address, so any must do.
    """

    def __init__(self, dtype: torch.dtype, size: int, offset: int = 0, fill: torch.Tensor | None = None) -> None:
        self._memory = bytearray([GUARD]) * (size * dtype.itemsize + offset + 2 * GUARD_BYTES + 64)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._start = GUARD_BYTES + (-whole.data_ptr() - GUARD_BYTES) % 64 + offset
        self._end = self._start + size * dtype.itemsize
        self._whole = whole
        if size:
            self.tensor = torch.frombuffer(self._memory, dtype=dtype, count=size, offset=self._start)
        else:
            self.tensor = torch.empty(0, dtype=dtype)
        self._filled = None if fill is None else fill.clone()
        if fill is not None:
            self.tensor.copy_(fill)

    def check(self) -> None:
        """The surroundings are untouched, and so is what was filled in."""
        around = torch.cat([self._whole[: self._start], self._whole[self._end :]])
        assert (around == GUARD).all(), "written beyond the buffer"
        if self._filled is not None:
            assert torch.equal(self.tensor, self._filled), "an input was changed"
