"""When each operation of a pipeline schedule runs: an event simulation, exact for any stages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.planner.schedule_operations import Operation, Order


@dataclass(frozen=True)
class Timeline:
    """When each operation runs.

    Attributes:
        order: the operations of each rank.
        start_seconds, end_seconds: of each operation of a rank, one array a rank, in that order.
        step_seconds: when the last operation of all ends.
        busy_seconds: what each rank computes, shape ``(ranks,)``.
    """

    order: Order
    start_seconds: tuple[NDArray[np.float64], ...]
    end_seconds: tuple[NDArray[np.float64], ...]
    step_seconds: float
    busy_seconds: NDArray[np.float64]

    @property
    def bubble(self) -> NDArray[np.float64]:
        """The share of the step in which each rank waits, from 0 to 1, shape ``(ranks,)``."""
        if self.step_seconds == 0.0:
            return np.zeros_like(self.busy_seconds)
        return np.maximum(0.0, 1.0 - self.busy_seconds / self.step_seconds)


def simulate(
    order: Order,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    p2p: ArrayLike = 0.0,
    *,
    overlapped: ArrayLike = 0.0,
) -> Timeline:
    """Runs the operations of each rank in their order, each as soon as its inputs are there.

    A forward waits for the same microbatch's forward in the stage before it, a backward for the
    backward in the stage after it; both for ``p2p`` more if that stage is on another rank. A
    transfer occupies nobody: it runs beside computation, and any number at once.

    Args:
        order: from ``operations``.
        forward, backward_input, backward_weight: seconds of each **stage** (chunk) for one
            microbatch, shape ``(stages,)`` or a number. A whole backward takes the sum of the
            latter two; recomputation belongs to ``backward_input``.
        p2p: seconds to the next stage and back, shape ``(stages - 1,)`` by the boundary, or a number.
        overlapped: seconds that a pair of DualPipeV takes less than its forward and backward one
            after the other, a number or by the stage of its forward.

    Raises:
        ValueError: negative or infinite seconds, or an order in which some operation never gets its inputs.
    """
    stage_rank = {part.stage: rank for rank, ops in enumerate(order) for op in ops for part in op.parts}
    stages = len(stage_rank)
    forwards = _seconds("forward", forward, stages)
    inputs = _seconds("backward_input", backward_input, stages)
    weights = _seconds("backward_weight", backward_weight, stages)
    delays = _seconds("p2p", p2p, max(0, stages - 1))
    saved = _seconds("overlapped", overlapped, stages)
    alone = {
        "F": forwards,
        "B": [i + w for i, w in zip(inputs, weights, strict=True)],
        "I": inputs,
        "W": weights,
    }

    def lasts(operation: Operation) -> float:
        seconds = sum(alone[part.kind][part.stage] for part in operation.parts)
        if operation.beside is None:
            return seconds
        if saved[operation.stage] > seconds:
            raise ValueError(
                f"overlapped is {saved[operation.stage]:g} s, but the pair {operation} takes {seconds:g} s"
            )
        return seconds - saved[operation.stage]

    def waits_for(operation: Operation) -> list[tuple[bool, int, int, float]]:
        """What must have ended, as (forward?, stage, microbatch), and the seconds from there to here."""
        needs = []
        for kind, stage, microbatch, _ in operation.parts:
            if kind == "F" and stage:
                delay = delays[stage - 1] if stage_rank[stage - 1] != stage_rank[stage] else 0.0
                needs.append((True, stage - 1, microbatch, delay))
            elif kind in "BI" and stage == stages - 1:
                needs.append((True, stage, microbatch, 0.0))
            elif kind in "BI":
                delay = delays[stage] if stage_rank[stage + 1] != stage_rank[stage] else 0.0
                needs.append((False, stage + 1, microbatch, delay))
            elif kind == "W":
                needs.append((False, stage, microbatch, 0.0))
        return needs

    ended: dict[tuple[bool, int, int], float] = {}
    starts: list[list[float]] = [[] for _ in order]
    ends: list[list[float]] = [[] for _ in order]
    # Whom an operation's end wakes: at most one rank waits for any.
    waiting: dict[tuple[bool, int, int], int] = {}
    awake = deque(range(len(order)))
    while awake:
        rank = awake.popleft()
        while len(ends[rank]) < len(order[rank]):
            operation = order[rank][len(ends[rank])]
            needs = waits_for(operation)
            missing = next((need[:3] for need in needs if need[:3] not in ended), None)
            if missing is not None:
                waiting[missing] = rank
                break
            own = ends[rank][-1] if ends[rank] else 0.0
            start = max([own, *(ended[need[:3]] + need[3] for need in needs)])
            end = start + lasts(operation)
            starts[rank].append(start)
            ends[rank].append(end)
            for part in operation.parts:
                if part.kind != "W":
                    key = (part.kind == "F", part.stage, part.microbatch)
                    ended[key] = end
                    if key in waiting:
                        awake.append(waiting.pop(key))
    for rank, ops in enumerate(order):
        if len(ends[rank]) < len(ops):
            raise ValueError(f"the order deadlocks: {ops[len(ends[rank])]} on rank {rank} never gets its inputs")
    return Timeline(
        order=order,
        start_seconds=tuple(np.array(rank_starts) for rank_starts in starts),
        end_seconds=tuple(np.array(rank_ends) for rank_ends in ends),
        step_seconds=max((rank_ends[-1] for rank_ends in ends if rank_ends), default=0.0),
        busy_seconds=np.array([sum(map(lasts, ops)) for ops in order]),
    )


def _seconds(name: str, value: ArrayLike, count: int) -> list[float]:
    """One number for each of ``count``, checked."""
    given = np.asarray(value, dtype=np.float64)
    if given.ndim and given.shape != (count,):
        raise ValueError(f"{name} has shape {given.shape}; it takes a number or {count} of them")
    if not (np.isfinite(given).all() and (given >= 0).all()):
        raise ValueError(f"{name} must be finite and not negative, got {given.tolist()}")
    return [float(number) for number in np.broadcast_to(given, (count,))]
