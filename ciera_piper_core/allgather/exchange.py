"""The collectives of one plan's gathers: the coded payloads, and what has to follow them on every rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.allgather.capacity import CapacityPredictor
from ciera_piper_core.allgather.errors import GatherError
from ciera_piper_core.allgather.protocol import Verdict, judge
from ciera_piper_core.allgather.shard_coding import EncodedShard, Received
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.payload import HEADER_BYTES, PayloadHeader, read_bytes, write_bytes
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from ciera_piper_core.allgather.agreement import Agreement
    from ciera_piper_core.allgather.lane import GatherLane


@dataclass
class Transfer:
    """One gather on its way.

    Attributes:
        shard, out: bits of the values, of this rank and of all.
        epoch, sequence: of the base that this rank codes against.
        payload: where this rank's payload is coded; None if it has no base, so that only a header goes out.
        encoded: what was coded; None if nothing was, which asks for a refresh.
        encode_error: why nothing was, although this rank has a base.
        headers, heads: of all ranks in rank order, from the first collective; heads are bytes with the records.
        verdict: what followed from them.
        attempt: which gather of the plan it is. sent_bytes: that this rank put into collectives.
        encode_ns, collective_ns: the host's time.
    """

    shard: torch.Tensor
    out: torch.Tensor
    epoch: int
    sequence: int
    payload: torch.Tensor | None = None
    encoded: EncodedShard | None = None
    encode_error: Exception | None = None
    headers: list[PayloadHeader] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    verdict: Verdict | None = None
    attempt: int = 0
    sent_bytes: int = 0
    encode_ns: int = 0
    collective_ns: int = 0
    _first_bytes: int = 0
    _received: torch.Tensor | None = None
    _rest: torch.Tensor | None = None
    _payload_apart: bool = False
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
        began = time.perf_counter_ns()
        with region("allgather.collective"):
            try:
                interruption = self._first(transfer)
                self._second(transfer)
            except BaseException as error:
                failure = self.abandoned(error)
                # A failed collective may still write into what it was given.
                for buffer in transfer._borrowed:
                    self._lane.buffers.forget(buffer)
                transfer._borrowed.clear()
                raise failure from error
        transfer.collective_ns = time.perf_counter_ns() - began
        if interruption is not None:
            raise interruption

    def run_plain(self, transfer: Transfer) -> None:
        """The plain gather alone, for a plan that codes nothing: no header, no state.

        Raises:
            GatherError: it failed, and the lane with it.
        """
        began = time.perf_counter_ns()
        with region("allgather.collective"):
            try:
                self.plain(transfer.out, transfer.shard)
            except BaseException as error:
                raise self.abandoned(error) from error
        transfer.attempt = self._attempts
        self._attempts += 1
        transfer.sent_bytes = self._agreement.most_values * transfer.shard.element_size()
        transfer.collective_ns = time.perf_counter_ns() - began

    def abandoned(self, error: BaseException) -> BaseException:
        """What to raise where a collective did not come to its end; the lane is useless then."""
        self._lane.fail(f"gather {self._name!r} was left amid its collectives ({_brief(error)})")
        return self._failure(error)

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
        transfer.payload = transfer._received = transfer._rest = None

    @property
    def _name(self) -> str:
        return self._agreement.plans[0].name

    def _first(self, transfer: Transfer) -> BaseException | None:
        """The first collective, and what follows from it.

        Returns:
            what interrupted it although it was completed: everything came that the other ranks saw too.
        """
        first = transfer._first_bytes = self.first_bytes
        world, rank = self._lane.world, self._lane.rank
        if transfer._received is None:
            transfer._received = self._take(transfer, world * first)
        places = transfer._received[: world * first].view(world, first)
        own = places[rank]
        overflow = self._overflow(transfer, first)
        if transfer._payload_apart and transfer.payload is not None:
            own = transfer.payload[:first]
        # A buffer that was used before holds old headers.
        places[:, :HEADER_BYTES].zero_()
        transfer.attempt = self._attempts
        write_bytes(self._header(transfer, first).to_bytes(), own[:HEADER_BYTES])
        self._attempts += 1
        transfer.sent_bytes += first
        interruption: BaseException | None = None
        try:
            self._lane.all_gather(transfer._received[: world * first], own, lambda: self._copy_own(transfer))
        except BaseException as error:
            interruption = self._failure(error)
        try:
            self._read_heads(transfer, places)
        except CodedDataError as error:
            if interruption is not None:
                raise interruption from error
            raise GatherError(f"gather {self._name!r}: {error}") from error
        transfer.verdict = judge(transfer.headers, self._name)
        if not transfer.verdict.refresh:
            needs = [self._agreement.need(r, header.variable_bytes) for r, header in enumerate(transfer.headers)]
            self._predictor.record(max(needs))
            if transfer.verdict.remainder_bytes:
                self._prepare_rest(transfer, transfer.verdict.remainder_bytes, overflow)
        return interruption

    def _second(self, transfer: Transfer) -> None:
        """What the verdict asks every rank to join."""
        verdict = transfer.verdict
        assert verdict is not None
        if verdict.refresh:
            self.plain(transfer.out, transfer.shard)
            transfer.sent_bytes += self._agreement.most_values * transfer.shard.element_size()
        elif transfer._rest is not None:
            size = verdict.remainder_bytes
            own = self._lane.rank * size
            rest = transfer._rest[: self._lane.world * size]
            self._lane.all_gather(rest, rest[own : own + size])
            transfer.sent_bytes += size

    def plain(self, out: torch.Tensor, shard: torch.Tensor) -> None:
        """The plain gather of whole shards; uneven ones are padded to the largest."""
        agreement, world = self._agreement, self._lane.world
        if not agreement.most_values:
            return
        if agreement.even:
            self._lane.all_gather(out.view(torch.uint8), shard.view(torch.uint8))
            return
        size = agreement.most_values * shard.element_size()
        received = self._lane.buffers.take(world * size)
        places = received[: world * size].view(world, size)
        own = shard.view(torch.uint8)
        places[self._lane.rank, : own.numel()].copy_(own)
        self._lane.all_gather(received[: world * size], places[self._lane.rank])
        for rank in range(world):
            part = agreement.of_rank(out, rank).view(torch.uint8)
            part.copy_(places[rank, : part.numel()])
        self._lane.buffers.give(received)

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

    def _overflow(self, transfer: Transfer, first: int) -> torch.Tensor | None:
        """The end of this rank's payload, for which the first collective has no room."""
        if transfer.encoded is None or transfer.payload is None:
            return None
        end = self._agreement.shapes[self._lane.rank].fixed_bytes + transfer.encoded.variable_bytes
        if end <= first:
            return None
        beyond = transfer.payload[first:end]
        # In place, it lies where the next ranks' payloads will arrive.
        return beyond if transfer._payload_apart else beyond.clone()

    def _prepare_rest(self, transfer: Transfer, size: int, overflow: torch.Tensor | None) -> None:
        transfer._rest = self._take(transfer, self._lane.world * size)
        if overflow is not None:
            own = self._lane.rank * size
            transfer._rest[own : own + overflow.numel()].copy_(overflow)

    def _read_heads(self, transfer: Transfer, places: torch.Tensor) -> None:
        size = min(self._agreement.head_bytes, places.shape[1])
        data = read_bytes(places[:, :size])
        transfer.heads = [data[rank * size : (rank + 1) * size] for rank in range(self._lane.world)]
        headers = []
        for rank, head in enumerate(transfer.heads):
            try:
                headers.append(self._possible(PayloadHeader.from_bytes(head[:HEADER_BYTES]), rank, places.shape[1]))
            except CodedDataError as error:
                raise CodedDataError(f"from rank {rank}: {error}") from error
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

    def _failure(self, error: BaseException) -> BaseException:
        if not isinstance(error, Exception) or isinstance(error, GatherError):
            return error
        failure = GatherError(
            f"gather {self._name!r}: a collective failed on rank {self._lane.rank}: {_brief(error)}; "
            "a rank may have died, or hangs"
        )
        failure.__cause__ = error
        return failure


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
