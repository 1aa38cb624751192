"""The event simulation starts every operation as early as its inputs and its rank allow, and finds deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from ciera_piper_core.planner.schedule_operations import Operation, Order, operations
from ciera_piper_core.planner.schedule_simulation import Timeline, simulate
from ciera_piper_core.planner.schedules import SCHEDULES, Schedule


def _ends(timeline: Timeline) -> dict[str, float]:
    return {
        str(operation): float(end)
        for rank, ends in zip(timeline.order, timeline.end_seconds, strict=True)
        for operation, end in zip(rank, ends, strict=True)
    }


def test_two_ranks_by_hand() -> None:
    # F 1, B 2 (1 + 1), transfers 0.5:    rank 0: F0 0-1, F1 1-2, B0 5-7 (after 1B0), B1 8-10
    #                                     rank 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5
    timeline = simulate(operations("1f1b", 2, 2), 1, 1, 1, 0.5)
    assert _ends(timeline) == {
        "0F0": 1, "0F1": 2, "1F0": 2.5, "1B0": 4.5, "1F1": 5.5, "1B1": 7.5, "0B0": 7, "0B1": 10,
    }  # fmt: skip
    assert timeline.step_seconds == 10
    assert timeline.busy_seconds.tolist() == [6, 6]
    assert timeline.bubble.tolist() == pytest.approx([0.4, 0.4])
    assert timeline.start_seconds[1].tolist() == [1.5, 2.5, 4.5, 5.5]


def test_stages_and_boundaries_of_their_own() -> None:
    timeline = simulate(operations("gpipe", 3, 1), [1, 2, 4], [8, 16, 32], [64, 128, 256], [0.25, 0.5])
    assert _ends(timeline) == {
        "0F0": 1, "1F0": 3.25, "2F0": 7.75, "2B0": 295.75, "1B0": 440.25, "0B0": 512.5,
    }  # fmt: skip
    # What waits is the share of the step without computation.
    assert timeline.bubble[2] == pytest.approx(1 - 292 / 512.5)


def test_weights_do_not_keep_the_stage_before_waiting() -> None:
    order: Order = [
        [Operation("F", 0, 0), Operation("I", 0, 0), Operation("W", 0, 0)],
        [Operation("F", 1, 0), Operation("I", 1, 0), Operation("W", 1, 0)],
    ]
    ends = _ends(simulate(order, 1, 10, 100))
    assert ends["1W0"] == 112
    assert ends["0I0"] == 22
    assert ends["0W0"] == 122


def test_a_pair_is_one_operation_that_may_overlap() -> None:
    order = operations("dualpipev", 2, 4)
    pairs = sum(operation.beside is not None for rank in order for operation in rank)
    assert pairs
    apart = simulate(order, 1, 1, 1, 0.1)
    beside = simulate(order, 1, 1, 1, 0.1, overlapped=0.5)
    assert beside.step_seconds < apart.step_seconds
    assert apart.busy_seconds.sum() - beside.busy_seconds.sum() == pytest.approx(0.5 * pairs)
    for timeline, length in ((apart, 3.0), (beside, 2.5)):
        rank, place = next((r, i) for r, ops in enumerate(order) for i, each in enumerate(ops) if each.beside)
        assert timeline.end_seconds[rank][place] - timeline.start_seconds[rank][place] == pytest.approx(length)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operations_keep_their_order_and_wait_for_their_inputs(schedule: Schedule) -> None:
    generator = np.random.default_rng(5)
    order = operations(schedule, 4, 12)
    stages = 1 + max(part.stage for rank in order for each in rank for part in each.parts)
    rank_of = {part.stage: rank for rank, ops in enumerate(order) for each in ops for part in each.parts}
    p2p = generator.uniform(0, 1, stages - 1)
    timeline = simulate(order, *generator.uniform(0.1, 2, (3, stages)), p2p)
    started, ended = {}, {}
    for rank, starts, ends in zip(timeline.order, timeline.start_seconds, timeline.end_seconds, strict=True):
        assert (starts[1:] >= ends[:-1]).all()
        for operation, start, end in zip(rank, starts, ends, strict=True):
            for part in operation.parts:
                key = ("B" if part.kind == "I" else part.kind, part.stage, part.microbatch)
                started[key], ended[key] = start, end
    for (kind, stage, number), start in started.items():
        before = {"F": stage - 1, "B": stage + 1, "W": stage}[kind]
        if kind == "W":
            assert start >= ended["B", stage, number]
        elif 0 <= before < stages:
            delay = p2p[min(before, stage)] if rank_of[before] != rank_of[stage] else 0.0
            assert start >= ended[kind, before, number] + delay
        elif kind == "B":
            assert start >= ended["F", stage, number]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_rank_never_waits(schedule: Schedule) -> None:
    timeline = simulate(operations(schedule, 1, 6), 0.25, 0.5, 0.125, 99.0)
    assert timeline.step_seconds == timeline.busy_seconds[0]
    assert timeline.bubble.tolist() == [0.0]


def test_deadlocks_are_found_and_named() -> None:
    crossed: Order = [
        [Operation("B", 0, 0), Operation("F", 0, 0)],
        [Operation("F", 1, 0), Operation("B", 1, 0)],
    ]
    with pytest.raises(ValueError, match="deadlocks: 0B0 on rank 0 never gets its inputs"):
        simulate(crossed, 1, 1, 1)
    missing: Order = [[Operation("F", 0, 0)], [Operation("F", 1, 1)]]
    with pytest.raises(ValueError, match="1F1 on rank 1"):
        simulate(missing, 1, 1, 1)


def test_wrong_seconds_are_refused() -> None:
    order = operations("1f1b", 2, 2)
    with pytest.raises(ValueError, match=r"forward has shape \(3,\); it takes a number or 2 of them"):
        simulate(order, [1, 2, 3], 1, 1)
    with pytest.raises(ValueError, match="p2p must be finite and not negative"):
        simulate(order, 1, 1, 1, -1)
    with pytest.raises(ValueError, match="backward_weight must be finite"):
        simulate(order, 1, 1, np.inf)
    with pytest.raises(ValueError, match="overlapped is 4 s, but the pair"):
        simulate(operations("dualpipev", 2, 4), 1, 1, 1, overlapped=4.0)


def test_no_seconds_at_all() -> None:
    timeline = simulate(operations("zbv", 2, 3), 0, 0, 0)
    assert timeline.step_seconds == 0
    assert timeline.bubble.tolist() == [0, 0]
