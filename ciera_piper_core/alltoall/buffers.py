"""Buffers that an algorithm keeps from exchange to exchange, and rows of any dtype seen as rows of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADROOM = 4
"""A buffer that is too small grows to what is asked for, or by one part in so many of itself if that is more."""


class Buffers:
    """Memory by name, which grows and is never given back while this lives."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.device], torch.Tensor] = {}
        # What was last taken under each name: exchanges of one size after the other make no new views.
        self._taken: dict[str, torch.Tensor] = {}

    def take(self, name: str, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for ``rows`` rows as wide as ``like``'s: shape ``(rows, like.shape[1])``, contents undefined.

        What was taken under the same name before is overwritten.
        """
        width, taken = like.shape[1], self._taken.get(name)
        if taken is None or taken.shape != (rows, width) or taken.dtype != like.dtype or taken.device != like.device:
            taken = self._taken[name] = self._view(name, rows, like)
        if taken.is_cuda:
            # It may be used on another stream than the one that it was allocated on.
            taken.record_stream(torch.cuda.current_stream(taken.device))
        return taken

    def _view(self, name: str, rows: int, like: torch.Tensor) -> torch.Tensor:
        size = rows * like.shape[1] * like.itemsize
        key = (name, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            kept = 0 if buffer is None else buffer.numel()
            buffer = torch.empty(max(size, kept + kept // HEADROOM), dtype=torch.uint8, device=like.device)
            self._buffers[key] = buffer
        return buffer[:size].view(like.dtype).view(rows, like.shape[1])

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(buffer.numel() for buffer in self._buffers.values())


def row_unit(row_bytes: int) -> torch.dtype:
    """What a row is moved as: the widest integer of which it is a whole number.

    Every communication library knows these, while some do not know int16 or float8; and no bit changes.
    """
    if row_bytes % 8 == 0:
        return torch.int64
    return torch.int32 if row_bytes % 4 == 0 else torch.uint8


def as_units(tensor: torch.Tensor) -> torch.Tensor | None:
    """``tensor``'s memory as rows of integers: shape ``(rows, units)``; None where it cannot be seen so.

    It can if it is contiguous, holds what it seems to (no lazy conjugate or negative), and begins
    where an integer may begin. Rows must have at least one byte. Call it without recording gradients.
    """
    row_elements = row_numel(tensor.shape)
    unit = row_unit(row_elements * tensor.itemsize)
    if tensor.shape[0] == 0:
        # Of no elements any strides are contiguous, also those that cannot be viewed.
        return torch.empty((0, row_elements * tensor.itemsize // unit.itemsize), dtype=unit, device=tensor.device)
    lazy = tensor.is_conj() or tensor.is_neg()
    if lazy or not tensor.is_contiguous() or tensor.storage_offset() * tensor.itemsize % unit.itemsize:
        return None
    if tensor.dim() != 2:
        tensor = tensor.view(tensor.shape[0], row_elements)
    # A view in any case: whoever keeps it does not keep the tensor itself.
    return tensor.view(unit)


def row_numel(shape: Sequence[int]) -> int:
    """Elements of one row."""
    count = 1
    for size in shape[1:]:
        count *= size
    return count
