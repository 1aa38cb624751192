"""One rank's shard to and from its payload: the encoders of a sender, the decoders that follow one remote sender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.allgather.statistics import SegmentSample
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.payload import (
    HEADER_BYTES,
    RECORD_BYTES,
    SegmentRecord,
    aligned,
    records_from_bytes,
    records_to_bytes,
    variable_offsets,
    write_bytes,
)
from ciera_piper_core.exponents.segment import SegmentDecoder, SegmentEncoder

if TYPE_CHECKING:
    from ciera_piper_core.allgather.agreement import CodedArea, PayloadShape
    from ciera_piper_core.allgather.plan import GatherPlan, Segment
    from ciera_piper_core.exponents.backend import Backend
    from ciera_piper_core.exponents.payload import PayloadHeader
    from ciera_piper_core.exponents.workspace import Workspace


@dataclass(frozen=True)
class EncodedShard:
    """What :meth:`ShardEncoder.encode` wrote.

    Attributes:
        records: of the coded segments. variable_bytes: of the variable area that is in use.
    """

    records: tuple[SegmentRecord, ...]
    variable_bytes: int


class ShardEncoder:
    """This rank's coded segments, with what their receivers have."""

    def __init__(
        self, plan: GatherPlan, shape: PayloadShape, backend: Backend, device: torch.device, workspace: Workspace
    ) -> None:
        self._plan = plan
        self._shape = shape
        self._encoders = [
            SegmentEncoder(one.segment.values, plan.layout, plan.settings, backend, device, workspace)
            for one in shape.coded
        ]

    @property
    def state_bytes(self) -> int:
        """Memory that outlives a gather."""
        return sum(encoder.state_bytes for encoder in self._encoders)

    def encode(self, shard: torch.Tensor, payload: torch.Tensor) -> EncodedShard:
        """Write records, fixed areas and variable area; the header comes later, when the room is known.

        Args:
            shard: bits of the values. payload: uint8, room for the largest payload of this shape.
        """
        records: list[SegmentRecord] = []
        end = self._shape.fixed_bytes
        for one, encoder in zip(self._shape.coded, self._encoders, strict=True):
            variable = payload[end : end + one.bound]
            record = encoder.encode(_of(shard, one.segment), payload[one.fixed], variable)
            records.append(record)
            end += aligned(record.variable_bytes)
        for segment, offset in self._shape.plain:
            plain = _of(shard, segment).view(torch.uint8)
            payload[offset : offset + plain.numel()].copy_(plain)
        write_bytes(records_to_bytes(records), payload[HEADER_BYTES : self._shape.head_bytes])
        return EncodedShard(tuple(records), end - self._shape.fixed_bytes)

    def commit(self) -> None:
        """What was encoded has arrived: the next payload builds on it."""
        for encoder in self._encoders:
            encoder.commit()

    def abort(self) -> None:
        """What was encoded is void."""
        for encoder in self._encoders:
            encoder.abort()

    def refresh(self, shard: torch.Tensor) -> None:
        """Receivers have exactly these values."""
        for one, encoder in zip(self._shape.coded, self._encoders, strict=True):
            encoder.refresh(_of(shard, one.segment))

    def reset(self) -> None:
        """Receivers have nothing that is known."""
        for encoder in self._encoders:
            encoder.reset()

    def samples(self, encoded: EncodedShard) -> tuple[SegmentSample, ...]:
        """For the statistics."""
        return tuple(
            SegmentSample(
                name=one.segment.name,
                mode=record.mode,
                blocks=one.area.blocks,
                changed_blocks=record.changed_blocks,
                symbols=record.symbols,
                coded_bytes=record.variable_bytes,
                sent_bytes=RECORD_BYTES + one.area.size + aligned(record.variable_bytes),
                plain_bytes=self._plan.segment_bytes(one.segment),
            )
            for one, record in zip(self._shape.coded, encoded.records, strict=True)
        )


class ShardDecoder:
    """The coded segments of one remote rank, with the exponents that it sent last."""

    def __init__(
        self,
        rank: int,
        plan: GatherPlan,
        shape: PayloadShape,
        backend: Backend,
        device: torch.device,
        workspace: Workspace,
    ) -> None:
        self._rank = rank
        self._shape = shape
        self._decoders = [
            SegmentDecoder(one.segment.values, plan.layout, plan.settings.block, backend, device, workspace)
            for one in shape.coded
        ]

    @property
    def state_bytes(self) -> int:
        """Memory that outlives a gather: the ExpCache."""
        return sum(decoder.state_bytes for decoder in self._decoders)

    def decode(self, header: PayloadHeader, head: bytes, received: Received, out: torch.Tensor) -> None:
        """Rebuild the shard.

        Args:
            header: of the payload. head: its bytes, with those of the records.
            out: bits of the values, written.

        Raises:
            CodedDataError: the payload is not what the sender wrote; names rank and segment. ``out`` and
                the cached exponents are then undefined, until a refresh.
        """
        try:
            records = records_from_bytes(
                head[HEADER_BYTES : self._shape.head_bytes], header, [one.bound for one in self._shape.coded]
            )
        except CodedDataError as error:
            raise CodedDataError(f"from rank {self._rank}: {error}") from error
        offsets, _ = variable_offsets(records)
        for one, decoder, record, offset in zip(self._shape.coded, self._decoders, records, offsets, strict=True):
            self._decode_segment(one, decoder, record, offset, received, out)
        for segment, offset in self._shape.plain:
            values = _of(out, segment).view(torch.uint8)
            values.copy_(received.part(offset, values.numel()))

    def refresh(self, shard: torch.Tensor) -> None:
        """The sender has exactly these values (bits)."""
        for one, decoder in zip(self._shape.coded, self._decoders, strict=True):
            decoder.refresh(_of(shard, one.segment))

    def reset(self) -> None:
        """What the sender has is not known."""
        for decoder in self._decoders:
            decoder.reset()

    def _decode_segment(
        self,
        one: CodedArea,
        decoder: SegmentDecoder,
        record: SegmentRecord,
        offset: int,
        received: Received,
        out: torch.Tensor,
    ) -> None:
        fixed = received.part(one.fixed_offset, one.area.size)
        variable = received.part(self._shape.fixed_bytes + offset, record.variable_bytes)
        try:
            decoder.decode(record, fixed, variable, _of(out, one.segment))
        except CodedDataError as error:
            raise CodedDataError(f"segment {one.segment.name!r} from rank {self._rank}: {error}") from error


@dataclass(frozen=True)
class Received:
    """One rank's payload as it arrived: in one collective, or in two.

    Attributes:
        first: uint8, what the first collective brought. rest: what continues it.
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


def _of(values: torch.Tensor, segment: Segment) -> torch.Tensor:
    return values[segment.offset : segment.offset + segment.values]
