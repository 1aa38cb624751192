"""The rANS coder in numpy: slow, plain, and the oracle whose bytes every other implementation must write."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.rans import tables
from ciera_piper_core.exponents.rans.stream import PAD, StreamCoder, chunk_sizes, lanes

if TYPE_CHECKING:
    import numpy.typing as npt

    from ciera_piper_core.exponents.rans.plan import Counts
    from ciera_piper_core.exponents.rans.stream import Bytes, Directory

    Numbers = npt.NDArray[np.int64]

ESCAPE = tables.MOST_ENTRIES
SLOT_BITS = 6
LEAST_STATE = 256
UNIT = 64
"""States whose bytes lie in the order of the states."""


class ReferenceCoder(StreamCoder):
    """:class:`~ciera_piper_core.exponents.coding.Coder` that defines the format (``rans``)."""

    def __init__(self) -> None:
        super().__init__(ReferencePrimitives())


class ReferencePrimitives:
    """:class:`~ciera_piper_core.exponents.rans.stream.Primitives` in numpy operations on one step's states."""

    def count(self, symbols: Bytes, piece: int, stride: int) -> Counts:
        pieces = [symbols[at : at + min(piece, stride)] for at in range(0, symbols.size, stride)]
        counts: Counts = np.bincount(np.concatenate(pieces), minlength=256).astype(np.uint64)
        return counts

    def build_table(self, counts: Counts, any_symbol: bool) -> bytes:
        table = tables.build_table(counts.tolist(), any_symbol)
        return table.to_bytes() if table else b""

    def cost(self, counts: Counts, table: bytes) -> int | None:
        return tables.cost(counts.tolist(), tables.parse_table(table, symbol_bits=8))

    def constant(self, symbols: Bytes) -> bool:
        return bool((symbols == symbols[0]).all())

    def pack5(self, symbols: Bytes, out: Bytes) -> int:
        bits = np.unpackbits(symbols[:, None], axis=1, count=5, bitorder="little")
        out[:] = np.packbits(bits.reshape(-1), bitorder="little")
        return int(np.bitwise_or.reduce(symbols))

    def unpack5(self, packed: Bytes, symbols: Bytes) -> int:
        bits = np.unpackbits(packed, bitorder="little")
        used = 5 * symbols.size
        symbols[:] = np.packbits(bits[:used].reshape(-1, 5), axis=1, bitorder="little")[:, 0]
        return int(bits[used:].sum())

    def encode_chunks(self, table: bytes, symbols: Bytes, out: Bytes, escapes: Bytes) -> tuple[int, Directory, int]:
        model = _Model(tables.parse_table(table, symbol_bits=8))
        parts, escaped, directory, first = [], [], [], 0
        for size in chunk_sizes(symbols.size):
            coded, states, left_out = model.encode(symbols[first : first + size])
            directory.append((coded.size, left_out.size))
            parts += [coded, states.astype("<u2").view(np.uint8)]
            escaped.append(left_out)
            first += size
        all_parts, all_escaped = np.concatenate(parts), np.concatenate(escaped)
        if all_parts.size > out.size or (all_escaped.size and not model.table.escape_share):
            return -1, np.zeros((0, 2), np.uint32), 0
        out[: all_parts.size] = all_parts
        escapes[: all_escaped.size] = all_escaped
        return all_parts.size, np.array(directory, np.uint32), all_escaped.size

    def decode_chunks(
        self,
        table: bytes,
        symbol_bits: int,
        stream: Bytes,
        begin: int,
        directory: Directory,
        escapes: Bytes,
        out: Bytes,
    ) -> bool:
        model = _Model(tables.parse_table(table, symbol_bits))
        first, escape = 0, PAD
        for size, (coded, escaped) in zip(chunk_sizes(out.size), directory.tolist(), strict=True):
            states_at = begin + coded
            end = states_at + 2 * lanes(size)
            states = stream[states_at:end].copy().view("<u2").astype(np.int64)
            chunk_escapes = escapes[escape : escape + escaped]
            try:
                model.decode(stream[begin:states_at], states, chunk_escapes, out[first : first + size])
            except CodedDataError:
                return False
            begin, first, escape = end, first + size, escape + escaped
        return begin == stream.size and escape == escapes.size - PAD

    def split_sparse(self, symbols: Bytes, usual: int, bits: Bytes, others: Bytes) -> int:
        differs = symbols != usual
        bits[:] = np.packbits(differs, bitorder="little")
        found = symbols[differs]
        others[: found.size] = found
        return int(found.size)

    def merge_sparse(self, bits: Bytes, usual: int, others: Bytes, symbols: Bytes) -> bool:
        differs = np.unpackbits(bits, bitorder="little").astype(bool)
        if differs[symbols.size :].any() or np.count_nonzero(differs) != others.size:
            return False
        symbols[:] = usual
        symbols[differs[: symbols.size]] = others
        return True


class _Model:
    """A table by symbol and by slot, and the coding of one chunk with it."""

    def __init__(self, table: tables.Table) -> None:
        self.table = table
        # The escape's share is 1 if there is none, only so that nothing divides by zero.
        shares = [*table.shares, *[1] * (ESCAPE - len(table.shares)), max(table.escape_share, 1)]
        self.share = np.array(shares, np.int64)
        self.start = np.array([sum(table.shares[:entry]) for entry in range(ESCAPE + 1)], np.int64)
        self.entry = np.full(256, ESCAPE)
        self.entry[list(table.symbols)] = np.arange(len(table.symbols))
        self.symbol = np.array([*table.symbols, *[0] * (ESCAPE + 1 - len(table.symbols))], np.uint8)
        shared = [*enumerate(table.shares), (ESCAPE, table.escape_share)]
        self.slot_entry = np.array([entry for entry, share in shared for _ in range(share)])

    def encode(self, symbols: Bytes) -> tuple[Bytes, Numbers, Bytes]:
        """Coded bytes, the states in the end, and the escaped symbols."""
        width = lanes(symbols.size)
        states = np.full(width, LEAST_STATE, np.int64)
        coded, escaped = [], []
        for first in reversed(range(0, symbols.size, width)):
            step = symbols[first : first + width]
            order = _order(step.size)
            state, entry = states[: step.size], self.entry[step]
            share = self.share[entry]
            full = state >= share << 10
            coded.append((state & 255)[order][full[order]].astype(np.uint8))
            escaped.append(step[order][entry[order] == ESCAPE])
            state = np.where(full, state >> 8, state)
            states[: step.size] = (state // share << SLOT_BITS) + self.start[entry] + state % share
        return np.concatenate(coded), states, np.concatenate(escaped)

    def decode(self, coded: Bytes, states: Numbers, escapes: Bytes, symbols: Bytes) -> None:
        """The inverse, into ``symbols``."""
        left, left_escapes = coded.size, escapes.size
        for first in range(0, symbols.size, states.size):
            step = symbols[first : first + states.size]
            order = _order(step.size)
            slot, state = states[: step.size] % tables.SLOTS, states[: step.size] >> SLOT_BITS
            entry = self.slot_entry[slot]
            step[:] = self.symbol[entry]
            escaped = order[entry[order] == ESCAPE]
            left_escapes -= escaped.size
            state = self.share[entry] * state + slot - self.start[entry]
            empty = order[state[order] < LEAST_STATE]
            left -= empty.size
            if left < 0 or left_escapes < 0:
                raise CodedDataError("more was asked for than was coded")
            step[escaped] = escapes[left_escapes : left_escapes + escaped.size]
            state[empty] = (state[empty] << 8) + coded[left : left + empty.size]
            states[: step.size] = state
        if left or left_escapes or (states != LEAST_STATE).any():
            raise CodedDataError("states, bytes or escapes are left")


@cache
def _order(width: int) -> Numbers:
    """The states of a step in the order of their bytes: the last 64 first, each 64 upwards."""
    units = [np.arange(first, min(first + UNIT, width)) for first in range(0, width, UNIT)]
    return np.concatenate(units[::-1])
