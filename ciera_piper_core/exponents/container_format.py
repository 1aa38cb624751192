"""Where everything lies in a container: one tensor's coded bytes, which describe themselves.

The tensor is cut into parts, so that a part stays in the cache from its first pass to its last, and
so that threads share the work.

====================== ======================================================================
section                what
====================== ======================================================================
header                 32 bytes: magic, version, value type, coder, dimensions, block, values in
                       a part, values, a check of header, shape and directory
shape                  8 bytes a dimension
directory              16 bytes a part: checksum of its values, bytes of its coded exponents
rest                   the sign and mantissa plane of each part
coded exponents        of each part
====================== ======================================================================

Numbers are unsigned and little endian; every section, and each part in it, begins at a multiple of 16 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import FloatLayout, layout_of_code
from ciera_piper_core.exponents.payload import aligned, chained, read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

MAGIC = b"CIRT"
VERSION = 1
MOST_DIMENSIONS = 255

_HEADER = struct.Struct("<4sBBBBIIQQ")
_ENTRY = struct.Struct("<QQ")


@dataclass(frozen=True)
class Part:
    """Some values of the tensor.

    Attributes:
        begin, end: first value, and the one after the last.
        rest_at: where the part's sign and mantissa plane begins in the container.
    """

    begin: int
    end: int
    rest_at: int

    @property
    def values(self) -> int:
        """How many."""
        return self.end - self.begin


@dataclass(frozen=True)
class Entry:
    """What the directory says of a part: its values' checksum and the bytes of its coded exponents."""

    checksum: int
    coded_bytes: int


@dataclass(frozen=True)
class ContainerFormat:
    """The container of one tensor.

    Attributes:
        layout: of the values.
        coder_code: format of the coded exponents.
        shape: of the tensor.
        block: values that a term of a checksum covers.
        part_values: values in a part, a multiple of 1024; the last part may be short.
    """

    layout: FloatLayout
    coder_code: int
    shape: tuple[int, ...]
    block: int
    part_values: int

    @property
    def values(self) -> int:
        """Of the tensor."""
        return prod(self.shape)

    @property
    def directory_at(self) -> int:
        """Where the directory begins."""
        return aligned(_HEADER.size + 8 * len(self.shape))

    @property
    def rest_at(self) -> int:
        """Where the rest begins."""
        return self.directory_at + _ENTRY.size * self.part_count

    @property
    def coded_at(self) -> int:
        """Where the coded exponents begin."""
        if not self.part_count:
            return self.rest_at
        last = self.part(self.part_count - 1)
        return last.rest_at + aligned(self.layout.rest_bytes(last.values))

    @property
    def part_count(self) -> int:
        """Parts of the tensor."""
        return -(-self.values // self.part_values)

    def part(self, index: int) -> Part:
        """One of them."""
        begin = index * self.part_values
        rest_at = self.rest_at + index * aligned(self.layout.rest_bytes(self.part_values))
        return Part(begin, min(begin + self.part_values, self.values), rest_at)

    def coded_begins(self, entries: Sequence[Entry]) -> list[int]:
        """Where each part's coded exponents begin, and, as one more, where the container ends."""
        begins = [self.coded_at]
        for entry in entries:
            begins.append(begins[-1] + aligned(entry.coded_bytes))
        return begins

    def front_to_bytes(self, entries: Sequence[Entry]) -> bytes:
        """Header, shape and directory."""
        shape = struct.pack(f"<{len(self.shape)}Q", *self.shape)
        padded = shape.ljust(self.directory_at - _HEADER.size, b"\0")
        behind = padded + b"".join(_ENTRY.pack(entry.checksum, entry.coded_bytes) for entry in entries)
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            self.layout.code,
            self.coder_code,
            len(self.shape),
            self.block,
            self.part_values,
            self.values,
            0,
        )[:-8]
        return header + struct.pack("<Q", chained(header + behind)) + behind

    @classmethod
    def parse(cls, coded: torch.Tensor) -> tuple[ContainerFormat, list[Entry]]:
        """Read the front of a container, and check that the rest is as long as it says.

        Args:
            coded: uint8, flat.

        Raises:
            CodedDataError: not a container, of another version, cut short or changed on the way.
        """
        length = coded.numel()
        if length < _HEADER.size:
            raise CodedDataError(f"{length} bytes are no coded tensor: its header alone has {_HEADER.size}")
        header = read_bytes(coded[: _HEADER.size])
        magic, version, code, coder, dimensions, block, part_values, values, check = _HEADER.unpack(header)
        if magic != MAGIC:
            raise CodedDataError(f"a coded tensor begins with {MAGIC!r}, not {magic!r}")
        if version != VERSION:
            raise CodedDataError(f"a coded tensor of version {version}; this is version {VERSION}")
        if block not in BLOCKS or not part_values or part_values % BLOCKS[-1]:
            raise CodedDataError(
                f"the coded tensor names impossible blocks of {block} and parts of {part_values} values"
            )
        # Before anything is made of that size: the rest of a value alone takes a byte or more.
        if values > length:
            raise CodedDataError(f"{length} bytes cannot hold {values} values")
        directory_at = aligned(_HEADER.size + 8 * dimensions)
        front_bytes = directory_at + _ENTRY.size * -(-values // part_values)
        if front_bytes > length:
            raise CodedDataError(f"{length} bytes, where shape and directory alone take {front_bytes}")
        behind = read_bytes(coded[_HEADER.size : front_bytes])
        if check != chained(header[:-8] + behind):
            raise CodedDataError("the coded tensor's header, shape or directory was changed: its check does not match")
        try:
            layout = layout_of_code(code)
        except ValueError as error:
            raise CodedDataError(str(error)) from None
        described = cls(layout, coder, struct.unpack_from(f"<{dimensions}Q", behind), block, part_values)
        if described.values != values:
            raise CodedDataError(f"the coded tensor has {values} values, its shape {list(described.shape)} others")
        entries = [Entry(*words) for words in _ENTRY.iter_unpack(behind[directory_at - _HEADER.size :])]
        end = described.coded_begins(entries)[-1]
        if end != length:
            raise CodedDataError(f"{length} bytes, where the coded tensor's directory makes {end}")
        return described, entries
