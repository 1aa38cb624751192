"""The entropy coder of NVIDIA GPUs: ANS through nvCOMP, with forms of our own for what ANS is bad at.

Coded bytes begin with their kind:

======== ==== =================================================================================================
kind     byte then
======== ==== =================================================================================================
raw      0    the symbols, packed to ``symbol_bits`` each
constant 1    the one symbol
ans      2    7 zero bytes; the number of symbols, 8 bytes; what nvCOMP wrote
sparse   3    the common symbol; the width of gaps; 5 zero bytes; the number of others, 8 bytes; the gaps; the others
======== ==== =================================================================================================

``sparse`` is for differences, nearly all of which are 0: ANS as nvCOMP has it takes about half a bit a
symbol even then. Before each symbol that is not the common one lies a gap of g common ones, which is
written in numbers of 1 or 2 bytes, whichever is shorter in all: with ``most`` the largest such number,
``g // most`` times ``most``, then ``g % most``. A change costs about 2 bytes, 3 where they are rare.

nvCOMP leaves some of the bytes that it writes undefined, so coded bytes of equal symbols can differ:
never hash or compare them. It is proprietary, so it is an extra that nothing else needs.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.reference import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL = "pip install 'ciera-piper-bench[gpu]' (nvidia-nvcomp-cu13, or nvidia-nvcomp-cu12 with a torch of CUDA 12)"

RAW, CONSTANT, ANS, SPARSE = range(4)
HEADER = 16
"""Bytes before nvCOMP's own: what it needs stays aligned if the coded bytes are."""

TINY = 64
"""Symbols below which nothing is tried: no form would save what its launches cost."""

SAMPLE = 2**16
"""Symbols that are counted to guess which form is the smallest."""

SPARSE_SHARE = 1 / 32
"""Uncommon symbols, as a share, up to which ``sparse`` (2 bytes each) is smaller than ANS (half a bit each of all)."""

GAP_WIDTHS = (1, 2)
"""Bytes of a gap's numbers."""

CHECKED = 2**12
"""Symbols of the first round trip."""

WORTH = 0.98
"""ANS is tried where the entropy is below this share of the symbols' bits."""


class NvcompUnavailableError(RuntimeError):
    """nvCOMP is there, but does not work: no GPU, a driver that is too old, or a version of another interface."""


class NvcompCoder:
    """:class:`~ciera_piper_core.exponents.coding.Coder` of symbols on an NVIDIA GPU.

    Both methods wait for the GPU: sizes must be known on the host. ``table_key`` is ignored, since
    nvCOMP makes a table for each chunk. Any number of threads may use one coder: each has its own codec.

    Args:
        library: in the place of ``nvidia.nvcomp``, for tests.

    Raises:
        ImportError: nvCOMP is not installed; the message says how to.
        NvcompUnavailableError: no codec can be built here, or it does not give back what it coded. That nvCOMP can
            be imported says nothing.
    """

    name = "nvcomp"
    code = 2

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = library or importlib.import_module("nvidia.nvcomp")
        except ImportError as error:
            raise ImportError(f"the nvcomp coder needs nvCOMP ({error}): {INSTALL}") from error
        self._lanes = threading.local()
        try:
            self._library.Codec(algorithm="ANS", data_type="|u1")
        except RuntimeError as error:
            raise NvcompUnavailableError(f"nvCOMP can build no codec here: {error}") from error
        try:
            self._check()
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise NvcompUnavailableError(f"nvCOMP does not work here: {error}; known to: 6.0") from error

    def bound(self, symbols: int, symbol_bits: int) -> int:
        return _packed_bytes(symbols, symbol_bits) + 1 if symbols else 0

    def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: object = None) -> int:
        n = _flat(symbols, "symbols")
        _flat(out, "out")
        if out.numel() < self.bound(n, symbol_bits):
            raise ValueError(f"out has {out.numel()} bytes; {self.bound(n, symbol_bits)} may be needed")
        if not n:
            return 0
        coded = _handed_over(self._smallest(symbols, symbol_bits))
        out[: coded.numel()].copy_(coded)
        return coded.numel()

    def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
        n, size = _flat(symbols, "symbols"), _flat(coded, "coded")
        if not n or not size:
            if n or size:
                raise CodedDataError(f"{size} coded bytes for {n} symbols")
            return
        head = bytes(coded[:HEADER].tolist())
        if head[0] == RAW:
            _expect_size(size, 1 + _packed_bytes(n, symbol_bits))
            symbols.copy_(unpack(coded[1:], symbol_bits, n))
        elif head[0] == CONSTANT:
            _expect_size(size, 2)
            _expect_symbol(head[1], symbol_bits)
            symbols.fill_(head[1])
        elif head[0] not in (ANS, SPARSE):
            raise CodedDataError(f"coded bytes of unknown kind {head[0]}")
        elif size <= HEADER:
            raise CodedDataError(f"{size} coded bytes end within their header")
        else:
            number = int.from_bytes(head[8:], "little")
            if head[0] == ANS:
                decoded = _handed_over(self._from_ans(coded[HEADER:], number, n))
            else:
                decoded = _from_sparse(coded[HEADER:], head[1], head[2], number, n)
            _expect_symbol(int(decoded.max()), symbol_bits)
            symbols.copy_(decoded)

    def _check(self) -> None:
        """A round trip through nvCOMP, whose Python interface has no promise of staying as it is."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        places = torch.arange(CHECKED, device=device)
        symbols = (places * places % 251 // 32).to(torch.uint8)
        coded = self._to_ans(symbols)
        if not torch.equal(self._from_ans(coded[HEADER:], CHECKED, CHECKED), symbols):
            raise RuntimeError("it does not give back what it coded")

    def _smallest(self, symbols: torch.Tensor, symbol_bits: int) -> torch.Tensor:
        """Coded bytes, in the form that the symbols' statistics ask for; raw ones if that saves nothing."""
        n = symbols.numel()
        raw_size = 1 + _packed_bytes(n, symbol_bits)
        if n >= TINY:
            least, most = (int(symbol) for symbol in torch.aminmax(symbols))
            if least == most:
                return _bytes([CONSTANT, least], symbols)
            # An odd step, so that what repeats at a power of two is not always met at the same place.
            counts = torch.bincount(symbols[:: n // SAMPLE | 1], minlength=2**symbol_bits).tolist()
            counted, common = sum(counts), max(counts)
            if counted - common <= SPARSE_SHARE * counted:
                coded = _to_sparse(symbols, counts.index(common))
                if coded.numel() < raw_size:
                    return coded
            entropy = -sum(count / counted * math.log2(count / counted) for count in counts if count)
            if entropy < WORTH * symbol_bits:
                coded = self._to_ans(symbols)
                if coded.numel() < raw_size:
                    return coded
        return torch.cat([_bytes([RAW], symbols), pack(symbols, symbol_bits)])

    def _to_ans(self, symbols: torch.Tensor) -> torch.Tensor:
        with self._lane(symbols.device) as lane:
            array = self._library.as_array(_aligned(symbols), cuda_stream=lane.stream_handle)
            encoded = lane.codec.encode(array)
            lane.synchronize()
            body = torch.as_tensor(encoded, device=symbols.device).view(torch.uint8).reshape(-1)
            head = _bytes([ANS, *bytes(7), *symbols.numel().to_bytes(8, "little")], symbols)
            return torch.cat([head, body])

    def _from_ans(self, body: torch.Tensor, number: int, n: int) -> torch.Tensor:
        if number != n:
            raise CodedDataError(f"coded bytes of {number} symbols, where {n} are expected")
        with self._lane(body.device) as lane:
            try:
                array = self._library.as_array(_aligned(body), cuda_stream=lane.stream_handle)
                # Asked first: a size that is wrong must not become an allocation.
                inside = lane.codec.get_uncomp_buffer_size(array)
                if inside != n:
                    raise CodedDataError(f"nvCOMP's bytes hold {inside} symbols, where {n} are expected")
                found = lane.codec.decode(array, data_type="|u1")
                lane.synchronize()
                decoded = torch.as_tensor(found, device=body.device).view(torch.uint8).reshape(-1).clone()
            except RuntimeError as error:
                raise CodedDataError(f"nvCOMP cannot decode the coded bytes: {error}") from error
        if decoded.numel() != n:
            raise CodedDataError(f"nvCOMP decoded {decoded.numel()} symbols, where {n} are expected")
        return decoded

    @contextlib.contextmanager
    def _lane(self, device: torch.device) -> Iterator[_Lane]:
        """This thread's codec for a device, in its stream's turn, which has ended when this has."""
        lane: _Lane | None = getattr(self._lanes, str(device), None)
        if lane is None:
            lane = _Lane.made(self._library, device)
            setattr(self._lanes, str(device), lane)
        if lane.stream is None:
            yield lane
            return
        lane.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(lane.stream):
            yield lane
            # Also makes memory safe that one stream allocated and the other used.
            lane.stream.synchronize()


@dataclass(frozen=True)
class _Lane:
    """A codec and the CUDA stream that it works on; no stream off the GPU, where only a stand-in works."""

    codec: Any
    stream: torch.cuda.Stream | None

    @classmethod
    def made(cls, library: Any, device: torch.device) -> _Lane:
        """A stream of its own: 0, the handle of PyTorch's default stream, could mean "make one" to nvCOMP."""
        if device.type != "cuda":
            return cls(library.Codec(algorithm="ANS", data_type="|u1"), None)
        stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        codec = library.Codec(
            algorithm="ANS", data_type="|u1", device_id=stream.device_index, cuda_stream=stream.cuda_stream
        )
        return cls(codec, stream)

    @property
    def stream_handle(self) -> int:
        return 0 if self.stream is None else int(self.stream.cuda_stream)

    def synchronize(self) -> None:
        """Wait until sizes and bytes of what the codec made are there."""
        if self.stream is not None:
            self.stream.synchronize()


def _to_sparse(symbols: torch.Tensor, common: int) -> torch.Tensor:
    places = (symbols != common).nonzero().reshape(-1)
    before = torch.cat([places.new_full((1,), -1), places[:-1]])
    gaps = places - before - 1
    widths = torch.tensor(GAP_WIDTHS, device=symbols.device)
    sizes = (gaps // (256 ** widths.unsqueeze(1) - 1) + 1).sum(dim=1) * widths
    width = GAP_WIDTHS[int(sizes.argmin())]
    most = 256**width - 1
    ends = (gaps // most + 1).cumsum(0)
    # At least one symbol is another, else the kind would be constant.
    numbers = gaps.new_full((int(ends[-1]),), most)
    numbers[ends - 1] = gaps % most
    coded_gaps = numbers.view(torch.uint8).view(-1, 8)[:, :width].reshape(-1)
    head = _bytes([SPARSE, common, width, *bytes(5), *places.numel().to_bytes(8, "little")], symbols)
    return torch.cat([head, coded_gaps, symbols[places]])


def _from_sparse(body: torch.Tensor, common: int, width: int, number: int, n: int) -> torch.Tensor:
    if width not in GAP_WIDTHS or not 0 < number <= min(n, body.numel() // (1 + width)):
        raise CodedDataError(f"{number} uncommon symbols of {n} in {body.numel()} bytes, gaps of {width} bytes")
    gap_bytes, others = body[:-number], body[-number:]
    if gap_bytes.numel() % width:
        raise CodedDataError(f"{gap_bytes.numel()} bytes of gaps of {width}")
    scales = torch.tensor([256**place for place in range(width)], device=body.device)
    numbers = (gap_bytes.view(-1, width) * scales).sum(dim=1)
    ends = (numbers != 256**width - 1).nonzero().reshape(-1)
    if ends.numel() != number or int(ends[-1]) != numbers.numel() - 1:
        raise CodedDataError(f"{ends.numel()} gaps before {number} uncommon symbols, or bytes after the last gap")
    places = numbers.cumsum(0)[ends] + torch.arange(number, device=body.device)
    if int(places[-1]) >= n:
        raise CodedDataError(f"an uncommon symbol at place {int(places[-1])} of {n}")
    symbols = body.new_full((n,), common)
    symbols[places] = others
    return symbols


def _packed_bytes(symbols: int, symbol_bits: int) -> int:
    return (symbols * symbol_bits + 7) // 8


def _bytes(data: list[int], beside: torch.Tensor) -> torch.Tensor:
    return torch.tensor(data, dtype=torch.uint8, device=beside.device)


def _aligned(data: torch.Tensor) -> torch.Tensor:
    """The same bytes where nvCOMP may read them: it needs an alignment of up to 16 bytes."""
    return data if data.data_ptr() % HEADER == 0 else data.clone()


def _handed_over(data: torch.Tensor) -> torch.Tensor:
    """Memory of a lane's stream must not be used anew there while the caller's stream still reads it."""
    if data.is_cuda:
        data.record_stream(torch.cuda.current_stream(data.device))
    return data


def _flat(data: torch.Tensor, name: str) -> int:
    if data.dtype is not torch.uint8 or data.dim() != 1 or not data.is_contiguous():
        raise ValueError(f"{name}: flat contiguous uint8 is expected, not {data.dtype} of shape {tuple(data.shape)}")
    return data.numel()


def _expect_size(size: int, expected: int) -> None:
    if size != expected:
        raise CodedDataError(f"{size} coded bytes, where {expected} are expected")


def _expect_symbol(symbol: int, symbol_bits: int) -> None:
    if symbol >= 2**symbol_bits:
        raise CodedDataError(f"a symbol {symbol} of more than {symbol_bits} bits")
