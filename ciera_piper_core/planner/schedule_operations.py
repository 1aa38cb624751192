"""The operations of every pipeline schedule, in the order in which each rank runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ciera_piper_core.planner.schedules import check, chunks_of, stage_of_chunk

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.planner.schedules import Schedule

Kind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; backward for the inputs, which others wait for; backward for the weights."""


class Operation(NamedTuple):
    """One operation of a rank, on one microbatch.

    Attributes:
        kind: what it computes.
        stage: of the pipeline, from 0; a rank with several chunks has several.
        microbatch: from 0.
        beside: of a forward in DualPipeV: the whole backward that runs beside it. The two are one
            operation: it starts when both have their inputs, and what it gives leaves at its end.
    """

    kind: Kind
    stage: int
    microbatch: int
    beside: Operation | None = None

    @property
    def parts(self) -> tuple[Operation, ...]:
        """The operation alone, or both of a pair: forward, then backward."""
        return (self,) if self.beside is None else (self._replace(beside=None), self.beside)

    def __str__(self) -> str:
        """As ``3F0``, or ``3F4+2B1`` for a pair."""
        return "+".join(f"{part.stage}{part.kind}{part.microbatch}" for part in self.parts)


Order = list[list[Operation]]
"""The operations of each rank, first to last."""


def operations(schedule: Schedule, pp: int, microbatches: int, *, chunks: int | None = None) -> Order:
    """What each rank runs, in order: ``pp`` lists.

    The order is that of ``torch.distributed.pipelining`` (2.13). Idle slots are left out: when an
    operation starts follows from what it waits for.

    Args:
        chunks: stages a rank, for the schedules that have a choice; None for the usual number.

    Raises:
        ValueError: a limit of the schedule is broken.
    """
    check(schedule, pp, microbatches, chunks=chunks)
    count = chunks_of(schedule, chunks)
    if schedule == "gpipe":
        return [_gpipe(rank, microbatches) for rank in range(pp)]
    if schedule == "1f1b":
        return [_one_forward_one_backward(rank, pp, microbatches) for rank in range(pp)]
    if schedule == "zbv":
        return [_zbv(rank, pp, microbatches) for rank in range(pp)]
    if schedule == "dualpipev":
        return [_dualpipev(rank, pp, microbatches) for rank in range(pp)]
    return [_interleaved(schedule, rank, pp, microbatches, count) for rank in range(pp)]


def peak_held(order: Order, per_stage: ArrayLike) -> NDArray[np.float64]:
    """The most that each rank holds at once, shape ``(len(order),)``, where a forward takes
    ``per_stage[stage]`` and its backward gives it back.

    A backward that is split gives back at its weight part: the graph that autograd keeps for it
    still holds what the forward saved.

    Args:
        per_stage: what one microbatch takes in each stage, in any unit, shape ``(stages,)``.
    """
    held = np.asarray(per_stage, dtype=np.float64)
    sign = {"F": 1, "B": -1, "I": 0, "W": -1}
    peaks = []
    for rank in order:
        steps = [sign[part.kind] * held[part.stage] for operation in rank for part in operation.parts]
        peaks.append(max(0.0, float(np.max(np.cumsum(steps), initial=0.0))))
    return np.array(peaks)


def _gpipe(rank: int, microbatches: int) -> list[Operation]:
    forward = [Operation("F", rank, microbatch) for microbatch in range(microbatches)]
    return forward + [Operation("B", rank, microbatch) for microbatch in range(microbatches)]


def _one_forward_one_backward(rank: int, pp: int, microbatches: int) -> list[Operation]:
    ahead = pp - 1 - rank
    rank_operations = []
    for step in range(microbatches + ahead):
        if step < microbatches:
            rank_operations.append(Operation("F", rank, step))
        if step >= ahead:
            rank_operations.append(Operation("B", rank, step - ahead))
    return rank_operations


def _interleaved(schedule: Schedule, rank: int, pp: int, microbatches: int, chunks: int) -> list[Operation]:
    """Interleaved 1F1B, and the zero bubble form of it: rounds of about ``pp`` microbatches go through
    one chunk after the other."""
    split = schedule == "zero_bubble"
    a_round = microbatches // max(1, microbatches // pp)
    total = chunks * microbatches
    ahead = min((chunks - 1) * a_round + (1 if split else 2) * (pp - 1 - rank), total)

    def place(step: int) -> tuple[int, int]:
        """Chunk, counted in the direction of travel, and microbatch of the step-th operation of a kind."""
        return step // a_round % chunks, step // (a_round * chunks) * a_round + step % a_round

    def backward(kind: Kind, step: int) -> Operation:
        chunk, microbatch = place(step)
        return Operation(kind, (chunks - 1 - chunk) * pp + rank, microbatch)

    rank_operations = []
    for step in range(total + ahead):
        if step < total:
            chunk, microbatch = place(step)
            rank_operations.append(Operation("F", chunk * pp + rank, microbatch))
        if step >= ahead:
            rank_operations.append(backward("I" if split else "B", step - ahead))
            # Weights wait for as many steps as the rank is away from the first.
            if split and step - ahead >= rank:
                rank_operations.append(backward("W", step - ahead - rank))
    if split:
        rank_operations += [backward("W", step) for step in range(max(0, total - rank), total)]
    return rank_operations


class _Writer:
    """Appends operations of the two chunks of a rank, each kind's microbatches in turn."""

    def __init__(self, rank: int, pp: int) -> None:
        self.stages = stage_of_chunk("zbv", pp, rank)
        self.written: list[Operation] = []
        self.counts = {kind: [0, 0] for kind in ("F", "I")}
        self.weights_due: list[Operation] = []

    def _next(self, kind: Kind, chunk: int) -> Operation:
        counts = self.counts["I" if kind == "B" else kind]
        counts[chunk] += 1
        return Operation(kind, self.stages[chunk], counts[chunk] - 1)

    def forward(self, chunk: int) -> None:
        self.written.append(self._next("F", chunk))

    def backward(self, chunk: int) -> None:
        self.written.append(self._next("B", chunk))

    def inputs(self, chunk: int) -> None:
        operation = self._next("I", chunk)
        self.written.append(operation)
        self.weights_due.append(operation._replace(kind="W"))

    def weights(self, chunk: int | None = None) -> None:
        """The oldest weight part that is due, of one chunk or of either; nothing if there is none."""
        for place, operation in enumerate(self.weights_due):
            if chunk is None or operation.stage == self.stages[chunk]:
                self.written.append(self.weights_due.pop(place))
                return

    def pair(self, forward: int, backward: int) -> None:
        operation = self._next("F", forward)
        self.written.append(operation._replace(beside=self._next("B", backward)))


def _zbv(rank: int, pp: int, microbatches: int) -> list[Operation]:
    """Zero bubble over a V: a rank has the stage that far from the start, and the one that far from the end."""
    # With few microbatches the order is that of a full pipeline, without the microbatches that are not there.
    full = max(2 * pp - 1, microbatches)
    writer = _Writer(rank, pp)
    forwards = writer.counts["F"]
    for _ in range(2 * (pp - rank) - 1):
        writer.forward(0)
    for _ in range(rank):
        writer.forward(1)
        writer.forward(0)
    for _ in range(pp - rank):
        writer.forward(1)
        writer.inputs(1)
        writer.weights(1)
    while forwards[1] < forwards[0] or forwards[0] < full:
        if forwards[0] < full:
            writer.forward(0)
        writer.inputs(0)
        writer.weights(0)
        writer.forward(1)
        writer.inputs(1)
        writer.weights(1)
    for _ in range(rank):
        writer.inputs(0)
        writer.inputs(1)
    for _ in range(pp - rank):
        writer.inputs(0)
        writer.weights(0)
    while writer.weights_due:
        writer.weights(1 if any(due.stage == writer.stages[1] for due in writer.weights_due) else 0)
    return [operation for operation in writer.written if operation.microbatch < microbatches]


def _dualpipev(rank: int, pp: int, microbatches: int) -> list[Operation]:
    """DualPipe over a V: in the steady state a forward of one chunk runs beside a backward of the other."""
    writer = _Writer(rank, pp)
    after = pp - 1 - rank
    for _ in range(2 * after):
        writer.forward(0)
    for _ in range(rank + 1):
        writer.forward(0)
        writer.forward(1)
    for _ in range(after):
        writer.inputs(1)
        writer.weights()
        writer.forward(1)
    for step in range(microbatches - 2 * pp + rank + 1):
        if step == 0 and after == 0:
            # On the last rank the first two stand alone: the backward is of the forward just before.
            writer.forward(0)
            writer.backward(1)
        else:
            writer.pair(forward=0, backward=1)
        writer.pair(forward=1, backward=0)
    for _ in range(after):
        writer.backward(1)
        writer.pair(forward=1, backward=0)
    # Half of the last backwards are split, to have weight parts for the slots that are idle after them.
    last = 2 * (rank + 1)
    unsplit = last // 2 // 2 * 2 + (0 if rank % 2 == 1 else 1)
    for step in range(last):
        (writer.backward if step < unsplit else writer.inputs)(1 - step % 2)
    for _ in range(after):
        writer.weights()
        writer.inputs(0)
    for _ in range(rank + 1):
        writer.weights()
    return writer.written
