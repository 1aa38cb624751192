"""What a compressed Allgather gathers: the named segments of a rank's shard, and which of them are coded."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ciera_piper_core.exponents.kernels import DEFAULT_BLOCK
from ciera_piper_core.exponents.layout import FloatLayout, layout_of
from ciera_piper_core.exponents.segment import CodingSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

__all__ = ["DEFAULT_BLOCK", "CodingSettings", "GatherPlan", "Segment"]


@dataclass(frozen=True)
class Segment:
    """One parameter's part of a rank's shard.

    Attributes:
        name: of the parameter; unique in its plan, the same on all ranks.
        offset: values of the shard before it. values: how many it has; 0 is allowed.
        category: what kind of parameter it is, for reports.
        compressed: whether its exponents are coded; else it travels as it is.
    """

    name: str
    offset: int
    values: int
    category: str = "other"
    compressed: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a segment needs a name")
        if not (isinstance(self.offset, int) and isinstance(self.values, int)):
            raise ValueError(
                f"segment {self.name!r}: offset {self.offset!r} and values {self.values!r} must be whole numbers (int)"
            )
        if self.offset < 0 or self.values < 0:
            raise ValueError(f"segment {self.name!r}: offset {self.offset} and values {self.values} must be 0 or more")


@dataclass(frozen=True)
class GatherPlan:
    """The segments of this rank's shard, one after the other without gaps, and how they are coded.

    Ranks' plans differ in the number of values alone (uneven shards): names, order, selection, dtype
    and settings are the same on all, which :class:`~ciera_piper_core.allgather.communicator.CompressedGather`
    verifies when it is built.

    Attributes:
        segments: in the order of the shard.
        dtype: of the values: bf16, fp16 or fp32.
        settings: how exponents are coded.
        name: of the gather, for errors and reports.
    """

    segments: tuple[Segment, ...]
    dtype: torch.dtype
    settings: CodingSettings = field(default_factory=CodingSettings)
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.settings, CodingSettings):
            raise ValueError(f"settings are CodingSettings(mode, block), not {self.settings!r}")
        if self.selected:
            layout_of(self.dtype)
        expected = 0
        names = set()
        for segment in self.segments:
            if segment.offset != expected:
                raise ValueError(
                    f"segment {segment.name!r} begins at value {segment.offset}, but those before it end at {expected}"
                )
            if segment.name in names:
                raise ValueError(f"two segments are named {segment.name!r}")
            names.add(segment.name)
            expected += segment.values

    @classmethod
    def from_sizes(
        cls,
        sizes: Iterable[tuple[str, int]],
        dtype: torch.dtype,
        settings: CodingSettings | None = None,
        name: str = "",
    ) -> GatherPlan:
        """A plan of segments, given as (name, values), that are all coded."""
        segments = []
        offset = 0
        for segment_name, values in sizes:
            segments.append(Segment(segment_name, offset, values))
            offset += values
        return cls(tuple(segments), dtype, settings or CodingSettings(), name)

    @classmethod
    def single(
        cls, values: int, dtype: torch.dtype, settings: CodingSettings | None = None, name: str = "shard"
    ) -> GatherPlan:
        """A plan of one segment that is the whole shard."""
        return cls.from_sizes([(name, values)], dtype, settings, name)

    def with_selection(self, names: Iterable[str]) -> GatherPlan:
        """The same plan, with exactly the named segments coded.

        Raises:
            ValueError: a name that no segment has.
        """
        chosen = set(names)
        unknown = chosen - {segment.name for segment in self.segments}
        if unknown:
            raise ValueError(f"no segment is named {', '.join(sorted(map(repr, unknown)))}")
        segments = tuple(replace(segment, compressed=segment.name in chosen) for segment in self.segments)
        return replace(self, segments=segments)

    @cached_property
    def selected(self) -> tuple[Segment, ...]:
        """The segments that are coded."""
        return tuple(segment for segment in self.segments if segment.compressed)

    @cached_property
    def values(self) -> int:
        """Of the whole shard."""
        return sum(segment.values for segment in self.segments)

    @property
    def shard_bytes(self) -> int:
        """Of the whole shard, plain."""
        return self.values * self.dtype.itemsize

    @property
    def layout(self) -> FloatLayout:
        """Of the values' bits.

        Raises:
            ValueError: the dtype has none; only a plan without coded segments can be of such a type.
        """
        return layout_of(self.dtype)

    def segment_bytes(self, segment: Segment) -> int:
        """Of a segment, plain."""
        return segment.values * self.dtype.itemsize

    @cached_property
    def shared_digest(self) -> bytes:
        """Of all that ranks' plans must have in common: everything but the numbers of values."""
        return _digest([self._head(), [[one.name, one.category, one.compressed] for one in self.segments]])

    @cached_property
    def digest(self) -> bytes:
        """Of the whole plan: 8 bytes."""
        return _digest([self.shared_digest.hex(), [one.values for one in self.segments]])

    def _head(self) -> list[object]:
        return [self.name, str(self.dtype), self.settings.mode, self.settings.block]


def _digest(described: object) -> bytes:
    return hashlib.blake2b(json.dumps(described).encode(), digest_size=8).digest()
