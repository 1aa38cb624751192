"""What each stage of the codec does in an iteration, and how its outcome is checked.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ciera_piper_core.exponents.container import compress, decompress
from ciera_piper_core.exponents.kernels import DEFAULT_BLOCK
from suites.codec_oracle import block_hashes, checksum_of, planes_of, symbols_of
from suites.weights import entropy_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.layout import FloatLayout
    from suites.codec_peers import Peer

POISON = 0xA5
"""Outputs hold it before the first call and before the check's."""

SAMPLED_BLOCKS = 512
"""Blocks whose hashes are computed once more, one by one."""

EVERY = 7
"""One block in so many counts as changed where blocks are compared."""


class Job(ABC):
    """A stage on one machine's data, which lies in several places so that each call finds it in memory.

    Attributes:
        sources: in each place, the original bytes that a plain copy would move.
    """

    sources: Sequence[torch.Tensor]

    def prepare(self, place: int) -> None:
        """Outside the timed window."""

    @abstractmethod
    def run(self, place: int) -> None:
        """The stage, once, on the data of that place."""

    @abstractmethod
    def wrong(self, place: int) -> int:
        """Wrong elements in what the last call there left."""

    @abstractmethod
    def poison(self, place: int) -> None:
        """Leave nothing in the outputs there that a call put into them."""

    def observed(self) -> dict[str, list[float]]:
        """Samples of the metrics that do not follow from the duration."""
        return {}


def copies(tensor: torch.Tensor, places: int) -> list[torch.Tensor]:
    """The tensor, in so many places."""
    return [tensor.clone() for _ in range(places)]


def poisoned(count: int, places: int, like: torch.Tensor, dtype: torch.dtype = torch.uint8) -> list[torch.Tensor]:
    """Outputs of ``count`` elements in so many places; writing maps their pages."""
    outputs = [torch.empty(count, dtype=dtype, device=like.device) for _ in range(places)]
    for output in outputs:
        output.view(torch.uint8).fill_(POISON)
    return outputs


def count_differing(actual: torch.Tensor, expected: torch.Tensor | np.ndarray[Any, Any]) -> int:
    """Elements that differ, as integers; all of them if the lengths do."""
    if isinstance(expected, np.ndarray):
        expected = torch.from_numpy(expected)
    if actual.shape != expected.shape:
        return max(1, expected.numel())
    return int((actual.cpu() != expected.cpu()).sum())


class KernelJob(Job):
    """One of the kernels: split, merge, hash, or split, hash and compare in one pass."""

    def __init__(self, backend: Backend, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        self._kernels, self._layout, self._values = backend.kernels, layout, values
        self._count = values.numel()
        self._blocks = -(-self._count // DEFAULT_BLOCK)

    def _sampled(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Numbers of some blocks, the first and the last among them."""
        chosen = np.random.default_rng(self._blocks).integers(0, self._blocks, SAMPLED_BLOCKS)
        return np.unique(np.concatenate([[0, self._blocks - 1], chosen])).astype(np.int64)

    def _wrong_hashes(self, hashes: torch.Tensor) -> int:
        """Sampled blocks whose hash is not the definition's, and others that were not written."""
        chosen = self._sampled()
        right = block_hashes(symbols_of(self._values.cpu(), self._layout), DEFAULT_BLOCK, chosen)
        found = hashes.cpu()
        blank = torch.full((2,), POISON, dtype=torch.uint8).repeat(4).view(torch.int64)
        unwritten = int((found == blank).all(dim=1).sum())
        return count_differing(found[torch.from_numpy(chosen)], right) + unwritten


class SplitJob(KernelJob):
    """Values to planes."""

    def __init__(self, backend: Backend, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        super().__init__(backend, layout, values, places)
        self.sources = copies(values, places)
        self._exponents = poisoned(layout.exponent_bytes(self._count), places, values)
        self._rest = poisoned(layout.rest_bytes(self._count), places, values)

    def run(self, place: int) -> None:
        self._kernels.split(self.sources[place], self._layout, self._exponents[place], self._rest[place])

    def wrong(self, place: int) -> int:
        exponents, rest = planes_of(self._values.cpu(), self._layout)
        changed = count_differing(self.sources[place], self._values)
        return changed + count_differing(self._exponents[place], exponents) + count_differing(self._rest[place], rest)

    def poison(self, place: int) -> None:
        self._exponents[place].fill_(POISON)
        self._rest[place].fill_(POISON)


class MergeJob(KernelJob):
    """Planes to values. What a plain copy would move are the values: it moves those that came out."""

    def __init__(self, backend: Backend, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        super().__init__(backend, layout, values, places)
        exponents, rest = (torch.from_numpy(plane).to(values.device) for plane in planes_of(values.cpu(), layout))
        self._exponents, self._rest = copies(exponents, places), copies(rest, places)
        self.sources = poisoned(self._count, places, values, values.dtype)

    def run(self, place: int) -> None:
        self._kernels.merge(self._exponents[place], self._rest[place], self._layout, self.sources[place])

    def wrong(self, place: int) -> int:
        return count_differing(self.sources[place], self._values)

    def poison(self, place: int) -> None:
        self.sources[place].view(torch.uint8).fill_(POISON)


class HashJob(KernelJob):
    """Block hashes straight from values."""

    def __init__(self, backend: Backend, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        super().__init__(backend, layout, values, places)
        self.sources = copies(values, places)
        self._hashes = [
            hashes.view(self._blocks, 2) for hashes in poisoned(2 * self._blocks, places, values, torch.int64)
        ]

    def run(self, place: int) -> None:
        self._kernels.hash_blocks(self.sources[place], self._layout, DEFAULT_BLOCK, self._hashes[place])

    def wrong(self, place: int) -> int:
        return self._wrong_hashes(self._hashes[place])

    def poison(self, place: int) -> None:
        self._hashes[place].view(torch.uint8).fill_(POISON)


class ScanJob(HashJob):
    """Split, hash and compare: one block in ``EVERY`` differs from what it is compared with."""

    def __init__(self, backend: Backend, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        super().__init__(backend, layout, values, places)
        old = torch.empty_like(self._hashes[0])
        self._kernels.hash_blocks(values, layout, DEFAULT_BLOCK, old)
        # One bit, in either half of the hash.
        old[::EVERY, 0] ^= 1
        old[:: 2 * EVERY, 0] ^= 1
        old[:: 2 * EVERY, 1] ^= 1 << 62
        self._old = copies(old, places)
        self._rest = poisoned(layout.rest_bytes(self._count), places, values)
        self._changed = poisoned(self._blocks, places, values)
        self._checksum = -1

    def run(self, place: int) -> None:
        self._checksum = self._kernels.scan_hashed(
            self.sources[place],
            self._layout,
            DEFAULT_BLOCK,
            self._old[place],
            self._hashes[place],
            self._rest[place],
            self._changed[place],
        )

    def wrong(self, place: int) -> int:
        values = self._values.cpu()
        changed = torch.zeros(self._blocks, dtype=torch.uint8)
        changed[::EVERY] = 1
        return (
            super().wrong(place)
            + count_differing(self._rest[place], planes_of(values, self._layout)[1])
            + count_differing(self._changed[place], changed)
            + (self._checksum != checksum_of(values, self._layout, DEFAULT_BLOCK))
        )

    def poison(self, place: int) -> None:
        super().poison(place)
        self._rest[place].fill_(POISON)
        self._changed[place].fill_(POISON)
        self._checksum = -1


class CoderJob(Job):
    """The entropy coder on symbols: unpacked exponents, or differences of them."""

    def __init__(self, backend: Backend, layout: FloatLayout, symbols: torch.Tensor, places: int) -> None:
        self._coder, self._bits = backend.coder, layout.exponent_bits
        self._symbols = symbols
        self._plane_bytes = layout.exponent_bytes(symbols.numel())
        self._room = self._coder.bound(symbols.numel(), self._bits)

    def _encoded(self) -> torch.Tensor:
        """The symbols, coded."""
        room = torch.empty(self._room, dtype=torch.uint8, device=self._symbols.device)
        return room[: self._coder.encode(self._symbols, self._bits, room)].clone()


class EncodeJob(CoderJob):
    """Symbols to coded bytes, with the frequency table of the calls before."""

    def __init__(self, backend: Backend, layout: FloatLayout, symbols: torch.Tensor, places: int) -> None:
        super().__init__(backend, layout, symbols, places)
        self._inputs = copies(symbols, places)
        self.sources = [part[: self._plane_bytes] for part in self._inputs]
        self._coded = poisoned(self._room, places, symbols)
        self._sizes = [0] * places
        self._entropy = entropy_bytes(symbols.cpu())

    def run(self, place: int) -> None:
        self._sizes[place] = self._coder.encode(self._inputs[place], self._bits, self._coded[place], "codec suite")

    def wrong(self, place: int) -> int:
        decoded = torch.full_like(self._symbols, POISON)
        try:
            self._coder.decode(self._coded[place][: self._sizes[place]], self._bits, decoded)
        except ValueError:
            return self._symbols.numel()
        return count_differing(decoded, self._symbols) + count_differing(self._inputs[place], self._symbols)

    def poison(self, place: int) -> None:
        self._coded[place].fill_(POISON)
        self._sizes[place] = 0

    def observed(self) -> dict[str, list[float]]:
        return observed_sizes([float(size) for size in self._sizes if size], self._plane_bytes, self._entropy)


class DecodeJob(CoderJob):
    """Coded bytes to symbols. A plain copy would move the symbols: it moves those that came out."""

    def __init__(self, backend: Backend, layout: FloatLayout, symbols: torch.Tensor, places: int) -> None:
        super().__init__(backend, layout, symbols, places)
        self._coded = copies(self._encoded(), places)
        self._outputs = poisoned(symbols.numel(), places, symbols)
        self.sources = [part[: self._plane_bytes] for part in self._outputs]

    def run(self, place: int) -> None:
        self._coder.decode(self._coded[place], self._bits, self._outputs[place])

    def wrong(self, place: int) -> int:
        return count_differing(self._outputs[place], self._symbols)

    def poison(self, place: int) -> None:
        self._outputs[place].fill_(POISON)


class OurPeer:
    """Our own whole-tensor compressor, seen as one of the peers."""

    keeps_input = True

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def compress(self, values: torch.Tensor) -> torch.Tensor:
        return compress(values, backend=self._backend)

    def decompress(self, coded: torch.Tensor) -> torch.Tensor:
        return decompress(coded, backend=self._backend)


class TensorJob(Job):
    """Whole tensors, cold, by ours or by a peer; both make their own output."""

    def __init__(self, peer: Peer, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        self._peer, self._layout = peer, layout
        self._values = values.view(layout.dtype)
        self.sources = copies(self._values, places)

    def _input(self, place: int) -> torch.Tensor:
        """What to compress: a copy, for a peer that would leave its input changed."""
        return self.sources[place] if self._peer.keeps_input else self.sources[place].clone()


class CompressJob(TensorJob):
    """A tensor to coded bytes."""

    def __init__(self, peer: Peer, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        super().__init__(peer, layout, values, places)
        self._next: torch.Tensor | None = None
        self._coded: Any = None
        exponents = torch.from_numpy(symbols_of(values.cpu(), layout))
        self._least = entropy_bytes(exponents) + layout.rest_bytes(values.numel())
        self._sizes: list[float] = []

    def prepare(self, place: int) -> None:
        self._next = None
        self._next = self._input(place)

    def run(self, place: int) -> None:
        assert self._next is not None
        self._coded = self._peer.compress(self._next)

    def wrong(self, place: int) -> int:
        if self._coded is None:
            return self._values.numel()
        self._sizes.append(float(len(self._coded)))
        bits = self._values.view(self._layout.bits_dtype)
        left = count_differing(self.sources[place].view(bits.dtype), bits)
        return left + _differing_bits(self._peer.decompress(self._coded), bits)

    def poison(self, place: int) -> None:
        self._coded = None

    def observed(self) -> dict[str, list[float]]:
        return observed_sizes(self._sizes, self._values.nbytes, self._least)


class DecompressJob(TensorJob):
    """Coded bytes to a tensor."""

    def __init__(self, peer: Peer, layout: FloatLayout, values: torch.Tensor, places: int) -> None:
        super().__init__(peer, layout, values, places)
        coded = peer.compress(self._input(0))
        self._coded = [_copied(coded) for _ in range(places)]
        self._output: Any = None

    def run(self, place: int) -> None:
        self._output = None
        self._output = self._peer.decompress(self._coded[place])

    def wrong(self, place: int) -> int:
        if self._output is None:
            return self._values.numel()
        return _differing_bits(self._output, self._values.view(self._layout.bits_dtype))

    def poison(self, place: int) -> None:
        self._output = None


def observed_sizes(sizes: list[float], original_bytes: int, least_bytes: float) -> dict[str, list[float]]:
    """Coded sizes over the original's, and over what order-0 entropy asks for (left out where that is nothing)."""
    observed = {"coded_ratio": [size / original_bytes for size in sizes]}
    if least_bytes:
        observed["coded_over_entropy"] = [size / least_bytes for size in sizes]
    return observed


def _copied(coded: Any) -> Any:
    """Coded bytes, in another place."""
    return coded.clone() if isinstance(coded, torch.Tensor) else bytes(bytearray(coded))


def _differing_bits(output: Any, bits: torch.Tensor) -> int:
    """Values whose bits differ; ``output`` is a tensor, or anything that holds bytes."""
    if not isinstance(output, torch.Tensor):
        if len(output) != bits.nbytes:
            return max(1, bits.numel())
        output = torch.from_numpy(np.frombuffer(output, dtype=np.uint8).copy())
    return count_differing(output.contiguous().view(-1).view(bits.dtype), bits)
