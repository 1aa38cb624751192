"""Buffers that are used again: scratch of encoders and decoders, which would else be allocated at every call."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.exponents.fresh_memory import fresh_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDING = 4096
"""Sizes are rounded up to multiples of this many bytes, and to an eighth of their largest power of two above it."""


class Workspace:
    """A pool of uint8 buffers on one device; threads may share it, on a GPU if they share a stream too.

    A buffer belongs to its taker until it is given back. One that nobody needs any more is kept, up
    to ``keep_bytes`` in all, since first touching fresh memory costs more than the kernels that use it.
    """

    def __init__(self, device: torch.device | str = "cpu", keep_bytes: int = 256 << 20) -> None:
        self.device = torch.device(device)
        self.keep_bytes = keep_bytes
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept and not in use."""
        with self._lock:
            return sum(buffer.numel() for buffer in self._free)

    def take(self, size: int) -> torch.Tensor:
        """A buffer of ``size`` bytes or more; what it holds is undefined."""
        with self._lock:
            fitting = [
                index for index, buffer in enumerate(self._free) if size <= buffer.numel() <= 2 * size + ROUNDING
            ]
            if fitting:
                return self._free.pop(min(fitting, key=lambda index: self._free[index].numel()))
        return fresh_bytes(_rounded(size), self.device)

    def give(self, buffer: torch.Tensor) -> None:
        """Give a buffer back that :meth:`take` returned."""
        with self._lock:
            self._free.append(buffer)
            while sum(kept.numel() for kept in self._free) > self.keep_bytes:
                self._free.pop(0)

    @contextmanager
    def borrow(self, size: int) -> Iterator[torch.Tensor]:
        """A buffer of exactly ``size`` bytes inside a ``with``."""
        buffer = self.take(size)
        try:
            yield buffer[:size]
        finally:
            self.give(buffer)


def _rounded(size: int) -> int:
    step = max(ROUNDING, 1 << max(size.bit_length() - 4, 0))
    return max(-(-size // step), 1) * step
