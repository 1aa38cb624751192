"""All segments of one rank's shard, to its payload and back: what shards do, and how it is done one by one.

Backends that can do all segments in one call have a way of their own (``native/segments.py``); both
write the same bytes. As with single segments, an encode is committed or aborted before the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.payload import (
    CODINGS,
    HEADER_BYTES,
    RECORD_BYTES,
    aligned,
    read_bytes,
    records_from_bytes,
    records_to_bytes,
    variable_offsets,
    write_bytes,
)
from ciera_piper_core.exponents.segment import SegmentDecoder, SegmentEncoder, SegmentStateError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.layout import FloatLayout
    from ciera_piper_core.exponents.payload import SegmentRecord
    from ciera_piper_core.exponents.segment import CodingSettings
    from ciera_piper_core.exponents.workspace import Workspace

FOUND = ("coding", "changed_blocks", "symbols", "coded_bytes")
"""Columns of what an encode found: index into ``CODINGS``, and as in ``SegmentRecord``."""


class SegmentFaultError(CodedDataError):
    """What arrived for one segment is not what its sender coded.

    Attributes:
        segment: counts the coded segments.
    """

    def __init__(self, segment: int, what: str) -> None:
        super().__init__(what)
        self.segment = segment


@dataclass(frozen=True)
class SegmentPlace:
    """Where a segment lies in its shard, and in the shard's payload.

    Attributes:
        values: how many. first: values of the shard before it.
        offset: bytes of the payload before its fixed area, or before its plain bytes.
        bound: most bytes of its coded exponents; None for a segment that travels as it is.
    """

    values: int
    first: int
    offset: int
    bound: int | None


@dataclass(frozen=True)
class ShardPlaces:
    """The segments of a shard, in its order.

    Attributes:
        fixed_bytes: of the payload before its variable area.
    """

    segments: tuple[SegmentPlace, ...]
    fixed_bytes: int

    @cached_property
    def coded(self) -> tuple[tuple[SegmentPlace, int], ...]:
        """The coded segments, with their bounds."""
        return tuple((one, one.bound) for one in self.segments if one.bound is not None)

    @cached_property
    def plain(self) -> tuple[SegmentPlace, ...]:
        """The others."""
        return tuple(one for one in self.segments if one.bound is None)

    @cached_property
    def values(self) -> int:
        """Of the whole shard."""
        return sum(one.values for one in self.segments)

    @cached_property
    def payload_bytes(self) -> int:
        """Of the largest payload."""
        return self.fixed_bytes + sum(aligned(bound) for _, bound in self.coded)


@dataclass(frozen=True)
class Received:
    """One rank's payload as it arrived: in one collective, or in two.

    Attributes:
        first: uint8, what the first collective brought; all before the variable area is in it.
        rest: what continues it.
    """

    first: torch.Tensor
    rest: torch.Tensor | None = None

    def part(self, offset: int, size: int) -> torch.Tensor:
        """Bytes of the payload; a copy only where they came in two pieces."""
        end = offset + size
        border = self.first.numel()
        if end <= border:
            return self.first[offset:end]
        if self.rest is None or end > border + self.rest.numel():
            raise CodedDataError(f"bytes up to {end} of a payload of which {border} arrived")
        if offset >= border:
            return self.rest[offset - border : end - border]
        return torch.cat((self.first[offset:], self.rest[: end - border]))


class ShardSender(Protocol):
    """A shard's segments on the side that sends them; ``values`` are bits of the whole shard (``FloatLayout.bits``)."""

    @property
    def state_bytes(self) -> int:
        """Kept between gathers."""

    def encode(self, values: torch.Tensor, payload: torch.Tensor) -> tuple[NDArray[np.int64], int]:
        """Write records, fixed and plain areas and the variable area.

        Args:
            payload: uint8, room for the largest payload.

        Returns:
            what was found, ``[coded segments, FOUND]``; bytes of the variable area.

        Raises:
            SegmentStateError: no base to code against, or an earlier encode is neither committed nor aborted.
        """

    def commit(self) -> None:
        """Receivers hold what was encoded."""

    def abort(self) -> None:
        """What was encoded is void."""

    def refresh(self, values: torch.Tensor) -> None:
        """Receivers were given these values plain."""

    def reset(self) -> None:
        """What receivers hold is not known."""


class ShardReceiver(Protocol):
    """A remote rank's segments on the side that receives them."""

    @property
    def state_bytes(self) -> int:
        """Kept between gathers."""

    def decode(self, variable_bytes: int, received: Received, values: torch.Tensor) -> None:
        """Rebuild the shard.

        Args:
            variable_bytes: as the header says.
            values: bits of the whole shard, written.

        Raises:
            CodedDataError: the payload is not what the sender wrote (SegmentFaultError: of one segment). Values and
                kept exponents are then undefined, until a refresh.
            SegmentStateError: no base to decode against.
        """

    def refresh(self, values: torch.Tensor) -> None:
        """The sender gave these values plain."""

    def reset(self) -> None:
        """What the sender has is not known."""


def sender(
    places: ShardPlaces,
    layout: FloatLayout,
    settings: CodingSettings,
    backend: Backend,
    device: torch.device,
    workspace: Workspace,
) -> ShardSender:
    """The backend's best for these segments."""
    if backend.whole_shards:
        from ciera_piper_core.exponents.native.segments import NativeSender

        return NativeSender(places, layout, settings, backend.isa, workspace)
    return _Sender(places, layout, settings, backend, device, workspace)


def receiver(
    places: ShardPlaces,
    layout: FloatLayout,
    block: int,
    backend: Backend,
    device: torch.device,
    workspace: Workspace,
) -> ShardReceiver:
    """The backend's best for these segments."""
    if backend.whole_shards:
        from ciera_piper_core.exponents.native.segments import NativeReceiver

        return NativeReceiver(places, layout, block, backend.isa, workspace)
    return _Receiver(places, layout, block, backend, device, workspace)


class _Sender:
    """One segment after the other, with any backend."""

    def __init__(
        self,
        places: ShardPlaces,
        layout: FloatLayout,
        settings: CodingSettings,
        backend: Backend,
        device: torch.device,
        workspace: Workspace,
    ) -> None:
        self._places = places
        self._encoders = [
            SegmentEncoder(one.values, layout, settings, backend, device, workspace) for one, _ in places.coded
        ]

    @property
    def state_bytes(self) -> int:
        return sum(encoder.state_bytes for encoder in self._encoders)

    def encode(self, values: torch.Tensor, payload: torch.Tensor) -> tuple[NDArray[np.int64], int]:
        records: list[SegmentRecord] = []
        end = self._places.fixed_bytes
        for (one, bound), encoder in zip(self._places.coded, self._encoders, strict=True):
            fixed = payload[one.offset : one.offset + encoder.fixed_bytes]
            record = encoder.encode(_of(values, one), fixed, payload[end : end + bound])
            records.append(record)
            used = end + record.variable_bytes
            end += aligned(record.variable_bytes)
            payload[used:end].zero_()
        for one in self._places.plain:
            plain = _of(values, one).view(torch.uint8)
            payload[one.offset : one.offset + plain.numel()].copy_(plain)
        write_bytes(records_to_bytes(records), payload[HEADER_BYTES : HEADER_BYTES + RECORD_BYTES * len(records)])
        found = [(CODINGS.index(one.mode), one.changed_blocks, one.symbols, one.variable_bytes) for one in records]
        return np.array(found, dtype=np.int64).reshape(-1, len(FOUND)), end - self._places.fixed_bytes

    def commit(self) -> None:
        for encoder in self._encoders:
            encoder.commit()

    def abort(self) -> None:
        for encoder in self._encoders:
            encoder.abort()

    def refresh(self, values: torch.Tensor) -> None:
        for (one, _), encoder in zip(self._places.coded, self._encoders, strict=True):
            encoder.refresh(_of(values, one))

    def reset(self) -> None:
        for encoder in self._encoders:
            encoder.reset()


class _Receiver:
    """One segment after the other, with any backend."""

    def __init__(
        self,
        places: ShardPlaces,
        layout: FloatLayout,
        block: int,
        backend: Backend,
        device: torch.device,
        workspace: Workspace,
    ) -> None:
        self._places = places
        self._valid = False
        self._decoders = [
            SegmentDecoder(one.values, layout, block, backend, device, workspace) for one, _ in places.coded
        ]

    @property
    def state_bytes(self) -> int:
        return sum(decoder.state_bytes for decoder in self._decoders)

    def decode(self, variable_bytes: int, received: Received, values: torch.Tensor) -> None:
        if not self._valid:
            raise SegmentStateError("the shard has no base to decode against; exchange plain values, then refresh")
        # Segments that were not reached still have theirs, but no shard is rebuilt from bases of two gathers.
        self._valid = False
        bounds = [bound for _, bound in self._places.coded]
        records = read_bytes(received.part(HEADER_BYTES, RECORD_BYTES * len(bounds)))
        read = records_from_bytes(records, variable_bytes, bounds)
        offsets, _ = variable_offsets(read)
        for number, ((one, _), decoder) in enumerate(zip(self._places.coded, self._decoders, strict=True)):
            record = read[number]
            try:
                fixed = received.part(one.offset, decoder.area.size)
                variable = received.part(self._places.fixed_bytes + offsets[number], record.variable_bytes)
                decoder.decode(record, fixed, variable, _of(values, one))
            except CodedDataError as error:
                raise SegmentFaultError(number, str(error)) from error
        for one in self._places.plain:
            plain = _of(values, one).view(torch.uint8)
            plain.copy_(received.part(one.offset, plain.numel()))
        self._valid = True

    def refresh(self, values: torch.Tensor) -> None:
        for (one, _), decoder in zip(self._places.coded, self._decoders, strict=True):
            decoder.refresh(_of(values, one))
        self._valid = True

    def reset(self) -> None:
        self._valid = False
        for decoder in self._decoders:
            decoder.reset()


def _of(values: torch.Tensor, one: SegmentPlace) -> torch.Tensor:
    return values[one.first : one.first + one.values]
