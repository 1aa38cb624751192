"""How a stream will be coded: raw, sparse, or with which frequency table; and whether an earlier plan still fits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from ciera_piper_core.exponents.rans.tables import SLOTS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Counts = npt.NDArray[np.uint64]


class Kind(IntEnum):
    """A stream's first byte."""

    RAW = 0
    CONSTANT = 1
    RANS = 2
    SPARSE = 3


SPARSE_SHARE = (15, 16)
"""Streams are sparse if one symbol's share is at least this; 64 slots are too coarse for much more."""

SPARSE_SHARE_LEAST = (29, 32)
"""They stay sparse, with the plan of an earlier one, down to this, so that a share in between does not flutter."""

COUNT_ALL = 2**18
"""Streams of so many symbols are counted whole; longer ones in pieces, spread evenly."""

PIECE, MOST_PIECES = 4096, 256
"""Symbols of a piece that is counted for a table, and how many pieces."""

CHECK_PIECE, LEAST_CHECK_PIECES, MOST_CHECK_PIECES = 1024, 16, 64
"""Symbols of a piece that is counted to see whether a table still fits, and how many pieces."""

STRIDE = 30011
"""Symbols from piece to piece at least. A prime: pieces must not fall on the same columns of every row of a matrix."""

DRIFT_SHARE, DRIFT_BITS = 128, 64
"""A table no longer fits if it costs 1/128 and 64 bits more than the counted symbols' own."""

COST_ONE = 1 << 16


class Counting(Protocol):
    """What plans need of a coder's primitives; bit-identical in all of them."""

    def count(self, symbols: Bytes, piece: int, stride: int) -> Counts:
        """How often each of 256 symbols occurs in the first ``piece`` of every ``stride``; in all, if that is less."""

    def build_table(self, counts: Counts, any_symbol: bool) -> bytes:
        """The table that fits; empty if none does."""

    def cost(self, counts: Counts, table: bytes) -> int | None:
        """Units of 2**-16 bits that the counted symbols take with the table; None if it cannot code them."""


@dataclass(frozen=True)
class Plan:
    """How to code a stream.

    Attributes:
        kind: RAW, RANS or SPARSE. table: of RANS. usual: the symbol of SPARSE.
    """

    kind: Kind
    table: bytes = b""
    usual: int = 0

    @property
    def serves_any(self) -> bool:
        """Whether it can code every symbol: its table, if it has one, has an escape."""
        return sum(self.table[2::2]) < SLOTS

    @property
    def widest(self) -> int:
        """The largest symbol that it names."""
        return max(self.usual, max(self.table[1::2], default=0))


def make_plan(primitives: Counting, symbols: Bytes, symbol_bits: int, any_symbol: bool) -> Plan:
    """The plan for these symbols.

    Args:
        any_symbol: its table must serve symbols, too, that were not counted. Else it may save the escape's
            slot, which costs 0.02 bits a symbol, and is found out by coding if that was wrong.
    """
    n = symbols.size
    stride = 1 if n <= COUNT_ALL else max(STRIDE, n // MOST_PIECES | 1)
    counts = primitives.count(symbols, PIECE, stride)
    return _plan_of(primitives, counts, symbol_bits, any_symbol)


def still_fits(primitives: Counting, plan: Plan, symbols: Bytes, symbol_bits: int) -> bool:
    """Whether a plan that was made for other symbols serves these about as well as their own would; by a sample."""
    if plan.widest >> symbol_bits:
        return False
    n = symbols.size
    stride = max(min(STRIDE, n // LEAST_CHECK_PIECES | 1), n // MOST_CHECK_PIECES | 1)
    counts = primitives.count(symbols, CHECK_PIECE, stride)
    if plan.kind is Kind.SPARSE:
        part, whole = SPARSE_SHARE_LEAST
        return int(counts[plan.usual]) * whole >= int(counts.sum()) * part
    fresh = _plan_of(primitives, counts, symbol_bits, plan.serves_any)
    if fresh.kind is not plan.kind or plan.kind is Kind.RAW:
        return fresh.kind is plan.kind
    now, best = primitives.cost(counts, plan.table), primitives.cost(counts, fresh.table)
    if now is None or best is None:
        return False
    return now - best <= best // DRIFT_SHARE + DRIFT_BITS * COST_ONE


def _plan_of(primitives: Counting, counts: Counts, symbol_bits: int, any_symbol: bool) -> Plan:
    total, usual = int(counts.sum()), int(counts.argmax())
    part, whole = SPARSE_SHARE
    if int(counts[usual]) * whole >= total * part:
        return Plan(Kind.SPARSE, usual=usual)
    table = primitives.build_table(counts, any_symbol)
    cost = primitives.cost(counts, table) if table else None
    if cost is None or cost >= total * symbol_bits * COST_ONE:
        return Plan(Kind.RAW)
    return Plan(Kind.RANS, table)
