"""Buffers that gathers borrow and give back, so that memory is touched for the first time only once."""

from __future__ import annotations

import threading

import torch


class BufferPool:
    """Buffers of bytes on one device; any thread may borrow.

    Layers gather one after the other, so few buffers serve them all: each as large as the largest
    gather needs. What a CUDA kernel still reads is not handed out before it is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []
        self._lock = threading.Lock()
        self._owned_bytes = 0

    @property
    def owned_bytes(self) -> int:
        """Of all buffers, borrowed ones too."""
        return self._owned_bytes

    def take(self, size: int) -> torch.Tensor:
        """At least ``size`` bytes, uint8, with whatever was in them."""
        with self._lock:
            found = self._pop(size)
            if found is None:
                # Payloads grow a little now and then; a new buffer for each would be touched anew.
                size += size // 8
                self._owned_bytes += size
        if found is None:
            return torch.empty(size, dtype=torch.uint8, device=self._device)
        buffer, used = found
        if used is not None:
            used.wait()
        return buffer

    def _pop(self, size: int) -> tuple[torch.Tensor, torch.cuda.Event | None] | None:
        """The smallest free buffer that holds ``size``; where none does, the largest goes: a larger one is made."""
        sizes = [buffer.numel() for buffer, _ in self._free]
        fitting = [index for index, held in enumerate(sizes) if held >= size]
        if fitting:
            return self._free.pop(min(fitting, key=sizes.__getitem__))
        if sizes:
            buffer, _ = self._free.pop(sizes.index(max(sizes)))
            self._owned_bytes -= buffer.numel()
        return None

    def give(self, buffer: torch.Tensor) -> None:
        """Hand a buffer back that came from :meth:`take`; the current stream may still use it."""
        used = None
        if self._device.type == "cuda":
            used = torch.cuda.Event()  # type: ignore[no-untyped-call]
            used.record()
        with self._lock:
            self._free.append((buffer, used))

    def forget(self, buffer: torch.Tensor) -> None:
        """A buffer will not come back, for a failed collective may still write to it."""
        with self._lock:
            self._owned_bytes -= buffer.numel()
