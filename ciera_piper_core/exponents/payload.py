"""How a rank's contribution to a compressed gather lies in memory: header, records, fixed areas, variable area.

==================== ============================================================ ====================
part                 size                                                         known before
==================== ============================================================ ====================
header               64 bytes                                                     yes
records              32 bytes a compressed segment, in plan order                 yes
fixed areas          a segment each, in plan order; of a compressed segment the   yes
                     bitmap and the sign and mantissa plane, of a plain segment
                     its bytes
variable area        the coded exponents of each compressed segment, in plan      its capacity is
                     order; the first ``capacity`` bytes travel in the first      agreed, its use
                     collective, what is left over in a second one                is not
==================== ============================================================ ====================

Every part, every area in it and each segment's place in the variable area begins at a multiple of 16
bytes. Numbers are unsigned and little endian. Whatever is parsed is checked before it is used: an
error, never a wrong offset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch

from ciera_piper_core.exponents.bitmap import bitmap_bytes
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.kernels import GAMMA
from ciera_piper_core.exponents.reference import blocks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.exponents.layout import FloatLayout

ALIGNMENT = 16
HEADER_BYTES = 64
RECORD_BYTES = 32
MAGIC = b"CIRA"
VERSION = 1
REFRESH_WANTED = 1
"""Flag: the sender has no base that its receivers share; the next exchange must carry plain values."""

Coding = Literal["block", "delta"]
CODINGS: tuple[Coding, ...] = ("block", "delta")
"""A segment's exponents themselves, or their differences to the previous ones; an index is the code on the wire."""

_HEADER = struct.Struct("<4sBBBBIIQQQQQQ")
_RECORD = struct.Struct("<QIB3sQQ")
_U64 = 2**64 - 1
_SHARED_BYTES = 40
"""Of a header, up to the capacity: the same on all ranks of one gather, if their shards are of one size."""


def aligned(size: int) -> int:
    """``size`` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class PayloadHeader:
    """What stands in front of a rank's payload.

    Attributes:
        epoch: counts full refreshes. sequence: committed gathers of this epoch, the base that was coded against.
        plan_digest: of the plan that both sides must share.
        attempt: counts gathers, failed ones too.
        capacity_bytes: of the variable area in the first collective.
        variable_bytes: in use; more than the capacity means that the remainder follows in a second collective.
        coder_code: format of the coded exponents (``Coder.code``); 0 in a payload of plain values.
        refresh_wanted: see ``REFRESH_WANTED``.

    Raises:
        ValueError: a number outside its field, or a size that is not a multiple of the alignment.
    """

    epoch: int
    sequence: int
    plan_digest: int
    attempt: int
    capacity_bytes: int = 0
    variable_bytes: int = 0
    coder_code: int = 0
    refresh_wanted: bool = False

    def __post_init__(self) -> None:
        for name, bits in (
            ("epoch", 32),
            ("sequence", 32),
            ("plan_digest", 64),
            ("attempt", 64),
            ("capacity_bytes", 64),
            ("variable_bytes", 64),
            ("coder_code", 8),
        ):
            if not 0 <= getattr(self, name) < 2**bits:
                raise ValueError(f"header: {name} {getattr(self, name)} does not fit {bits} bits")
        for name in ("capacity_bytes", "variable_bytes"):
            if getattr(self, name) % ALIGNMENT:
                raise ValueError(f"header: {name} {getattr(self, name)} is not a multiple of {ALIGNMENT}")

    @property
    def overflow_bytes(self) -> int:
        """Bytes of the variable area that the first collective had no room for."""
        return max(self.variable_bytes - self.capacity_bytes, 0)

    def to_bytes(self) -> bytes:
        """The header's 64 bytes."""
        words = _HEADER.pack(
            MAGIC,
            VERSION,
            REFRESH_WANTED if self.refresh_wanted else 0,
            self.coder_code,
            0,
            self.epoch,
            self.sequence,
            self.plan_digest,
            self.attempt,
            self.capacity_bytes,
            self.variable_bytes,
            0,
            0,
        )[:-8]
        return words + struct.pack("<Q", chained(words))

    @classmethod
    def from_bytes(cls, data: bytes) -> PayloadHeader:
        """Parse a header.

        Raises:
            CodedDataError: not a header, of another version, or changed on the way.
        """
        if len(data) != HEADER_BYTES:
            raise CodedDataError(f"a payload's header has {HEADER_BYTES} bytes, not {len(data)}")
        magic, version, flags, coder, zero, epoch, sequence, digest, attempt, capacity, variable, zeros, check = (
            _HEADER.unpack(data)
        )
        if magic != MAGIC:
            raise CodedDataError(f"a payload begins with {MAGIC!r}, not {magic!r}")
        if check != chained(data[:-8]):
            raise CodedDataError("the payload's header was changed on the way: its check does not match")
        if version != VERSION:
            raise CodedDataError(f"a payload of version {version}; this is version {VERSION} on every rank or none")
        if flags & ~REFRESH_WANTED or zero or zeros:
            raise CodedDataError("the payload's header uses fields that this version has not")
        try:
            return cls(epoch, sequence, digest, attempt, capacity, variable, coder, bool(flags & REFRESH_WANTED))
        except ValueError as error:
            raise CodedDataError(str(error)) from None


@dataclass(frozen=True)
class SegmentRecord:
    """What a receiver must know of one compressed segment.

    Attributes:
        mode: ``block``: the symbols are exponents; ``delta``: differences to the previous ones.
        changed_blocks: set bits of the bitmap.
        symbols: values in changed blocks; not sent, since the bitmap tells.
        variable_bytes: of the coded exponents, without padding.
        checksum: of the segment's values, in [0, 2**64).
    """

    mode: Coding
    changed_blocks: int
    symbols: int
    variable_bytes: int
    checksum: int

    def to_bytes(self) -> bytes:
        """The record's 32 bytes."""
        words = _RECORD.pack(
            self.checksum, self.changed_blocks, CODINGS.index(self.mode), b"\0\0\0", self.variable_bytes, 0
        )[:-8]
        return words + struct.pack("<Q", chained(words))

    @classmethod
    def from_bytes(cls, data: bytes, symbols: int = -1) -> SegmentRecord:
        """Parse a record; ``symbols`` is -1 where the caller has not counted them (decoders count for themselves).

        Raises:
            CodedDataError: not a record, or changed on the way.
        """
        if len(data) != RECORD_BYTES:
            raise CodedDataError(f"a segment's record has {RECORD_BYTES} bytes, not {len(data)}")
        checksum, changed, mode, zeros, variable, check = _RECORD.unpack(data)
        if check != chained(data[:-8]):
            raise CodedDataError("a segment's record was changed on the way: its check does not match")
        if mode >= len(CODINGS) or zeros != b"\0\0\0":
            raise CodedDataError(f"a segment coded in unknown mode {mode}")
        return cls(CODINGS[mode], changed, symbols, variable, checksum)


@dataclass(frozen=True)
class FixedArea:
    """The fixed area of one compressed segment: its bitmap, then its sign and mantissa plane.

    Attributes:
        blocks: of the segment.
        bitmap_bytes, rest_bytes: without padding.
        rest_offset: from the area's begin.
        size: with padding.
    """

    blocks: int
    bitmap_bytes: int
    rest_offset: int
    rest_bytes: int
    size: int

    @classmethod
    def of(cls, values: int, layout: FloatLayout, block: int) -> FixedArea:
        """The area of so many values in blocks of ``block``."""
        blocks = blocks_of(values, block)
        bitmap, rest = bitmap_bytes(blocks), layout.rest_bytes(values)
        return cls(blocks, bitmap, aligned(bitmap), rest, aligned(bitmap) + aligned(rest))

    def bitmap(self, fixed: torch.Tensor) -> torch.Tensor:
        """The bitmap's bytes in the area."""
        return fixed[: self.bitmap_bytes]

    def rest(self, fixed: torch.Tensor) -> torch.Tensor:
        """The sign and mantissa plane in the area."""
        return fixed[self.rest_offset : self.rest_offset + self.rest_bytes]

    def clear_padding(self, fixed: torch.Tensor) -> None:
        """Zero what no section uses, so that the same values always give the same bytes."""
        for begin, end in (
            (self.bitmap_bytes, self.rest_offset),
            (self.rest_offset + self.rest_bytes, self.size),
        ):
            if begin < end:
                fixed[begin:end].zero_()


def variable_offsets(records: Sequence[SegmentRecord]) -> tuple[list[int], int]:
    """Where each segment's coded exponents begin in the variable area, and the area's size."""
    offsets, end = [], 0
    for record in records:
        offsets.append(end)
        end += aligned(record.variable_bytes)
    return offsets, end


def records_to_bytes(records: Sequence[SegmentRecord]) -> bytes:
    """The records one after another."""
    return b"".join(record.to_bytes() for record in records)


def records_from_bytes(data: bytes, variable_bytes: int, bounds: Sequence[int]) -> list[SegmentRecord]:
    """Parse the records that follow a header.

    Args:
        variable_bytes: of all segments, as the header says.
        bounds: the most bytes that each segment's coded exponents can take (``SegmentEncoder.variable_bound``).

    Raises:
        CodedDataError: one of them was changed, is larger than possible, or they do not add up to what
            the header says.
    """
    if len(data) != RECORD_BYTES * len(bounds):
        raise CodedDataError(f"{len(bounds)} segments have {RECORD_BYTES * len(bounds)} bytes of records: {len(data)}")
    records = []
    for index, bound in enumerate(bounds):
        record = SegmentRecord.from_bytes(data[index * RECORD_BYTES : (index + 1) * RECORD_BYTES])
        if record.variable_bytes > bound:
            raise CodedDataError(f"segment {index} claims {record.variable_bytes} coded bytes; {bound} are possible")
        records.append(record)
    total = variable_offsets(records)[1]
    if total != variable_bytes:
        raise CodedDataError(f"the segments' coded bytes make {total}, the header says {variable_bytes}")
    return records


def write_bytes(data: bytes, out: torch.Tensor) -> None:
    """Copy bytes to a uint8 tensor of as many elements, on any device."""
    if data:
        out.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def read_bytes(data: torch.Tensor) -> bytes:
    """The bytes of a uint8 tensor on any device."""
    return data.cpu().numpy().tobytes()


def chained(words: bytes) -> int:
    """A check of whole 8-byte words: ``c = mix((c ^ word) + GAMMA)`` over them, from 0."""
    # Headers of one gather begin alike, and Python is slow at this.
    return _chained(_begun(words[:_SHARED_BYTES]), words[_SHARED_BYTES:])


@lru_cache(maxsize=64)
def _begun(words: bytes) -> int:
    return _chained(0, words)


def _chained(check: int, words: bytes) -> int:
    for (word,) in struct.iter_unpack("<Q", words):
        z = ((check ^ word) + GAMMA) & _U64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _U64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _U64
        check = z ^ z >> 31
    return check
