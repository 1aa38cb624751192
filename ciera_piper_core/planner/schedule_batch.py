"""How long one order of operations takes, for many strategies at once: ``simulate`` over arrays."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.schedule_operations import operations
from ciera_piper_core.planner.schedules import chunks_of, stage_of_chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.planner.schedules import Schedule

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

KIND_PLACES = {"F": 0, "I": 1, "W": 2, "B": 3}
"""Where the seconds of each kind of operation lie in the table of durations, in units of stages."""

ORDERS_KEPT = 64


def operation_count(schedule: Schedule, pp: int, microbatches: int) -> int:
    """Forwards and backwards of a step over all ranks; parts of a split backward and of a pair count each."""
    parts = 3 if schedule in ("zero_bubble", "zbv") else 2
    return parts * chunks_of(schedule) * pp * microbatches


def batch_seconds(
    schedule: Schedule,
    pp: int,
    microbatches: int,
    forward: Floats,
    backward_input: Floats,
    backward_weight: Floats,
    p2p: Floats,
) -> Floats:
    """What ``simulate`` gives as ``step_seconds``, for each row: shape ``(strategies,)``.

    Args:
        forward, backward_input, backward_weight: seconds of each stage for one microbatch, shape
            ``(strategies, stages)``.
        p2p: seconds to the next stage and back, shape ``(strategies,)``.

    Raises:
        ValueError: a limit of the schedule is broken.
    """
    graph = _graph(schedule, pp, microbatches)
    f, b, w = forward.T, backward_input.T, backward_weight.T
    # The last row is nothing: what a lone operation has beside it.
    durations = np.concatenate([f, b, w, b + w, np.zeros((1, len(p2p)))])
    # Likewise the end of what an operation without that input waits for.
    ends = np.zeros((len(graph.first) + 1, len(p2p)))
    for begin, end in itertools.pairwise(graph.bounds):
        here = slice(begin, end)
        start = ends[graph.before[here]]
        np.maximum(start, ends[graph.needs[here]] + graph.hops[here, None] * p2p, out=start)
        seconds = durations[graph.first[here]]
        if graph.paired:
            np.maximum(start, ends[graph.second_needs[here]] + graph.second_hops[here, None] * p2p, out=start)
            seconds += durations[graph.second[here]]
        np.add(start, seconds, out=ends[here])
    return np.asarray(ends.max(axis=0))


@dataclass(frozen=True)
class _Graph:
    """Operations by level: none waits for another of its level or of a later one. Arrays over operations.

    Attributes:
        bounds: the first operation of each level, and their number.
        before: the operation before it on its rank. needs: the one that gives its input; hops: 1 if
            that is on another rank. The number of operations stands for none.
        first: its row in the table of durations.
        second_needs, second_hops, second: of the backward of a pair, likewise; paired: there is any.
    """

    bounds: list[int]
    before: Ints
    needs: Ints
    hops: Floats
    first: Ints
    second_needs: Ints
    second_hops: Floats
    second: Ints
    paired: bool


@functools.lru_cache(maxsize=ORDERS_KEPT)
def _graph(schedule: Schedule, pp: int, microbatches: int) -> _Graph:
    order = operations(schedule, pp, microbatches)
    stages = pp * chunks_of(schedule)
    rank_of = {stage: rank for rank in range(pp) for stage in stage_of_chunk(schedule, pp, rank)}
    nothing = sum(len(ops) for ops in order)
    # By input: the operation that gives it. Forwards lie at 2n, backwards at 2n + 1.
    given: dict[int, int] = {}
    levels: list[int] = []
    rows: list[tuple[int, int, bool, int, int, bool, int]] = []
    waiting: dict[int, int] = {}
    done, last = [0] * pp, [nothing] * pp
    hops_up = [stage > 0 and rank_of[stage - 1] != rank_of[stage] for stage in range(stages)]
    awake = deque(range(pp))
    while awake:
        rank = awake.popleft()
        ops = order[rank]
        while done[rank] < len(ops):
            operation = ops[done[rank]]
            before = last[rank]
            level = levels[before] + 1 if before != nothing else 0
            found: list[tuple[int, bool, int]] = []
            gives: list[int] = []
            missing = -1
            for part in (operation,) if operation.beside is None else operation.parts:
                kind, stage, microbatch, _ = part
                key = -1
                hop = False
                if kind == "F":
                    gives.append(2 * (stage * microbatches + microbatch))
                    if stage:
                        key, hop = 2 * ((stage - 1) * microbatches + microbatch), hops_up[stage]
                elif kind != "W":
                    # A weight part follows its input part on the same rank.
                    gives.append(2 * (stage * microbatches + microbatch) + 1)
                    if stage == stages - 1:
                        key = 2 * (stage * microbatches + microbatch)
                    else:
                        key, hop = 2 * ((stage + 1) * microbatches + microbatch) + 1, hops_up[stage + 1]
                needs = nothing
                if key >= 0:
                    needs = given.get(key, -1)
                    if needs < 0:
                        missing = key
                        break
                    level = max(level, levels[needs] + 1)
                found.append((needs, hop, KIND_PLACES[kind] * stages + stage))
            if missing >= 0:
                waiting[missing] = rank
                break
            number = len(levels)
            levels.append(level)
            second = found[1] if len(found) > 1 else (nothing, False, 4 * stages)
            rows.append((before, *found[0], *second))
            last[rank] = number
            done[rank] += 1
            for key in gives:
                given[key] = number
                if key in waiting:
                    awake.append(waiting.pop(key))
    columns = np.array(rows, dtype=np.int64)
    by_level = np.argsort(levels, kind="stable")
    place = np.empty(nothing + 1, dtype=np.int64)
    place[by_level] = np.arange(nothing)
    place[nothing] = nothing
    columns = columns[by_level]
    return _Graph(
        bounds=[0, *np.cumsum(np.bincount(levels)).tolist()],
        before=place[columns[:, 0]],
        needs=place[columns[:, 1]],
        hops=columns[:, 2].astype(np.float64),
        first=columns[:, 3],
        second_needs=place[columns[:, 4]],
        second_hops=columns[:, 5].astype(np.float64),
        second=columns[:, 6],
        paired=bool((columns[:, 6] != 4 * stages).any()),
    )
