"""What an entropy coder of symbols does: the protocol that reference, native and nvcomp share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class CodedDataError(ValueError):
    """Coded bytes that no encoder wrote: cut short, changed on the way, or of another version."""


class Coder(Protocol):
    """An entropy coder of symbols; coded bytes describe themselves, but for the number of symbols.

    It keeps the frequency table of the last ``encode`` that it was given by key, and uses it again
    while it fits; the table travels with the coded bytes, so decoders keep nothing.
    """

    name: str
    code: int
    """Names the coded bytes' format in a payload's header."""

    def bound(self, symbols: int, symbol_bits: int) -> int:
        """Most bytes that so many symbols can take: raw ones (``symbol_bits`` each, packed) and a few for framing."""

    def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: object = None) -> int:
        """Code symbols; never changes them.

        Args:
            symbols: uint8 ``[n]``, each below ``2 ** symbol_bits``.
            symbol_bits: 8 or 5.
            out: uint8, at least ``bound(n, symbol_bits)`` bytes.
            table_key: encodes with the same key share a frequency table; None for one of their own.

        Returns:
            bytes written; 0 symbols take 0 bytes.
        """

    def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
        """The inverse: fills ``symbols``.

        Raises:
            CodedDataError: ``coded`` is not what an encoder wrote for so many symbols. Nothing outside
                ``symbols`` was touched.
        """
