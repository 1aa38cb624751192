"""Buffers at any alignment whose surroundings tell if a kernel wrote beyond them."""

from __future__ import annotations

import torch

GUARD_BYTES = 256
GUARD = b"\xa7"


class Guarded:
    """``size`` elements, ``offset`` bytes after a 64-byte boundary, with guard bytes around.

    The offset may be one that no view of a tensor has: C gets a bare address, so any must do.
    """

    def __init__(self, dtype: torch.dtype, size: int, offset: int = 0, fill: torch.Tensor | None = None) -> None:
        self._memory = bytearray(GUARD) * (size * dtype.itemsize + offset + 2 * GUARD_BYTES + 64)
        address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._start = GUARD_BYTES + (-address - GUARD_BYTES) % 64 + offset
        self._end = self._start + size * dtype.itemsize
        if size:
            self.tensor = torch.frombuffer(self._memory, dtype=dtype, count=size, offset=self._start)
        else:
            self.tensor = torch.empty(0, dtype=dtype)
        self._filled = None if fill is None else fill.clone()
        if fill is not None:
            self.tensor.copy_(fill)

    def check(self) -> None:
        """The surroundings are untouched, and so is what was filled in."""
        before, after = self._memory[: self._start], self._memory[self._end :]
        assert not before.strip(GUARD), "written before the buffer"
        assert not after.strip(GUARD), "written beyond the buffer"
        if self._filled is not None:
            assert torch.equal(self.tensor, self._filled), "an input was changed"
