"""Frequency tables of the rANS coder in plain Python: made from counts, read from bytes, and what coding would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ciera_piper_core.exponents.coding import CodedDataError

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS = 64
MOST_ENTRIES = 15
LEAST_SHARE = 128
"""A symbol has an entry if at least one in so many symbols is it."""

COST_BITS = 16
"""Costs are integers in units of 2**-16 bits."""


@dataclass(frozen=True)
class Table:
    """Which slots belong to which symbol.

    Attributes:
        symbols: of the entries, in the order of their slots. shares: their slots.

    Raises:
        ValueError: no entry or more than 15, a symbol twice, no slot or more than there are.
    """

    symbols: tuple[int, ...]
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.symbols) <= MOST_ENTRIES or len(self.symbols) != len(self.shares):
            raise ValueError(f"{len(self.symbols)} symbols and {len(self.shares)} shares; 1 to 15 of both are needed")
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError(f"a symbol has two entries: {self.symbols}")
        if min(self.shares) < 1 or max(self.shares) >= SLOTS or sum(self.shares) > SLOTS:
            raise ValueError(f"shares are {self.shares}; each has 1 to 63 of 64 slots")

    @property
    def escape_share(self) -> int:
        """Slots of the escape, which come last; 0 if there is none."""
        return SLOTS - sum(self.shares)

    def to_bytes(self) -> bytes:
        pairs = zip(self.symbols, self.shares, strict=True)
        return bytes([len(self.symbols), *(number for pair in pairs for number in pair)])


def parse_table(coded: bytes, symbol_bits: int) -> Table:
    """The table that ``coded`` begins with.

    Raises:
        CodedDataError: there is none, or one of symbols that have more bits.
    """
    entries = coded[0] if coded else 0
    pairs = coded[1 : 1 + 2 * entries]
    if not entries or len(pairs) < 2 * entries:
        raise CodedDataError("a frequency table is cut short")
    try:
        table = Table(tuple(pairs[::2]), tuple(pairs[1::2]))
    except ValueError as error:
        raise CodedDataError(f"a frequency table is wrong: {error}") from None
    if max(table.symbols) >> symbol_bits:
        raise CodedDataError(f"a frequency table has symbols of more than {symbol_bits} bits")
    return table


def build_table(counts: Sequence[int], any_symbol: bool) -> Table | None:
    """The table that fits counts.

    Args:
        counts: of each of 256 symbols.
        any_symbol: it must be able to code symbols that were not counted.

    Returns:
        None if no symbol is frequent enough for an entry, or there is but one symbol.
    """
    total = sum(counts)
    order = sorted((symbol for symbol in range(256) if counts[symbol]), key=lambda symbol: (-counts[symbol], symbol))
    symbols = [symbol for symbol in order[:MOST_ENTRIES] if counts[symbol] * LEAST_SHARE >= total]
    weights = [counts[symbol] for symbol in symbols]
    escaped = total - sum(weights)
    if escaped or any_symbol:
        weights.append(escaped)
    if not symbols or len(weights) == 1:
        return None
    share_logs = [0, *map(log2_fixed, range(1, SLOTS + 1))]
    shares = [1] * len(weights)
    for _ in range(SLOTS - len(weights)):
        gains = [
            weight * (share_logs[share + 1] - share_logs[share]) for weight, share in zip(weights, shares, strict=True)
        ]
        shares[gains.index(max(gains))] += 1
    return Table(tuple(symbols), tuple(shares[: len(symbols)]))


def cost(counts: Sequence[int], table: Table) -> int | None:
    """What coding symbols with a table would take, in 2**-16 bits, without states and framing.

    Escaped symbols take what they do in the escape's slots, and the entropy of all that are escaped.

    Returns:
        None if the table cannot code them all.
    """
    shares = dict(zip(table.symbols, table.shares, strict=True))
    escaped = [count for symbol, count in enumerate(counts) if count and symbol not in shares]
    total = sum(escaped)
    if total and not table.escape_share:
        return None
    one = SLOTS.bit_length() - 1 << COST_BITS
    bits = sum(counts[symbol] * (one - log2_fixed(share)) for symbol, share in shares.items())
    bits += sum(count * (one - log2_fixed(table.escape_share) - log2_fixed(count)) for count in escaped)
    return bits + (total * log2_fixed(total) if total else 0)


def log2_fixed(value: int) -> int:
    """log2 of a positive integer below 2**64 in units of 2**-16, rounded down.

    By squaring, in integers only, so that every machine and every backend makes the same tables.
    """
    whole = value.bit_length() - 1
    mantissa = value >> whole - 31 if whole > 31 else value << 31 - whole
    result = whole
    for _ in range(COST_BITS):
        mantissa = mantissa * mantissa >> 31
        result = result << 1 | mantissa >> 32
        mantissa >>= mantissa >> 32
    return result
