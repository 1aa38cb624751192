"""Coded streams of the rANS coder: how their parts lie in bytes, whichever primitives fill and read the parts."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.rans.plan import Counting, Kind, Plan, make_plan, still_fits
from ciera_piper_core.exponents.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Directory = npt.NDArray[np.uint32]

CHUNK = 2**18
MOST_DEPTH = 8
"""Streams inside streams; what lies deeper is raw or constant."""

PAD = 256
"""Bytes before and behind escapes and other symbols that primitives may touch."""

DIRECTORY_BYTES = 8
MOST_SYMBOLS = 2**35
"""The sizes of inner streams must fit four bytes."""

MOST_KEYS = 4096
"""Plans that are kept; the oldest goes."""


def lanes(symbols: int) -> int:
    """States of a chunk of so many symbols."""
    return 8 if symbols < 2**15 else 64 if symbols < 2**17 else 256


def chunk_sizes(symbols: int) -> list[int]:
    """Symbols of each chunk of a stream."""
    return [min(CHUNK, symbols - first) for first in range(0, symbols, CHUNK)]


def set_bits(array: Bytes) -> int:
    """How many bits of all bytes are set."""
    whole = array.size // 8 * 8
    words, rest = array[:whole].view(np.uint64), array[whole:]
    return int(np.bitwise_count(words).sum(dtype=np.int64)) + int(np.bitwise_count(rest).sum(dtype=np.int64))


class Primitives(Counting, Protocol):
    """What is computed over symbols; bit-identical in all implementations.

    Arrays are flat, contiguous uint8; what is written may reach ``PAD`` bytes behind what is used where said so.
    """

    def constant(self, symbols: Bytes) -> bool:
        """Whether all symbols (at least one) are the same."""

    def pack5(self, symbols: Bytes, out: Bytes) -> int:
        """Packs to 5 bits into the whole of ``out``; all symbols or-ed together."""

    def unpack5(self, packed: Bytes, symbols: Bytes) -> int:
        """The inverse; what the unused bits of the last byte hold."""

    def encode_chunks(self, table: bytes, symbols: Bytes, out: Bytes, escapes: Bytes) -> tuple[int, Directory, int]:
        """Codes symbols as chunks.

        Args:
            out: written at most; what is needed comes first.
            escapes: room for all symbols and ``PAD``.

        Returns:
            bytes of ``out`` that are used (-1: it is too small, or the table cannot code a symbol); the
            directory ``[chunks, 2]``; escaped symbols.
        """

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
        """The inverse: whether the chunks that begin at byte ``begin`` of the stream are what an encoder wrote.

        Args:
            directory: its sums fit the stream and the escapes.
            escapes: with ``PAD`` bytes on either side.
        """

    def split_sparse(self, symbols: Bytes, usual: int, bits: Bytes, others: Bytes) -> int:
        """Bits of the symbols that are not the usual one; those symbols (room for all and ``PAD``); how many."""

    def merge_sparse(self, bits: Bytes, usual: int, others: Bytes, symbols: Bytes) -> bool:
        """The inverse: whether the bits ask for exactly the others (which have ``PAD`` bytes behind them)."""


class StreamCoder:
    """:class:`~ciera_piper_core.exponents.coding.Coder` that codes streams with the primitives given.

    Several threads may use one object at the same time.
    """

    name = "rans"
    code = 1

    def __init__(self, primitives: Primitives) -> None:
        self._primitives = primitives
        self._plans: dict[Hashable, Plan] = {}
        self._lock = Lock()
        self._workspace = Workspace()

    def bound(self, symbols: int, symbol_bits: int) -> int:
        return 1 + _packed_bytes(symbols, symbol_bits) if symbols else 0

    def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: Hashable = None) -> int:
        _check_bits(symbol_bits)
        source, to = _array("symbols", symbols), _array("out", out)
        most = self.bound(source.size, symbol_bits)
        if source.size >= MOST_SYMBOLS:
            raise ValueError(f"{source.size} symbols; less than {MOST_SYMBOLS} can be coded at once")
        if to.size < most:
            raise ValueError(f"out has {to.size} bytes; {source.size} symbols may take {most} (bound)")
        return self._encode(source, symbol_bits, to[:most], None if table_key is None else (table_key, symbol_bits))

    def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
        _check_bits(symbol_bits)
        self._decode(_array("coded", coded), symbol_bits, _array("symbols", symbols))

    def _encode(self, symbols: Bytes, symbol_bits: int, out: Bytes, key: Hashable, depth: int = 0) -> int:
        """Encodes into ``out``, which has the bound's size."""
        if not symbols.size:
            return 0
        if self._primitives.constant(symbols):
            if symbols[0] >> symbol_bits:
                raise too_wide(symbol_bits)
            out[:2] = Kind.CONSTANT, symbols[0]
            return 2
        plan = Plan(Kind.RAW) if depth == MOST_DEPTH else self._plan(symbols, symbol_bits, key)
        # What is not smaller than raw is raw.
        size = self._encode_planned(symbols, symbol_bits, plan, out[:-1], depth)
        if not size and not plan.serves_any:
            plan = self._new_plan(symbols, symbol_bits, key, any_symbol=True)
            size = self._encode_planned(symbols, symbol_bits, plan, out[:-1], depth)
        return size or self._encode_raw(symbols, symbol_bits, out)

    def _plan(self, symbols: Bytes, symbol_bits: int, key: Hashable) -> Plan:
        kept = None if key is None else self._kept(key)
        if kept is not None and still_fits(self._primitives, kept, symbols, symbol_bits):
            return kept
        return self._new_plan(symbols, symbol_bits, key, any_symbol=False)

    def _new_plan(self, symbols: Bytes, symbol_bits: int, key: Hashable, any_symbol: bool) -> Plan:
        plan = make_plan(self._primitives, symbols, symbol_bits, any_symbol)
        if key is not None:
            self._keep(key, plan)
        return plan

    def _kept(self, key: Hashable) -> Plan | None:
        """The plan of the last stream with this key."""
        with self._lock:
            return self._plans.get(key)

    def _keep(self, key: Hashable, plan: Plan) -> None:
        with self._lock:
            self._plans.pop(key, None)
            self._plans[key] = plan
            if len(self._plans) > MOST_KEYS:
                self._plans.pop(next(iter(self._plans)))

    def _encode_planned(self, symbols: Bytes, symbol_bits: int, plan: Plan, out: Bytes, depth: int) -> int:
        """Bytes of a stream that the plan makes; 0 if it has none, or they do not fit ``out``."""
        if plan.widest >> symbol_bits:
            raise too_wide(symbol_bits)
        if plan.kind is Kind.RANS:
            return self._encode_rans(symbols, symbol_bits, plan, out, depth)
        if plan.kind is Kind.SPARSE:
            return self._encode_sparse(symbols, symbol_bits, plan, out, depth)
        return 0

    def _encode_raw(self, symbols: Bytes, symbol_bits: int, out: Bytes) -> int:
        out[0] = Kind.RAW
        if symbol_bits == 8:
            out[1:] = symbols
        elif self._primitives.pack5(symbols, out[1:]) >> symbol_bits:
            raise too_wide(symbol_bits)
        return out.size

    def _encode_rans(self, symbols: Bytes, symbol_bits: int, plan: Plan, out: Bytes, depth: int) -> int:
        """Bytes of a stream of kind RANS; 0 if it does not fit ``out``, or the table cannot code a symbol."""
        directory_at = 1 + len(plan.table)
        chunks_at = directory_at + DIRECTORY_BYTES * len(chunk_sizes(symbols.size))
        if chunks_at >= out.size:
            return 0
        with self._workspace.borrow(symbols.size + PAD) as buffer:
            escapes = buffer.numpy()
            size, directory, escaped = self._primitives.encode_chunks(plan.table, symbols, out[chunks_at:], escapes)
            if size < 0:
                return 0
            out[0] = Kind.RANS
            out[1:directory_at] = np.frombuffer(plan.table, np.uint8)
            out[directory_at:chunks_at] = directory.astype("<u4").reshape(-1).view(np.uint8)
            return self._append(escapes[:escaped], symbol_bits, out, chunks_at + size, depth)

    def _encode_sparse(self, symbols: Bytes, symbol_bits: int, plan: Plan, out: Bytes, depth: int) -> int:
        """Bytes of a stream of kind SPARSE; 0 if it does not fit ``out``."""
        bits_at = 6
        if bits_at >= out.size:
            return 0
        with (
            self._workspace.borrow(symbols.size + PAD) as others_buffer,
            self._workspace.borrow(-(-symbols.size // 8)) as bits_buffer,
        ):
            others, bits = others_buffer.numpy(), bits_buffer.numpy()
            count = self._primitives.split_sparse(symbols, plan.usual, bits, others)
            others_at = self._append(bits, 8, out, bits_at, depth)
            if not others_at:
                return 0
            out[:2] = Kind.SPARSE, plan.usual
            out[2:bits_at] = np.array([others_at - bits_at], "<u4").view(np.uint8)
            return self._append(others[:count], symbol_bits, out, others_at, depth)

    def _append(self, symbols: Bytes, symbol_bits: int, out: Bytes, at: int, depth: int) -> int:
        """Where an inner stream ends that begins at byte ``at`` of ``out``; 0 if it does not fit."""
        with self._workspace.borrow(self.bound(symbols.size, symbol_bits)) as buffer:
            inner = buffer.numpy()
            end = at + self._encode(symbols, symbol_bits, inner, None, depth + 1)
            if end > out.size:
                return 0
            out[at:end] = inner[: end - at]
            return end

    def _decode(self, coded: Bytes, symbol_bits: int, symbols: Bytes, depth: int = 0) -> None:
        if not symbols.size:
            if coded.size:
                raise CodedDataError(f"{coded.size} coded bytes, where there are no symbols")
            return
        if coded.size < 2 or coded[0] > max(Kind):
            raise CodedDataError(f"{symbols.size} coded symbols begin with {coded[:2].tolist()}, which nothing does")
        kind = Kind(int(coded[0]))
        if kind is Kind.RAW:
            self._decode_raw(coded, symbol_bits, symbols)
        elif kind is Kind.CONSTANT:
            if coded.size != 2 or coded[1] >> symbol_bits:
                raise CodedDataError(f"a constant of {coded.size} bytes, value {coded[1]}")
            symbols[:] = coded[1]
        elif depth >= MOST_DEPTH:
            raise CodedDataError(f"coded streams lie in each other more than {MOST_DEPTH} deep")
        elif kind is Kind.RANS:
            self._decode_rans(coded, symbol_bits, symbols, depth)
        else:
            self._decode_sparse(coded, symbol_bits, symbols, depth)

    def _decode_raw(self, coded: Bytes, symbol_bits: int, symbols: Bytes) -> None:
        if coded.size != self.bound(symbols.size, symbol_bits):
            raise CodedDataError(f"{coded.size} coded bytes for {symbols.size} raw symbols of {symbol_bits} bits")
        if symbol_bits == 8:
            symbols[:] = coded[1:]
        elif self._primitives.unpack5(coded[1:], symbols):
            raise CodedDataError("unused bits of raw symbols are set")

    def _decode_rans(self, coded: Bytes, symbol_bits: int, symbols: Bytes, depth: int) -> None:
        sizes = chunk_sizes(symbols.size)
        directory_at = 2 + 2 * int(coded[1])
        chunks_at = directory_at + DIRECTORY_BYTES * len(sizes)
        if chunks_at > coded.size:
            raise CodedDataError("a directory of chunks is cut short")
        table = coded[1:directory_at].tobytes()
        directory = np.frombuffer(coded[directory_at:chunks_at].tobytes(), "<u4").reshape(-1, 2).astype(np.uint32)
        chunk_bytes, escaped = (int(total) for total in directory.sum(axis=0, dtype=np.uint64))
        inner_at = chunks_at + chunk_bytes + sum(2 * lanes(size) for size in sizes)
        if inner_at > coded.size or escaped > symbols.size:
            raise CodedDataError("a directory of chunks has more in it than was coded")
        with self._workspace.borrow(escaped + 2 * PAD) as buffer:
            escapes = buffer.numpy()
            self._decode(coded[inner_at:], symbol_bits, escapes[PAD : PAD + escaped], depth + 1)
            stream = coded[:inner_at]
            if not self._primitives.decode_chunks(table, symbol_bits, stream, chunks_at, directory, escapes, symbols):
                raise CodedDataError("coded symbols are not what an encoder wrote")

    def _decode_sparse(self, coded: Bytes, symbol_bits: int, symbols: Bytes, depth: int) -> None:
        bits_at = 6
        if coded.size < bits_at or coded[1] >> symbol_bits:
            raise CodedDataError("sparse symbols are cut short, or of too many bits")
        others_at = bits_at + int(coded[2:bits_at].copy().view("<u4")[0])
        if others_at > coded.size:
            raise CodedDataError("sparse symbols are cut short")
        with self._workspace.borrow(-(-symbols.size // 8)) as bits_buffer:
            bits = bits_buffer.numpy()
            self._decode(coded[bits_at:others_at], 8, bits, depth + 1)
            count = set_bits(bits)
            if count > symbols.size:
                raise CodedDataError("sparse symbols have unused bits set")
            with self._workspace.borrow(count + PAD) as others_buffer:
                others = others_buffer.numpy()
                self._decode(coded[others_at:], symbol_bits, others[:count], depth + 1)
                if not self._primitives.merge_sparse(bits, int(coded[1]), others[:count], symbols):
                    raise CodedDataError("sparse symbols have unused bits set")


def _packed_bytes(symbols: int, symbol_bits: int) -> int:
    return (symbols * symbol_bits + 7) // 8


def _check_bits(symbol_bits: int) -> None:
    if symbol_bits not in (5, 8):
        raise ValueError(f"symbols of {symbol_bits} bits; 8 and 5 can be coded")


def too_wide(symbol_bits: int) -> ValueError:
    """The error of an encoder that was given symbols of more bits."""
    return ValueError(f"symbols have more than {symbol_bits} bits")


def _array(name: str, tensor: torch.Tensor) -> Bytes:
    """The same memory as a numpy array."""
    if tensor.dtype is not torch.uint8 or not tensor.is_cpu or not tensor.is_contiguous():
        is_now = f"{tensor.dtype} on {tensor.device}"
        raise ValueError(
            f"{name} is {is_now}, contiguous: {tensor.is_contiguous()}; it must be uint8, on cpu, contiguous"
        )
    array: Bytes = tensor.detach().view(-1).numpy()
    return array
