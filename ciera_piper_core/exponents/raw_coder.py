"""INTERIM, until exponents/rans exists: packed symbols, nothing coded. Will be deleted."""

from __future__ import annotations

import torch

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.reference import pack, unpack


class RawCoder:
    name = "raw"
    code = 255

    def bound(self, symbols: int, symbol_bits: int) -> int:
        return (symbols * symbol_bits + 7) // 8

    def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: object = None) -> int:
        size = self.bound(symbols.numel(), symbol_bits)
        out[:size] = pack(symbols, symbol_bits)
        return size

    def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
        if coded.numel() != self.bound(symbols.numel(), symbol_bits):
            raise CodedDataError("wrong size")
        symbols.copy_(unpack(coded, symbol_bits, symbols.numel()))
