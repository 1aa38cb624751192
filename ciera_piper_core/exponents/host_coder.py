"""A coder of the host's memory for symbols on another device: they cross over, are coded there, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ciera_piper_core.exponents.coding import Coder


class HostCoder:
    """:class:`~ciera_piper_core.exponents.coding.Coder` that wraps one for the CPU; its bytes are that one's.

    Tensors of the CPU pass straight through. What it costs elsewhere is two copies over the bus, of
    the symbols of changed blocks and of their code, so it is for devices whose own coder is missing.
    """

    def __init__(self, coder: Coder) -> None:
        self.inner = coder
        self.name = coder.name
        self.code = coder.code

    def bound(self, symbols: int, symbol_bits: int) -> int:
        return self.inner.bound(symbols, symbol_bits)

    def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: object = None) -> int:
        if symbols.device.type == "cpu" and out.device.type == "cpu":
            return self.inner.encode(symbols, symbol_bits, out, table_key)
        coded = torch.empty(self.bound(symbols.numel(), symbol_bits), dtype=torch.uint8)
        size = self.inner.encode(symbols.cpu(), symbol_bits, coded, table_key)
        out[:size].copy_(coded[:size])
        return size

    def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
        if symbols.device.type == "cpu" and coded.device.type == "cpu":
            self.inner.decode(coded, symbol_bits, symbols)
            return
        decoded = torch.empty(symbols.numel(), dtype=torch.uint8)
        self.inner.decode(coded.cpu(), symbol_bits, decoded)
        symbols.copy_(decoded)
