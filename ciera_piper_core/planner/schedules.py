"""Pipeline schedules: their names, stages, limits, and how many microbatches are in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

TORCH_CLASS: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""What ``torch.distributed.pipelining.schedules.get_schedule_class`` takes."""

V_SHAPED: frozenset[Schedule] = frozenset({"zbv", "dualpipev"})
"""Their second chunks go back from the last rank to the first."""

SPLIT_BACKWARD: frozenset[Schedule] = frozenset({"zero_bubble", "zbv", "dualpipev"})
"""They run (some) backwards in two parts: for the inputs, and later for the weights."""

CHOICE_OF_CHUNKS: frozenset[Schedule] = frozenset({"interleaved", "zero_bubble"})

Limit = Literal["stages", "microbatches", "rounds"]
LIMITS: dict[Limit, str] = {
    "stages": "every stage needs a layer",
    "microbatches": "1f1b needs as many microbatches as stages, and so does dualpipev",
    "rounds": "interleaved and zero_bubble need microbatches that divide into rounds of at least pp",
}


def chunks_of(schedule: Schedule, chunks: int | None = None) -> int:
    """Stages a rank: ``chunks`` where the schedule leaves the choice, and 2 if that is None.

    Raises:
        ValueError: an unknown schedule, or a number of chunks that it does not have.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}")
    usual = 1 if schedule in ("gpipe", "1f1b") else 2
    if chunks is None:
        return usual
    if schedule not in CHOICE_OF_CHUNKS and chunks != usual:
        raise ValueError(f"{schedule} has {usual} stage{'s' * (usual > 1)} a rank, not {chunks}; leave chunks out")
    if chunks < 1:
        raise ValueError(f"{schedule} cannot have {chunks} stages a rank; it takes 1 or more")
    return chunks


def stage_of_chunk(schedule: Schedule, pp: int, rank: int, *, chunks: int | None = None) -> tuple[int, ...]:
    """The stages of a rank, in the order in which a microbatch goes through them."""
    if schedule in V_SHAPED:
        return (rank, 2 * pp - 1 - rank)
    return tuple(range(rank, pp * chunks_of(schedule, chunks), pp))


def broken_limits(
    schedule: Schedule, pp: ArrayLike, microbatches: ArrayLike, layers: int | None = None, *, chunks: int | None = None
) -> dict[Limit, NDArray[np.bool_]]:
    """Where each limit of the schedule is broken: masks of the shape that ``pp`` and ``microbatches``
    broadcast to, one a key of ``LIMITS``.

    Those on microbatches are what torch 2.13 raises on; GPipe and ZBV have none.

    Args:
        layers: of the model, or None to leave that limit out.
    """
    count = chunks_of(schedule, chunks)
    ranks, batches = np.broadcast_arrays(np.asarray(pp, dtype=np.int64), np.asarray(microbatches, dtype=np.int64))
    if ranks.size and (ranks.min() < 1 or batches.min() < 1):
        raise ValueError("a pipeline needs at least one rank and one microbatch")
    never = np.zeros(ranks.shape, dtype=np.bool_)
    stages = ranks * count
    return {
        "stages": never if layers is None else stages > layers,
        "microbatches": batches < stages if schedule in ("1f1b", "dualpipev") else never,
        "rounds": batches % np.maximum(1, batches // ranks) != 0 if schedule in CHOICE_OF_CHUNKS else never,
    }


def allowed(
    schedule: Schedule, pp: ArrayLike, microbatches: ArrayLike, layers: int | None = None, *, chunks: int | None = None
) -> NDArray[np.bool_]:
    """Where no limit is broken; see ``broken_limits``."""
    broken = broken_limits(schedule, pp, microbatches, layers, chunks=chunks)
    return np.asarray(~np.logical_or.reduce(list(broken.values())))


def why_not(
    schedule: Schedule, pp: int, microbatches: int, layers: int | None = None, *, chunks: int | None = None
) -> str | None:
    """The first limit that is broken and what to do, in one line; None if the schedule can run."""
    count = chunks_of(schedule, chunks)
    stages = pp * count
    for limit, mask in broken_limits(schedule, pp, microbatches, layers, chunks=chunks).items():
        if not mask:
            continue
        if limit == "stages":
            of = f" ({pp} ranks of {count})" if count > 1 else ""
            return f"{schedule} has {stages} stages{of} but the model {layers} layers; use fewer pipeline ranks"
        if limit == "microbatches":
            return f"{schedule} needs at least {stages} microbatches, one a stage, not {microbatches}; use more"
        rounds = microbatches // pp
        return (
            f"{schedule} runs {microbatches} microbatches in {rounds} rounds on {pp} ranks, which must be equal; "
            f"use {microbatches // rounds * rounds} or {(microbatches // rounds + 1) * rounds}"
        )
    return None


def check(
    schedule: Schedule, pp: int, microbatches: int, layers: int | None = None, *, chunks: int | None = None
) -> None:
    """Raises ``ValueError`` with ``why_not``'s reason."""
    reason = why_not(schedule, pp, microbatches, layers, chunks=chunks)
    if reason:
        raise ValueError(reason)


def in_flight(schedule: Schedule, pp: int, microbatches: int, *, chunks: int | None = None) -> NDArray[np.float64]:
    """The most microbatches that each rank holds activations of at once, shape ``(pp,)``; see ``in_flight_of_rank``.

    Raises:
        ValueError: a limit of the schedule is broken.
    """
    check(schedule, pp, microbatches, chunks=chunks)
    return in_flight_of_rank(schedule, pp, microbatches, np.arange(pp), chunks=chunks)


def in_flight_of_rank(
    schedule: Schedule, pp: ArrayLike, microbatches: ArrayLike, rank: ArrayLike, *, chunks: int | None = None
) -> NDArray[np.float64]:
    """The most microbatches that ``rank`` holds activations of at once, of the shape that the arguments broadcast to.

    In units of what all its chunks together keep of one microbatch: half a unit is one of two
    chunks. A backward gives back what its forward kept; one that is split does so at its weight
    part, since autograd's graph holds everything until then. Equal to ``peak_held`` over
    ``operations`` where the limits are kept, which is not checked here.
    """
    count = chunks_of(schedule, chunks)
    ranks, batches, own = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.int64) for value in (pp, microbatches, rank))
    )
    most = count * batches
    if schedule == "gpipe":
        held = most
    elif schedule == "1f1b":
        held = ranks - own
    elif schedule == "zbv":
        held = np.minimum(batches, 2 * ranks - 1 - own) + np.minimum(batches, own + 1)
    elif schedule == "dualpipev":
        # In a pair, the forward's are there before the backward's are gone.
        held = np.minimum(2 * ranks + 1, most)
    else:
        a_round = batches // np.maximum(1, batches // ranks)
        # Forwards before the first backward; the weight parts of zero bubble come `own` operations late.
        late = own if schedule == "zero_bubble" else 0
        ahead = (count - 1) * a_round + (2 if schedule == "interleaved" else 1) * (ranks - 1 - own)
        held = np.minimum(ahead + 1 + late, most)
    return np.asarray(held / count, dtype=np.float64)
