"""What a compressed Allgather did: bytes and times of each gather, and sums for each segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from ciera_piper_core.exponents.payload import ALIGNMENT, CODINGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ciera_piper_core.allgather.plan import GatherPlan

Kind = Literal["coded", "refresh", "plain"]
"""``coded``: a collective of coded shards (two where a rank overflowed), or one a stage. ``refresh``: at least one
of them was followed by plain shards. ``plain``: the plan selects nothing."""


@dataclass(frozen=True)
class SegmentSample:
    """One coded segment of this rank's shard in one gather.

    Attributes:
        name: of the segment. mode: ``block`` or ``delta``, as it was coded.
        blocks: of the segment. changed_blocks: of those, how many had changed.
        symbols: that were coded: the values of the changed blocks.
        coded_bytes: of those symbols, coded.
        sent_bytes: of the segment in the payload, all told. plain_bytes: without coding.
    """

    name: str
    mode: str
    blocks: int
    changed_blocks: int
    symbols: int
    coded_bytes: int
    sent_bytes: int
    plain_bytes: int


@dataclass(frozen=True, eq=False)
class CodedSegments:
    """The coded segments of a stage, in their order; what does not change from gather to gather.

    Attributes:
        names: of the segments. blocks: of each. plain_bytes: of each, without coding.
        fixed_bytes: of record and fixed area, aligned.
    """

    names: tuple[str, ...]
    blocks: NDArray[np.int64]
    plain_bytes: NDArray[np.int64]
    fixed_bytes: NDArray[np.int64]

    def sent_bytes(self, found: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each segment in the payload, all told.

        Args:
            found: ``[segments, exponents.segments.FOUND]``.
        """
        return self.fixed_bytes + (found[:, 3] + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT

    def samples(self, found: NDArray[np.int64]) -> list[SegmentSample]:
        """Of one gather."""
        return [
            SegmentSample(name, CODINGS[coding], blocks, changed, symbols, coded, sent, plain)
            for name, blocks, (coding, changed, symbols, coded), sent, plain in zip(
                self.names,
                self.blocks.tolist(),
                found.tolist(),
                self.sent_bytes(found).tolist(),
                self.plain_bytes.tolist(),
                strict=True,
            )
        ]


def merged(samples: Iterable[SegmentSample]) -> tuple[SegmentSample, ...]:
    """One sample a segment, of its pieces in several stages; ``mode`` is that of the piece with most symbols."""
    whole: dict[str, SegmentSample] = {}
    for one in samples:
        known = whole.get(one.name)
        if known is not None:
            one = SegmentSample(
                one.name,
                max(known, one, key=lambda piece: piece.symbols).mode,
                known.blocks + one.blocks,
                known.changed_blocks + one.changed_blocks,
                known.symbols + one.symbols,
                known.coded_bytes + one.coded_bytes,
                known.sent_bytes + one.sent_bytes,
                known.plain_bytes + one.plain_bytes,
            )
        whole[one.name] = one
    return tuple(whole.values())


@dataclass(frozen=True, eq=False)
class GatherSample:
    """One gather, as this rank saw it.

    Attributes:
        attempt: counts collectives of this gather, failed ones too.
        kind: how the values travelled.
        overflowed: whether the room was too small for some rank, so that a second collective followed.
        sent_bytes: that this rank put into collectives. plain_bytes: of its shard.
        encode_ns, collective_ns, decode_ns: the host's time in each phase; each phase on one thread.
            A ``refresh`` counts filling the caches as decoding.
        parts: of each stage, its coded segments and what was found of them; empty unless ``kind`` is ``coded``.
    """

    attempt: int
    kind: Kind
    overflowed: bool
    sent_bytes: int
    plain_bytes: int
    encode_ns: int
    collective_ns: int
    decode_ns: int
    parts: tuple[tuple[CodedSegments, NDArray[np.int64]], ...] = ()

    @cached_property
    def segments(self) -> tuple[SegmentSample, ...]:
        """Of the coded segments, in their order."""
        return merged(one for part, found in self.parts for one in part.samples(found))


@dataclass
class SegmentTotals:
    """Sums over the coded gathers of one segment; names as in :class:`SegmentSample`."""

    name: str
    category: str
    compressed: bool
    gathers: int = 0
    blocks: int = 0
    changed_blocks: int = 0
    symbols: int = 0
    coded_bytes: int = 0
    sent_bytes: int = 0
    plain_bytes: int = 0

    @property
    def block_change_rate(self) -> float:
        """Share of blocks that had changed; NaN before the first coded gather."""
        return self.changed_blocks / self.blocks if self.blocks else float("nan")

    @property
    def byte_ratio(self) -> float:
        """Bytes sent over plain bytes; NaN before the first coded gather."""
        return self.sent_bytes / self.plain_bytes if self.plain_bytes else float("nan")


def category_totals(segments: Iterable[SegmentTotals]) -> dict[str, SegmentTotals]:
    """Sums by category, named by it; ``compressed`` if any of them is."""
    sums: dict[str, SegmentTotals] = {}
    for one in segments:
        total = sums.setdefault(one.category, SegmentTotals(one.category, one.category, False))
        total.compressed |= one.compressed
        for count in _COUNTS:
            setattr(total, count, getattr(total, count) + getattr(one, count))
    return sums


_COUNTS = ("gathers", "blocks", "changed_blocks", "symbols", "coded_bytes", "sent_bytes", "plain_bytes")


@dataclass
class _Sums:
    """Over the coded gathers of a stage: what was found, and bytes that were sent."""

    found: NDArray[np.int64]
    sent: NDArray[np.int64]
    gathers: int = 0


@dataclass
class GatherStatistics:
    """Sums over gathers that completed on this rank.

    Attributes:
        plan: of the gathers.
        gathers: by kind. overflows: coded gathers with a second collective.
        failed: gathers that raised on this rank.
        failed_encodes: gathers for which this rank could not code its shard, so that all refreshed.
        last: the latest gather, but for plain ones that nobody observes.
        encode_ns, collective_ns, decode_ns: as in :class:`GatherSample`; those of synchronous plain gathers
            that nobody observes are not measured, since that alone would slow small ones.
    """

    plan: GatherPlan
    gathers: dict[Kind, int] = field(default_factory=lambda: {"coded": 0, "refresh": 0, "plain": 0})
    overflows: int = 0
    failed: int = 0
    failed_encodes: int = 0
    sent_bytes: int = 0
    plain_bytes: int = 0
    encode_ns: int = 0
    collective_ns: int = 0
    decode_ns: int = 0
    last: GatherSample | None = None
    _sums: dict[CodedSegments, _Sums] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Of the plan."""
        return self.plan.name

    @property
    def segments(self) -> dict[str, SegmentTotals]:
        """Sums by name, in the plan's order."""
        totals = {one.name: SegmentTotals(one.name, one.category, one.compressed) for one in self.plan.segments}
        for part, sums in self._sums.items():
            rows = zip(
                part.names,
                part.blocks.tolist(),
                sums.found.tolist(),
                sums.sent.tolist(),
                part.plain_bytes.tolist(),
                strict=True,
            )
            for name, blocks, (_, changed, symbols, coded), sent, plain in rows:
                one = totals[name]
                one.gathers = max(one.gathers, sums.gathers)
                one.blocks += blocks * sums.gathers
                one.changed_blocks += changed
                one.symbols += symbols
                one.coded_bytes += coded
                one.sent_bytes += sent
                one.plain_bytes += plain * sums.gathers
        return totals

    @property
    def byte_ratio(self) -> float:
        """Bytes that this rank sent over those of plain gathers; NaN before the first gather."""
        return self.sent_bytes / self.plain_bytes if self.plain_bytes else float("nan")

    def add(self, sample: GatherSample) -> None:
        """Count a gather that completed."""
        self.last = sample
        self.gathers[sample.kind] += 1
        self.overflows += sample.overflowed
        self.sent_bytes += sample.sent_bytes
        self.plain_bytes += sample.plain_bytes
        self.encode_ns += sample.encode_ns
        self.collective_ns += sample.collective_ns
        self.decode_ns += sample.decode_ns
        for part, found in sample.parts:
            sums = self._sums.get(part)
            if sums is None:
                sums = self._sums[part] = _Sums(np.zeros_like(found), np.zeros(len(found), dtype=np.int64))
            # Whole columns: in a model of many small segments a sum for each would cost as much as coding it.
            sums.gathers += 1
            sums.found += found
            sums.sent += part.sent_bytes(found)

    def add_plain(self, size: int, collective_ns: int = 0, gathers: int = 1) -> None:
        """Count plain gathers of so many bytes a rank each; 0 for a time that was not measured."""
        self.gathers["plain"] += gathers
        self.sent_bytes += gathers * size
        self.plain_bytes += gathers * size
        self.collective_ns += collective_ns
