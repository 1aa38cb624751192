"""The tensors of an exchange, checked, and seen as rows of integers; remembered while they stay the same.

Exchanges come by the thousand, most over the same tensors: then the small ones are as good as free
of checks and views.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.alltoall.buffers import as_units, row_numel

if TYPE_CHECKING:
    BothSplits = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    """Rows to and from each rank; None for equal shares."""


class Views:
    """One exchange's tensors as integers.

    It holds their memory no longer than they do themselves.

    Attributes:
        nothing: rows have no bytes, so there is nothing to move.
    """

    def __init__(self, splits: BothSplits, send: torch.Tensor, out: torch.Tensor) -> None:
        self.nothing = row_numel(send.shape) == 0
        self._splits = splits
        self._source: torch.Tensor | None = None
        self._target: torch.Tensor | None = None
        self._staged: torch.Tensor | None = None
        if not self.nothing:
            with torch.no_grad():
                self._source, self._target = as_units(send), as_units(out)
        self._places = (send.data_ptr(), send.shape, out.data_ptr(), out.shape)
        self._send = weakref.ref(send, self._forget)
        self._out = weakref.ref(out, self._forget)

    def are_of(self, splits: BothSplits, send: torch.Tensor, out: torch.Tensor) -> bool:
        """True for the very tensors that these are views of, if nobody has changed where they lie."""
        return (
            self._send() is send
            and self._out() is out
            and self._splits == splits
            and self._places == (send.data_ptr(), send.shape, out.data_ptr(), out.shape)
        )

    def source(self, send: torch.Tensor) -> torch.Tensor:
        """What is sent: shape ``(rows, units)``, contiguous."""
        if self._source is not None:
            return self._source
        # A copy of its own: contiguous, aligned, and what it seems to be.
        with torch.no_grad():
            plain = send.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
            source = as_units(plain)
        assert source is not None, "a fresh copy can be seen as integers"
        return source

    def target(self, out: torch.Tensor) -> torch.Tensor:
        """Where to receive: shape ``(rows, units)``, contiguous; ``finish`` it."""
        if self._target is not None:
            return self._target
        self._staged = torch.empty(out.shape, dtype=out.dtype, device=out.device)
        target = as_units(self._staged)
        assert target is not None, "a fresh tensor can be seen as integers"
        return target

    def finish(self, out: torch.Tensor) -> None:
        """Bring what was received to ``out``, where it could not be received there."""
        staged, self._staged = self._staged, None
        if staged is not None:
            with torch.no_grad():
                out.copy_(staged)

    def _forget(self, _: object) -> None:
        self._source = self._target = None
        self._places = (0, torch.Size(), 0, torch.Size())


def make_views(splits: BothSplits, send: torch.Tensor, out: torch.Tensor, world: int) -> Views:
    """Views of tensors that hold what the splits say.

    Raises:
        ValueError: they do not; the message says what is wrong.
    """
    if send.dim() == 0 or out.dim() == 0:
        raise ValueError("an exchange moves rows; a tensor without dimensions has none")
    if send.shape[1:] != out.shape[1:] or send.dtype != out.dtype or send.device != out.device:
        raise ValueError(
            f"rows of {tuple(send.shape[1:])} {send.dtype} on {send.device} cannot be received as "
            f"{tuple(out.shape[1:])} {out.dtype} on {out.device}"
        )
    for which, tensor, counts in (("send", send, splits[0]), ("receive", out, splits[1])):
        rows = tensor.shape[0]
        if counts is None:
            if rows % world:
                raise ValueError(f"{rows} rows to {which} are no equal shares for {world} ranks; give splits")
        elif sum(counts) != rows:
            raise ValueError(f"{which} splits add up to {sum(counts)} rows, but the tensor has {rows}")
    if splits[0] is None and send.shape[0] != out.shape[0]:
        raise ValueError(f"equal shares of {send.shape[0]} rows cannot be received as {out.shape[0]}; give splits")
    if send.numel() and send.data_ptr() == out.data_ptr():
        raise ValueError("an exchange cannot be done in place; receive into another tensor")
    return Views(splits, send, out)
