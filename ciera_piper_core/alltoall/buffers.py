"""Buffers that an algorithm keeps from exchange to exchange, and rows of any dtype seen as rows of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS = (torch.int64, torch.int32, torch.uint8)
"""What rows are moved as, the widest that fits: every communication library knows these, while many
dtypes of elements (int16, float8) are unknown to some. None of them changes a bit."""

HEADROOM = 4
"""A buffer that is too small grows to what is asked for, or by one part in so many of itself if that is more."""


class Buffers:
    """Memory by name, which grows and is never given back while this lives."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.device], torch.Tensor] = {}

    def take(self, name: str, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for ``rows`` rows as wide as ``like``'s: shape ``(rows, like.shape[1])``, contents undefined.

        What was taken under the same name before is overwritten.
        """
        size = rows * like.shape[1] * like.itemsize
        key = (name, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            kept = 0 if buffer is None else buffer.numel()
            buffer = torch.empty(max(size, kept + kept // HEADROOM), dtype=torch.uint8, device=like.device)
            self._buffers[key] = buffer
        if buffer.is_cuda:
            # It may be used on another stream than the one that it was allocated on.
            buffer.record_stream(torch.cuda.current_stream(buffer.device))
        return buffer[:size].view(like.dtype).view(rows, like.shape[1])

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(buffer.numel() for buffer in self._buffers.values())


def row_unit(row_bytes: int) -> torch.dtype:
    """The widest of ``UNITS`` of which a row is a whole number."""
    return next(unit for unit in UNITS if row_bytes % unit.itemsize == 0)


def as_units(tensor: torch.Tensor) -> torch.Tensor | None:
    """``tensor``'s memory as rows of integers: shape ``(rows, units)``; None where it cannot be seen so.

    It can if it is contiguous, holds what it seems to (no lazy conjugate or negative), and begins
    where an integer may begin. Rows must have at least one byte.
    """
    rows = tensor.shape[0]
    row_bytes = row_numel(tensor.shape) * tensor.itemsize
    unit = row_unit(row_bytes)
    lazy = tensor.is_conj() or tensor.is_neg()
    if lazy or not tensor.is_contiguous() or tensor.storage_offset() * tensor.itemsize % unit.itemsize:
        return None
    return tensor.detach().view(-1).view(unit).view(rows, row_bytes // unit.itemsize)


def row_numel(shape: Sequence[int]) -> int:
    """Elements of one row."""
    count = 1
    for size in shape[1:]:
        count *= size
    return count
