"""The C rANS coder: hands arrays to the functions of rans_*.c, and shares the chunks of long streams out to threads."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.native.functions import rans_functions
from ciera_piper_core.exponents.native.library import ISA_LEVELS, chosen_isa
from ciera_piper_core.exponents.native.pool import Pool
from ciera_piper_core.exponents.rans.plan import Kind, Plan
from ciera_piper_core.exponents.rans.stream import CHUNK, PAD, StreamCoder, chunk_sizes, lanes, set_bits, too_wide
from ciera_piper_core.exponents.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ciera_piper_core.exponents.rans.plan import Counts
    from ciera_piper_core.exponents.rans.stream import Bytes, Directory

TABLE_BYTES = 31
"""Most bytes of a table."""

PLAN_BYTES = 3 + TABLE_BYTES
"""``struct rans_plan``: kind, usual symbol, bytes of the table, table."""

ROOM_BYTES = 4 * PAD
"""Beside a chunk's symbols, so much surely holds its states, and what may be written behind them."""

LEAST_SHARED_COPY = 2**20
"""Bytes that are worth a thread to copy them."""

NO_COST = 2**64 - 1

NO_PLAN = 255
"""Kind of a plan that is not made yet."""

WRONG, TOO_WIDE = -1, -2
"""Results of the stream functions; another that is negative means that memory ran out."""


class NativeCoder(StreamCoder):
    """:class:`~ciera_piper_core.exponents.coding.Coder` on the CPU, with the bytes of ``ReferenceCoder``.

    Args:
        isa: instruction level (``library.ISA_LEVELS``); None for ``CIERA_ISA``, else the best.
        threads: that share the chunks of one call, the calling one among them.

    Raises:
        ValueError: a level that this processor has not, or less than one thread.
        NativeUnavailableError: the C library was not built.
    """

    def __init__(self, isa: str | None = None, threads: int = 1) -> None:
        self.isa = chosen_isa(isa)
        self.threads = threads
        self._level = ISA_LEVELS.index(self.isa)
        super().__init__(NativePrimitives(self.isa, threads))

    def _encode(self, symbols: Bytes, symbol_bits: int, out: Bytes, key: Hashable, depth: int = 0) -> int:
        if self._shared_out(symbols):
            return super()._encode(symbols, symbol_bits, out, key, depth)
        before = None if key is None else _plan_bytes(self._kept(key))
        plan = None if before is None else ctypes.create_string_buffer(before, len(before))
        place = (_at(symbols), symbols.size, symbol_bits, _at(out))
        size: int = rans_functions()["encode_stream"](self._level, *place, plan, depth)
        if size == TOO_WIDE:
            raise too_wide(symbol_bits)
        if size < 0:
            raise MemoryError(f"no memory to code {symbols.size} symbols")
        if plan is not None and plan.raw != before and plan.raw[0] != NO_PLAN:
            self._keep(key, _plan_of(plan.raw))
        return size

    def _decode(self, coded: Bytes, symbol_bits: int, symbols: Bytes, depth: int = 0) -> None:
        if self._shared_out(symbols):
            super()._decode(coded, symbol_bits, symbols, depth)
            return
        place = (_at(coded), coded.size, symbol_bits, _at(symbols), symbols.size)
        failed = rans_functions()["decode_stream"](self._level, *place, depth)
        if failed == WRONG:
            raise CodedDataError(f"{coded.size} coded bytes are not what an encoder wrote for {symbols.size} symbols")
        if failed:
            raise MemoryError(f"no memory to decode {symbols.size} symbols")

    def _shared_out(self, symbols: Bytes) -> bool:
        """Whether threads share the work. Then the parts are put together here, else all is done in one call."""
        return self.threads > 1 and symbols.size > CHUNK


def _plan_bytes(plan: Plan | None) -> bytes:
    """A plan as C has it (rans_plan)."""
    if plan is None:
        return bytes([NO_PLAN]).ljust(PLAN_BYTES, b"\0")
    return (bytes([plan.kind, plan.usual, len(plan.table)]) + plan.table).ljust(PLAN_BYTES, b"\0")


def _plan_of(raw: bytes) -> Plan:
    return Plan(Kind(raw[0]), table=raw[3 : 3 + raw[2]], usual=raw[1])


class NativePrimitives:
    """:class:`~ciera_piper_core.exponents.rans.stream.Primitives` in C."""

    def __init__(self, isa: str, threads: int) -> None:
        self._level = ISA_LEVELS.index(isa)
        self._threads = threads
        self._pool = Pool(threads)
        self._workspace = Workspace()
        self._c = rans_functions()

    def count(self, symbols: Bytes, piece: int, stride: int) -> Counts:
        counts = np.zeros(256, np.uint64)
        self._c["count"](_at(symbols), symbols.size, piece, stride, counts.ctypes.data)
        return counts

    def build_table(self, counts: Counts, any_symbol: bool) -> bytes:
        table = np.empty(TABLE_BYTES, np.uint8)
        size = self._c["build_table"](counts.ctypes.data, any_symbol, _at(table))
        return table[:size].tobytes()

    def cost(self, counts: Counts, table: bytes) -> int | None:
        cost: int = self._c["cost"](counts.ctypes.data, table, len(table))
        return None if cost == NO_COST else cost

    def constant(self, symbols: Bytes) -> bool:
        return bool(self._c["constant"](_at(symbols), symbols.size))

    def pack5(self, symbols: Bytes, out: Bytes) -> int:
        seen: int = self._c["pack5"](_at(symbols), symbols.size, _at(out))
        return seen

    def unpack5(self, packed: Bytes, symbols: Bytes) -> int:
        unused: int = self._c["unpack5"](_at(packed), symbols.size, _at(symbols))
        return unused

    def encode_chunks(self, table: bytes, symbols: Bytes, out: Bytes, escapes: Bytes) -> tuple[int, Directory, int]:
        directory = np.empty((len(chunk_sizes(symbols.size)), 2), "<u4")
        runs = self._runs(symbols.size)
        if len(runs) == 1:
            size, escaped = self._encode_run(table, symbols, out, directory, escapes)
            return size, directory, escaped

        # Where a run's bytes go is known once those before it are coded: all but the first go elsewhere first.
        rooms = [run.stop - run.start + ROOM_BYTES * -(-(run.stop - run.start) // CHUNK) for run in runs[1:]]
        with self._workspace.borrow(sum(rooms)) as a, self._workspace.borrow(sum(rooms)) as b:
            ends = list(itertools.accumulate(rooms, initial=0))
            codes = [out, *(a.numpy()[begin:end] for begin, end in itertools.pairwise(ends))]
            lists = [escapes, *(b.numpy()[begin:end] for begin, end in itertools.pairwise(ends))]

            def work(part: tuple[slice, Bytes, Bytes]) -> tuple[int, int]:
                run, code, escaped = part
                chunks = directory[run.start // CHUNK : -(-run.stop // CHUNK)]
                return self._encode_run(table, symbols[run], code, chunks, escaped)

            found = self._pool.map(work, list(zip(runs, codes, lists, strict=True)))
            sizes, counts = [size for size, _ in found], [count for _, count in found]
            if min(sizes) < 0 or sum(sizes) > out.size:
                return -1, directory, 0
            self._gather(codes, sizes)
            self._gather(lists, counts)
        return sum(sizes), directory, sum(counts)

    def _gather(self, parts: list[Bytes], sizes: list[int]) -> None:
        """Copies the first ``sizes[i]`` bytes of each part behind those of the first part."""
        copies, at = [], sizes[0]
        for part, size in zip(parts[1:], sizes[1:], strict=True):
            cuts = [size * cut // self._threads for cut in range(self._threads + 1)]
            copies += [(parts[0][at + a : at + b], part[a:b]) for a, b in itertools.pairwise(cuts)]
            at += size
        if at - sizes[0] > LEAST_SHARED_COPY:
            self._pool.map(lambda copy: np.copyto(*copy), copies)
            return
        for to, source in copies:
            to[:] = source

    def _encode_run(
        self, table: bytes, symbols: Bytes, out: Bytes, directory: Directory, escapes: Bytes
    ) -> tuple[int, int]:
        escaped = ctypes.c_uint64()
        with self._workspace.borrow(self._c["scratch_bytes"]()) as scratch:
            size: int = self._c["encode"](
                self._level,
                table,
                len(table),
                _at(symbols),
                symbols.size,
                _at(out),
                out.size,
                directory.ctypes.data,
                _at(escapes),
                ctypes.addressof(escaped),
                scratch.data_ptr(),
            )
        return size, escaped.value

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
        entries = np.ascontiguousarray(directory, "<u4")
        sizes = entries.astype(np.int64)
        sizes[:, 0] += [2 * lanes(size) for size in chunk_sizes(out.size)]
        # Where each chunk's bytes and escapes begin, and where the last end.
        bounds = np.cumsum(np.vstack([np.array([[begin, PAD]]), sizes]), axis=0)

        def work(run: slice) -> bool:
            first, last = run.start // CHUNK, -(-run.stop // CHUNK)
            (coded, escape), (coded_end, escape_end) = bounds[first].tolist(), bounds[last].tolist()
            failed = self._c["decode"](
                self._level,
                table,
                len(table),
                symbol_bits,
                _at(stream) + coded,
                coded_end - coded,
                coded,
                entries.ctypes.data + 8 * first,
                _at(escapes) + escape,
                escape_end - escape,
                _at(out) + run.start,
                run.stop - run.start,
            )
            return not failed

        return all(self._pool.map(work, self._runs(out.size)))

    def split_sparse(self, symbols: Bytes, usual: int, bits: Bytes, others: Bytes) -> int:
        runs = self._runs(symbols.size)
        with self._workspace.borrow(symbols.size + PAD * len(runs)) as buffer:
            # All runs but the first need a place of their own, as above.
            places = [others, *(buffer.numpy()[run.start + PAD * i :] for i, run in enumerate(runs[1:], 1))]

            def work(part: tuple[slice, Bytes]) -> int:
                run, place = part
                source = (_at(symbols) + run.start, run.stop - run.start, usual, _at(bits) + run.start // 8)
                found: int = self._c["split_sparse"](self._level, *source, _at(place))
                return found

            counts = self._pool.map(work, list(zip(runs, places, strict=True)))
            self._gather(places, counts)
        return sum(counts)

    def merge_sparse(self, bits: Bytes, usual: int, others: Bytes, symbols: Bytes) -> bool:
        runs = self._runs(symbols.size)
        counts = [set_bits(bits[run.start // 8 : -(-run.stop // 8)]) for run in runs[:-1]]
        firsts = list(itertools.accumulate(counts, initial=0))
        if firsts[-1] > others.size:
            return False
        counts.append(others.size - firsts[-1])

        def work(part: tuple[slice, int, int]) -> bool:
            run, first, count = part
            place = (_at(bits) + run.start // 8, run.stop - run.start, usual, _at(others) + first, count)
            return not self._c["merge_sparse"](self._level, *place, _at(symbols) + run.start)

        return all(self._pool.map(work, list(zip(runs, firsts, counts, strict=True))))

    def _runs(self, symbols: int) -> list[slice]:
        """Symbols cut for the threads, each run whole chunks."""
        chunks = -(-symbols // CHUNK)
        each = -(-chunks // max(1, min(self._threads, chunks))) * CHUNK
        return [slice(first, min(first + each, symbols)) for first in range(0, symbols, each)]


def _at(array: Bytes) -> int:
    address: int = array.ctypes.data
    return address
