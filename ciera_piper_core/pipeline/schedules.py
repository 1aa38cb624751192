"""The schedules that the executor runs: those that plans are made for, and breadth first over several stages a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciera_piper_core.planner import schedules as planned

if TYPE_CHECKING:
    from ciera_piper_core.planner.schedules import Schedule

LOOPED_BFS = "looped_bfs"
"""All microbatches through one stage of a rank, then through its next: more in flight than with 1F1B, fewer waits
than with GPipe. Plans have no use for it."""

SCHEDULES: tuple[str, ...] = (*planned.SCHEDULES, LOOPED_BFS)

TORCH_CLASS: dict[str, str] = {**dict[str, str](planned.TORCH_CLASS.items()), LOOPED_BFS: "LoopedBFS"}
"""What ``torch.distributed.pipelining.schedules.get_schedule_class`` takes."""

SINGLE_STAGE = frozenset({"gpipe", "1f1b"})
"""They have one stage a rank, and torch wants that stage, not a list."""


def schedule_named(name: str) -> str:
    """The schedule from its own name or torch's, in any case: ``zbv``, ``ZBVZeroBubble``.

    Raises:
        ValueError: unknown; the message lists the known ones.
    """
    for schedule, torch_name in TORCH_CLASS.items():
        if name.lower() in (schedule, torch_name.lower()):
            return schedule
    raise ValueError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")


def rank_stages(schedule: str, pp: int) -> tuple[tuple[int, ...], ...]:
    """By pipeline rank, its stages in the order in which a microbatch goes through them."""
    if schedule == LOOPED_BFS:
        return tuple((rank, rank + pp) for rank in range(pp))
    return tuple(planned.stage_of_chunk(_planned(schedule), pp, rank) for rank in range(pp))


def splits_backward(schedule: str) -> bool:
    """Whether it runs (some) backward passes in two parts: for the inputs, and later for the weights."""
    return schedule in planned.SPLIT_BACKWARD


def why_not(schedule: str, pp: int, microbatches: int, layers: int) -> str | None:
    """Why the schedule cannot run so, and what to do, in one line; None if it can.

    That includes fewer microbatches than stages, where a schedule needs as many.
    """
    if schedule == LOOPED_BFS:
        stages = 2 * pp
        if stages > layers:
            return f"{schedule} has {stages} stages ({pp} ranks of 2) but the model {layers} layers; use a smaller pp"
        return None
    return planned.why_not(_planned(schedule), pp, microbatches, layers)


def _planned(schedule: str) -> Schedule:
    if schedule not in planned.SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    return schedule
