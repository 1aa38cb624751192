"""A coded gather on its way through the lane: each stage is coded, carried and decoded while others are, too."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.allgather.exchange import Transfer
    from ciera_piper_core.allgather.lane import GatherLane
    from ciera_piper_core.allgather.stage import Stage


@dataclass
class StagePart:
    """One stage of one gather."""

    stage: Stage
    transfer: Transfer


@dataclass
class StartedPart(StagePart):
    """One that the lane's threads code and carry.

    Attributes:
        encoded: done when its payload is ready. arrived: done when its collectives are.
    """

    encoded: Future[None]
    arrived: Future[None]


def run_part_here(part: StagePart) -> None:
    """All of a gather of one stage on this thread, while nothing else is on the lane."""
    stage, transfer = part.stage, part.transfer
    if stage.valid:
        stage.exchange.place_payload_in_place(transfer)
    stage.encode(transfer)
    stage.exchange.run(transfer)
    stage.complete(transfer)


def start_parts(parts: Sequence[StagePart], lane: GatherLane) -> tuple[list[StartedPart], Future[None]]:
    """Queue coding and collectives of all parts; the last that is returned is done when all arrived, or failed."""
    started = []
    for part in parts:
        if part.stage.valid:
            part.stage.exchange.place_payload_apart(part.transfer)
        encoded = lane.code(partial(part.stage.encode, part.transfer))
        started.append(StartedPart(part.stage, part.transfer, encoded, Future()))
    return started, lane.carry(lambda: _carry(started))


def complete_parts(parts: Sequence[StartedPart]) -> None:
    """Decode each part when it has arrived, on this thread, while later ones are on the wire.

    Raises:
        GatherError, CodedDataError: of the first part that failed. Every other one was brought to its end.
    """
    failure: Exception | None = None
    for part in parts:
        try:
            part.arrived.result()
            part.stage.complete(part.transfer)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _carry(parts: Sequence[StartedPart]) -> None:
    """The collectives of all parts, in an order that does not depend on time, so that it is the same on all ranks.

    A part is issued before the one before it is waited for, so that the wire is never empty; what that
    one's headers ask for comes after.
    """
    if len(parts) == 1:
        _carry_alone(parts[0])
        return
    undone = list(parts)
    before: StartedPart | None = None
    try:
        with region("allgather.collective"):
            for part in parts:
                part.encoded.result()
                part.stage.exchange.issue(part.transfer)
                if before is not None:
                    before.stage.exchange.arrive(before.transfer)
                    _follow(undone.pop(0))
                before = part
            if before is not None:
                before.stage.exchange.arrive(before.transfer)
                _follow(undone.pop(0))
    except BaseException as error:
        failure = parts[0].stage.exchange.abandoned(error)
        for part in parts:
            part.stage.exchange.abandon_buffers(part.transfer)
            if not part.arrived.done():
                part.arrived.set_exception(failure)


def _follow(part: StartedPart) -> None:
    try:
        interruption = part.stage.exchange.follow(part.transfer)
    except BaseException as error:
        part.arrived.set_exception(part.stage.exchange.abandoned(error))
        raise
    if interruption is not None:
        part.arrived.set_exception(interruption)
    else:
        part.arrived.set_result(None)


def _carry_alone(part: StartedPart) -> None:
    try:
        part.encoded.result()
        part.stage.exchange.run(part.transfer)
    except BaseException as error:
        part.arrived.set_exception(error)
    else:
        part.arrived.set_result(None)
