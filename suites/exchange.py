"""The workload around one exchange between ranks: keyed data in, an exact oracle on what comes out.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from bench.suite import Workload
from ciera_piper_core.alltoall.traffic import payload_words, stream_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from bench.definitions import Work

ADDENDS = 8
"""At most so many ranks put a value other than zero into an element that is summed."""

POISON = 127
"""Output buffers hold it before the first call and the check's. No expected element is ever 127, see ``KeyedData``."""

CHUNK_ELEMENTS = 1 << 19
"""Data is made and compared in stretches of this length, so that large buffers need little beside them."""


@dataclass(frozen=True)
class KeyedData:
    """What each rank sends, element by element, as small integers that follow from the seed.

    They fit every dtype exactly. Moved data is in [-64, 63]. Data to be summed is in [-16, 15] on
    ``ADDENDS`` ranks and 0 on the others (another set of ranks every eight elements), so that every
    sum and partial sum is within [-128, 120]: exact, in any order, in int8 and bfloat16 too.

    Attributes:
        seed: of the run.
        ranks: in the group.
        summed: True for reductions.
    """

    seed: int
    ranks: int
    summed: bool = False

    def sent(self, rank: int, start: int, count: int) -> NDArray[np.int8]:
        """Elements ``start`` to ``start + count`` of what ``rank`` sends."""
        words = _words(start, count)
        values = payload_words(stream_key(self.seed, "payload"), rank, words)
        if self.summed:
            values[(words + np.uint64(rank)) % np.uint64(self.ranks) >= ADDENDS] = 0
        return self._elements(values, start, count)

    def total(self, start: int, count: int) -> NDArray[np.int8]:
        """The sum over ranks of what they send in elements ``start`` to ``start + count``."""
        words = _words(start, count)
        key, ranks = stream_key(self.seed, "payload"), np.uint64(self.ranks)
        result = np.zeros(count, dtype=np.int8)
        for addend in range(min(self.ranks, ADDENDS)):
            rank = (np.uint64(addend) + ranks - words % ranks) % ranks
            result += self._elements(payload_words(key, rank, words), start, count)
        return result

    def _elements(self, words: NDArray[np.uint64], start: int, count: int) -> NDArray[np.int8]:
        """Eight elements a word, as many of their high bits as the range of values takes."""
        values = words.astype("<u8", copy=False).view(np.int8)[start % 8 : start % 8 + count]
        return np.asarray(values >> np.int8(3 if self.summed else 1))


def _words(start: int, count: int) -> NDArray[np.uint64]:
    return np.arange(start // 8, (start + count + 7) // 8, dtype=np.uint64)


def _chunks(start: int, count: int) -> Iterator[tuple[int, int]]:
    """``(start, count)`` of consecutive stretches of at most ``CHUNK_ELEMENTS``."""
    for first in range(start, start + count, CHUNK_ELEMENTS):
        yield first, min(CHUNK_ELEMENTS, start + count - first)


def filled(tensor: torch.Tensor, data: KeyedData, rank: int) -> torch.Tensor:
    """``tensor`` (contiguous), filled with what ``rank`` sends."""
    flat = tensor.view(-1)
    for start, count in _chunks(0, flat.numel()):
        flat[start : start + count].copy_(torch.from_numpy(data.sent(rank, start, count)))
    return tensor


@dataclass(frozen=True)
class Part:
    """Consecutive elements of an output: elements ``start`` on of what ``sender`` sends, or of the sum (None)."""

    sender: int | None
    start: int
    count: int


def wrong_elements(received: torch.Tensor, parts: Sequence[Part], data: KeyedData) -> int:
    """Number of elements of ``received`` (contiguous) that differ from its ``parts``; NaN differs."""
    flat, wrong, position = received.view(-1), 0, 0
    for part in parts:
        for start, count in _chunks(part.start, part.count):
            values = data.total(start, count) if part.sender is None else data.sent(part.sender, start, count)
            expected = torch.from_numpy(values).to(flat.dtype)
            wrong += int(torch.count_nonzero(flat[position : position + count].cpu() != expected))
            position += count
    if position != flat.numel():
        raise ValueError(f"the oracle covers {position} of {flat.numel()} received elements")
    return wrong


class Exchange(Workload):
    """One communication call, repeated; the check is of what the last one left, and of one more.

    Args:
        call: the exchange; it must leave its result in ``received``.
        received: this rank's output.
        parts: what must be in ``received`` afterwards.
        data: what the ranks send.
        work: for the definitions.
        source: for calls that work in place: what ``received`` holds before the call.
        refill: restore ``source`` before every call, not only before the check. A sum in place
            grows with each call, to infinity in the end.
    """

    def __init__(
        self,
        call: Callable[[], object],
        received: torch.Tensor,
        parts: Sequence[Part],
        data: KeyedData,
        work: Work,
        source: torch.Tensor | None = None,
        refill: bool = False,
    ) -> None:
        self.work = work
        self._call = call
        self._received = received
        self._parts = parts
        self._data = data
        self._source = source
        self._refilled = source if refill else None
        self._reset()

    def _reset(self) -> None:
        """Leave nothing in the output that an earlier call, or an earlier owner of the memory, put there."""
        if self._source is None:
            self._received.fill_(POISON)
        else:
            self._received.copy_(self._source)

    def prepare(self) -> None:
        if self._refilled is not None:
            self._received.copy_(self._refilled)

    def run(self) -> None:
        self._call()

    def check(self) -> int:
        """Wrong elements that the last call left, and those of a call into a poisoned output; both count.

        All timed calls give the same output, so what the last one left could be an earlier one's.
        """
        left = wrong_elements(self._received, self._parts, self._data)
        self._reset()
        self._call()
        return left + wrong_elements(self._received, self._parts, self._data)
