"""The C kernels behind the protocol of kernels.py: checks tensors, cuts work into runs of blocks for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.native.functions import planes_functions
from ciera_piper_core.exponents.native.library import ISA_LEVELS, chosen_isa
from ciera_piper_core.exponents.native.pool import Pool

if TYPE_CHECKING:
    from ciera_piper_core.exponents.layout import FloatLayout

RUN_MULTIPLE = 1024
"""Values: every run but the last is a multiple, so that it holds whole blocks and whole cache lines of every plane."""

LEAST_RUN_BYTES = 512 * 2**10
"""Of values. A thread takes some ten microseconds to start on a run; these bytes take about five times as long."""

STREAM_BYTES = 8 * 2**20
"""Outputs of so many bytes go past the caches: there they would push out what is read, and a store that misses first
reads its line, which costs a third of the memory's bandwidth."""

MODULUS = 2**64


class _Run(NamedTuple):
    """Values ``first`` to ``first + values`` of a segment; where they begin in values and planes, in bytes."""

    first: int
    values: int
    in_values: int
    in_exponents: int
    in_second: int


class NativeKernels:
    """:class:`~ciera_piper_core.exponents.kernels.Kernels` on the CPU.

    Several threads may use one object at the same time. Every method raises ValueError if a tensor is
    not on the CPU, not contiguous, or of another type or size than the protocol says; nothing was
    written then.

    Args:
        isa: instruction level (``library.ISA_LEVELS``); None for ``CIERA_ISA``, else the best.
        threads: that share the work of one call, the calling one among them. Small inputs stay on the
            calling thread.

    Raises:
        ValueError: a level that this processor has not, or less than one thread.
        NativeUnavailableError: the C library was not built.
    """

    name = "native"

    def __init__(self, isa: str | None = None, threads: int = 1) -> None:
        self.isa = chosen_isa(isa)
        self.threads = threads
        self._level = ISA_LEVELS.index(self.isa)
        self._pool = Pool(threads)

    def split(self, values: torch.Tensor, layout: FloatLayout, exponents: torch.Tensor, rest: torch.Tensor) -> None:
        n = _check_values(values, layout)
        source, to = values.data_ptr(), _plane("exponents", exponents, layout.exponent_bytes(n))
        first, second = _rest(rest, layout, n)
        stream = n * layout.value_bytes >= STREAM_BYTES

        def work(r: _Run) -> None:
            planes = (to + r.in_exponents, first + r.first, second + r.in_second)
            self._call("split", layout, source + r.in_values, r.values, *planes, stream)

        self._pool.map(work, self._runs(n, layout))

    def merge(self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, values: torch.Tensor) -> None:
        n = _check_values(values, layout)
        source, to = _plane("exponents", exponents, layout.exponent_bytes(n)), values.data_ptr()
        first, second = _rest(rest, layout, n)
        stream = n * layout.value_bytes >= STREAM_BYTES

        def work(r: _Run) -> None:
            planes = (source + r.in_exponents, first + r.first, second + r.in_second)
            self._call("merge", layout, *planes, r.values, to + r.in_values, stream)

        self._pool.map(work, self._runs(n, layout))

    def merge_checked(
        self, exponents: torch.Tensor, rest: torch.Tensor, layout: FloatLayout, block: int, values: torch.Tensor
    ) -> int:
        n = _check_values(values, layout, block)
        source, to = _plane("exponents", exponents, layout.exponent_bytes(n)), values.data_ptr()
        first, second = _rest(rest, layout, n)
        stream = n * layout.value_bytes >= STREAM_BYTES

        def work(r: _Run) -> int:
            planes = (source + r.in_exponents, first + r.first, second + r.in_second)
            place = (r.values, block, r.first // block)
            return self._call("merge_checked", layout, *planes, *place, to + r.in_values, stream)

        return sum(self._pool.map(work, self._runs(n, layout))) % MODULUS

    def hash_blocks(self, values: torch.Tensor, layout: FloatLayout, block: int, hashes: torch.Tensor) -> None:
        n = _check_values(values, layout, block)
        source, to = values.data_ptr(), _hashes("hashes", hashes, n, block)

        def work(r: _Run) -> None:
            self._call("hash", layout, source + r.in_values, r.values, block, to + r.first // block * 16)

        self._pool.map(work, self._runs(n, layout))

    def scan_hashed(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        old: torch.Tensor,
        new: torch.Tensor,
        rest: torch.Tensor,
        changed: torch.Tensor,
    ) -> int:
        n = _check_values(values, layout, block)
        source, before, after = values.data_ptr(), _hashes("old", old, n, block), _hashes("new", new, n, block)
        first, second = _rest(rest, layout, n)
        flags = _plane("changed", changed, _blocks(n, block))
        stream = layout.rest_bytes(n) >= STREAM_BYTES

        def work(r: _Run) -> int:
            b = r.first // block
            outputs = (after + b * 16, first + r.first, second + r.in_second, flags + b)
            place = (source + r.in_values, r.values, block, b)
            return self._call("scan_hashed", layout, *place, before + b * 16, *outputs, stream)

        return sum(self._pool.map(work, self._runs(n, layout))) % MODULUS

    def scan_exact(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        previous: torch.Tensor,
        rest: torch.Tensor,
        changed: torch.Tensor,
    ) -> int:
        n = _check_values(values, layout, block)
        source, before = values.data_ptr(), _plane("previous", previous, layout.exponent_bytes(n))
        first, second = _rest(rest, layout, n)
        flags = _plane("changed", changed, _blocks(n, block))
        stream = layout.rest_bytes(n) >= STREAM_BYTES

        def work(r: _Run) -> int:
            b = r.first // block
            outputs = (first + r.first, second + r.in_second, flags + b)
            place = (source + r.in_values, r.values, block, b)
            return self._call("scan_exact", layout, *place, before + r.in_exponents, *outputs, stream)

        return sum(self._pool.map(work, self._runs(n, layout))) % MODULUS

    def collect(
        self,
        values: torch.Tensor,
        layout: FloatLayout,
        block: int,
        changed: torch.Tensor,
        previous: torch.Tensor | None,
        symbols: torch.Tensor,
    ) -> int:
        n = _check_values(values, layout, block)
        source, flags = values.data_ptr(), _plane("changed", changed, _blocks(n, block))
        before = None if previous is None else _plane("previous", previous, layout.exponent_bytes(n))
        to = _plane("symbols", symbols, _changed_values(changed, n, n, block), at_least=True)

        def work(r: _Run) -> int:
            base = None if before is None else before + r.in_exponents
            out = to + _changed_values(changed, r.first, n, block)
            place = (source + r.in_values, r.values, block, flags + r.first // block)
            return self._call("collect", layout, *place, base, out)

        return sum(self._pool.map(work, self._runs(n, layout)))

    def apply(
        self,
        symbols: torch.Tensor,
        layout: FloatLayout,
        values: int,
        block: int,
        changed: torch.Tensor,
        delta: bool,
        exponents: torch.Tensor,
    ) -> None:
        _check_block(block)
        flags = _plane("changed", changed, _blocks(values, block))
        to = _plane("exponents", exponents, layout.exponent_bytes(values))
        source = _plane("symbols", symbols, _changed_values(changed, values, values, block), at_least=True)

        def work(r: _Run) -> int:
            coded = source + _changed_values(changed, r.first, values, block)
            place = (r.values, block, flags + r.first // block)
            return self._call("apply", layout, coded, *place, delta, to + r.in_exponents)

        self._pool.map(work, self._runs(values, layout))

    def _call(self, name: str, layout: FloatLayout, *arguments: int | None) -> int:
        """A function of planes.h at this level; meaningless where it returns nothing."""
        result: int = planes_functions()[name](self._level, layout.code, *arguments)
        return result

    def _runs(self, n: int, layout: FloatLayout) -> list[_Run]:
        """n values cut for the threads; one run if they are few, none for no values."""
        parts = min(self.threads, n * layout.value_bytes // LEAST_RUN_BYTES)
        if parts <= 1:
            return [_Run(0, n, 0, 0, 0)] if n else []
        each = -(-n // (parts * RUN_MULTIPLE)) * RUN_MULTIPLE
        return [
            _Run(
                first=first,
                values=min(each, n - first),
                in_values=first * layout.value_bytes,
                in_exponents=layout.exponent_bytes(first),
                in_second=layout.rest_parts(first)[1],
            )
            for first in range(0, n, each)
        ]


def _blocks(n: int, block: int) -> int:
    return -(-n // block)


def _changed_values(changed: torch.Tensor, end: int, n: int, block: int) -> int:
    """How many of the first ``end`` of n values lie in changed blocks; ``end`` is n or a multiple of the block."""
    if end == 0:
        return 0
    blocks = _blocks(end, block)
    flags = changed.view(-1)[:blocks]
    missing = blocks * block - min(end, n)
    return int(flags.count_nonzero()) * block - (missing if missing and int(flags[-1]) else 0)


def _check_block(block: int) -> None:
    if block not in BLOCKS:
        raise ValueError(f"blocks of {block} values; known: {', '.join(map(str, BLOCKS))}")


def _check_values(values: torch.Tensor, layout: FloatLayout, block: int | None = None) -> int:
    """How many values there are."""
    if block is not None:
        _check_block(block)
    n = values.numel()
    _pointer("values", values, layout.bits_dtype, n)
    return n


def _plane(name: str, tensor: torch.Tensor, size: int, at_least: bool = False) -> int:
    return _pointer(name, tensor, torch.uint8, size, at_least)


def _rest(rest: torch.Tensor, layout: FloatLayout, n: int) -> tuple[int, int]:
    """Where its two parts begin."""
    pointer = _plane("rest", rest, layout.rest_bytes(n))
    return pointer, pointer + layout.rest_parts(n)[0]


def _hashes(name: str, tensor: torch.Tensor, n: int, block: int) -> int:
    return _pointer(name, tensor, torch.int64, 2 * _blocks(n, block))


def _pointer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: int, at_least: bool = False) -> int:
    """The address of a tensor that C may use: so many elements of the type, in one piece, in main memory."""
    if tensor.dtype is not dtype:
        raise ValueError(f"{name} is of {tensor.dtype}; {dtype} is expected")
    if not tensor.is_cpu:
        raise ValueError(f"{name} is on {tensor.device}; native kernels work on the CPU")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous; pass .contiguous()")
    if tensor.numel() < size if at_least else tensor.numel() != size:
        raise ValueError(f"{name} has {tensor.numel()} elements; {size}{' at least' if at_least else ''} are expected")
    return tensor.data_ptr()
