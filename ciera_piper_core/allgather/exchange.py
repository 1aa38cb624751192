"""The collectives of one plan's gathers: the coded payloads, and what has to follow them on every rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ciera_piper_core.allgather.capacity import CapacityPredictor
from ciera_piper_core.allgather.errors import GatherError, collective_failure, described_failure
from ciera_piper_core.allgather.plain_gather import gather_plain
from ciera_piper_core.allgather.protocol import Verdict, judge
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.payload import HEADER_BYTES, PayloadHeader, read_bytes, write_bytes
from ciera_piper_core.exponents.segments import Received
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from ciera_piper_core.allgather.agreement import Agreement
    from ciera_piper_core.allgather.lane import GatherLane
    from ciera_piper_core.allgather.shard_coding import EncodedShard


@dataclass
class Transfer:
    """One gather on its way.

    Attributes:
        shard, out: bits of the values, of this rank and of all.
        epoch, sequence: of the base that this rank codes against.
        payload: where this rank's payload is coded; None if it has no base, so that only a header goes out.
        encoded: what was coded; None if nothing was, which asks for a refresh.
        encode_error: why nothing was, although this rank has a base.
        headers: of all ranks in rank order, from the first collective.
        verdict: what followed from them.
        attempt: which gather of the plan it is. sent_bytes: that this rank put into collectives.
        encode_ns, collective_ns, decode_ns: the host's time.
    """

    shard: torch.Tensor
    out: torch.Tensor
    epoch: int = 0
    sequence: int = 0
    payload: torch.Tensor | None = None
    encoded: EncodedShard | None = None
    encode_error: Exception | None = None
    headers: list[PayloadHeader] = field(default_factory=list)
    verdict: Verdict | None = None
    attempt: int = 0
    sent_bytes: int = 0
    encode_ns: int = 0
    collective_ns: int = 0
    decode_ns: int = 0
    _first_bytes: int = 0
    _received: torch.Tensor | None = None
    _rest: torch.Tensor | None = None
    _payload_apart: bool = False
    _overflow: torch.Tensor | None = None
    _work: dist.Work | None = None
    _interruption: BaseException | None = None
    _began_ns: int = 0
    _borrowed: list[torch.Tensor] = field(default_factory=list)


class Exchange:
    """Runs transfers one after another; every rank runs the same ones in the same order.

    The size of a first collective follows from headers that all ranks saw, the second one (what
    overflowed, or plain shards) from those of the first. A rank that fails in between has to join the
    second one all the same, or the others would wait for it there and take its next gather for it.
    """

    def __init__(self, agreement: Agreement, lane: GatherLane) -> None:
        self._agreement = agreement
        self._lane = lane
        self._predictor = CapacityPredictor(agreement.room_bytes)
        self._attempts = 0

    @property
    def first_bytes(self) -> int:
        """Of the next first collective, a rank. No rank has a base for the very first one: a header says so."""
        if self._attempts == 0:
            return HEADER_BYTES
        return self._agreement.fixed_bytes + self._predictor.capacity()

    def place_payload_in_place(self, transfer: Transfer) -> None:
        """Have the payload coded where the collective wants it: saves a copy, if nothing is queued before it."""
        first = self.first_bytes
        most = self._agreement.most_bytes
        # Coding may write past this rank's place, over those of the next ranks, which are filled later.
        received = self._take(transfer, self._lane.world * first + max(most - first, 0))
        own = self._lane.rank * first
        transfer.payload = received[own : own + most]
        transfer._received = received

    def place_payload_apart(self, transfer: Transfer) -> None:
        """Have the payload coded into a buffer of its own, while the size of the collective is still open."""
        transfer.payload = self._take(transfer, self._agreement.most_bytes)[: self._agreement.most_bytes]
        transfer._payload_apart = True

    def run(self, transfer: Transfer) -> None:
        """Make the collectives; afterwards everything that the verdict needs is here.

        Raises:
            GatherError: a collective failed, or ranks do not gather the same thing. The lane is then useless,
                unless the collectives were completed all the same.
        """
        with region("allgather.collective"):
            try:
                self._first(transfer)
                interruption = self.follow(transfer)
            except BaseException as error:
                self.abandon_buffers(transfer)
                raise self.abandoned(error) from error
        if interruption is not None:
            raise interruption

    def abandoned(self, error: BaseException) -> BaseException:
        """What to raise where a collective did not come to its end; the lane is useless then."""
        return collective_failure(error, self._name, self._lane)

    def abandon_buffers(self, transfer: Transfer) -> None:
        """Never use them again: a failed collective may still write into what it was given."""
        for buffer in transfer._borrowed:
            self._lane.buffers.forget(buffer)
        transfer._borrowed.clear()

    def received(self, transfer: Transfer, rank: int) -> Received:
        """What came from a rank."""
        assert transfer._received is not None
        first = transfer._first_bytes
        part = transfer._received[rank * first : (rank + 1) * first]
        rest = None
        if transfer._rest is not None:
            size = transfer.verdict.remainder_bytes if transfer.verdict else 0
            rest = transfer._rest[rank * size : (rank + 1) * size]
        return Received(part, rest)

    def release(self, transfer: Transfer) -> None:
        """Give the buffers back; nothing of what was received may be used any more."""
        for buffer in transfer._borrowed:
            self._lane.buffers.give(buffer)
        transfer._borrowed.clear()
        transfer.payload = transfer._received = transfer._rest = transfer._overflow = transfer._work = None

    @property
    def _name(self) -> str:
        return self._agreement.plans[0].name

    def _first(self, transfer: Transfer) -> None:
        """The first collective, from beginning to end."""
        self.issue(transfer)
        self.arrive(transfer)

    def issue(self, transfer: Transfer) -> None:
        """Begin the first collective. What interrupts it is noted, for it may be completed all the same."""
        self._lane.verify()
        transfer._began_ns = time.perf_counter_ns()
        first = transfer._first_bytes = self.first_bytes
        world, rank = self._lane.world, self._lane.rank
        if transfer._received is None:
            transfer._received = self._take(transfer, world * first)
        places = transfer._received[: world * first].view(world, first)
        own = places[rank]
        transfer._overflow = self._beyond(transfer, first)
        if transfer._payload_apart and transfer.payload is not None:
            own = transfer.payload[:first]
        # A buffer that was used before holds old headers.
        places[:, :HEADER_BYTES].zero_()
        transfer.attempt = self._attempts
        write_bytes(self._header(transfer, first).to_bytes(), own[:HEADER_BYTES])
        self._attempts += 1
        transfer.sent_bytes += first
        try:
            transfer._work = self._lane.start_all_gather(transfer._received[: world * first], own)
        except BaseException as error:
            transfer._interruption = described_failure(error, self._name, self._lane)
        self._copy_own(transfer)

    def arrive(self, transfer: Transfer) -> None:
        """Wait for the first collective."""
        try:
            if transfer._work is not None:
                transfer._work.wait()
        except BaseException as error:
            transfer._interruption = described_failure(error, self._name, self._lane)

    def follow(self, transfer: Transfer) -> BaseException | None:
        """Read what all ranks said, and join what that asks every rank to join.

        Returns:
            what interrupted the first collective although it was completed.
        """
        self._read_verdict(transfer)
        verdict = transfer.verdict
        assert verdict is not None
        if verdict.refresh:
            gather_plain(self._lane, self._agreement, transfer.out, transfer.shard)
            transfer.sent_bytes += self._agreement.most_values * transfer.shard.element_size()
        elif verdict.remainder_bytes:
            size = verdict.remainder_bytes
            rest = transfer._rest = self._take(transfer, self._lane.world * size)[: self._lane.world * size]
            own = rest[self._lane.rank * size : (self._lane.rank + 1) * size]
            if transfer._overflow is not None:
                own[: transfer._overflow.numel()].copy_(transfer._overflow)
            self._lane.all_gather(rest, own)
            transfer.sent_bytes += size
        transfer.collective_ns = time.perf_counter_ns() - transfer._began_ns
        return transfer._interruption

    def _read_verdict(self, transfer: Transfer) -> None:
        assert transfer._received is not None
        world, first = self._lane.world, transfer._first_bytes
        try:
            self._read_headers(transfer, transfer._received[: world * first].view(world, first))
        except CodedDataError as error:
            if transfer._interruption is not None:
                raise transfer._interruption from error
            raise GatherError(f"gather {self._name!r}: {error}") from error
        # Everything came that the other ranks saw too, interrupted or not.
        transfer.verdict = judge(transfer.headers, self._name)
        if not transfer.verdict.refresh:
            needs = [self._agreement.need(rank, header.variable_bytes) for rank, header in enumerate(transfer.headers)]
            self._predictor.record(max(needs))

    def _header(self, transfer: Transfer, first: int) -> PayloadHeader:
        base = (transfer.epoch, transfer.sequence, self._agreement.digest, self._attempts)
        if transfer.encoded is None:
            return PayloadHeader(*base, coder_code=self._agreement.coder_code, refresh_wanted=True)
        return PayloadHeader(
            *base,
            capacity_bytes=self._agreement.room(self._lane.rank, first),
            variable_bytes=transfer.encoded.variable_bytes,
            coder_code=self._agreement.coder_code,
        )

    def _beyond(self, transfer: Transfer, first: int) -> torch.Tensor | None:
        """The end of this rank's payload, for which the first collective has no room."""
        if transfer.encoded is None or transfer.payload is None:
            return None
        end = self._agreement.shapes[self._lane.rank].fixed_bytes + transfer.encoded.variable_bytes
        if end <= first:
            return None
        beyond = transfer.payload[first:end]
        # In place, it lies where the next ranks' payloads will arrive.
        return beyond if transfer._payload_apart else beyond.clone()

    def _read_headers(self, transfer: Transfer, places: torch.Tensor) -> None:
        together = read_bytes(places[:, :HEADER_BYTES])
        headers = []
        # Where nothing changed, all headers are the same.
        parsed: dict[bytes, PayloadHeader] = {}
        for rank in range(self._lane.world):
            data = together[rank * HEADER_BYTES : (rank + 1) * HEADER_BYTES]
            try:
                header = parsed.get(data) or PayloadHeader.from_bytes(data)
                headers.append(self._possible(header, rank, places.shape[1]))
            except CodedDataError as error:
                raise CodedDataError(f"from rank {rank}: {error}") from error
            parsed[data] = header
        transfer.headers = headers

    def _possible(self, header: PayloadHeader, rank: int, first: int) -> PayloadHeader:
        """The header, if its sizes can be: they say how much memory the second collective takes."""
        shape = self._agreement.shapes[rank]
        if header.refresh_wanted or header.plan_digest != self._agreement.digest:
            return header
        if header.variable_bytes > shape.variable_bound:
            raise CodedDataError(f"{header.variable_bytes} coded bytes; {shape.variable_bound} are possible")
        if header.capacity_bytes != self._agreement.room(rank, first):
            raise CodedDataError(f"room of {header.capacity_bytes} bytes, not {self._agreement.room(rank, first)}")
        return header

    def _copy_own(self, transfer: Transfer) -> None:
        """This rank's own part of the output needs no coding; not for a refresh, which brings all parts."""
        if transfer.encoded is not None:
            own = self._agreement.of_rank(transfer.out, self._lane.rank)
            if own.data_ptr() != transfer.shard.data_ptr():
                own.copy_(transfer.shard)

    def _take(self, transfer: Transfer, size: int) -> torch.Tensor:
        buffer = self._lane.buffers.take(size)
        transfer._borrowed.append(buffer)
        return buffer
