"""memcpy with a set number of threads: the baseline of whatever passes over memory once."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ALIGNMENT = 4096
"""Threads' parts begin at multiples of it: no two write to one page."""


class MemoryCopy:
    """Copies whole tensors: the C library's memcpy on a CPU, a device copy on a GPU.

    torch's own copy is no memcpy: it is a loop that writes through the cache, half as fast for what no cache holds.

    Args:
        threads: that copy, on a CPU.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._memcpy = ctypes.CDLL(None).memcpy
        self._memcpy.restype = ctypes.c_void_p
        self._memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def __call__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy ``source`` to ``target``: contiguous, of the same size, on the same device."""
        if source.device.type != "cpu":
            target.copy_(source)
            return
        to, of, size = target.data_ptr(), source.data_ptr(), source.nbytes
        if self._pool is None:
            self._memcpy(to, of, size)
            return
        part = max(ALIGNMENT, -(-size // self._threads // ALIGNMENT) * ALIGNMENT)
        starts = range(0, size, part)
        jobs = [self._pool.submit(self._memcpy, to + at, of + at, min(part, size - at)) for at in starts]
        for job in jobs:
            job.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
