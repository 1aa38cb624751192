"""Each rank's operations are those of torch's schedules, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch.distributed.pipelining.schedules as torch_schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.stage import PipelineStage

from ciera_piper_core.planner.schedule_operations import Operation, operations, peak_held
from ciera_piper_core.planner.schedules import CHOICE_OF_CHUNKS, SCHEDULES, TORCH_CLASS, Schedule, why_not

if TYPE_CHECKING:
    from typing import Any


def _written(action: Any) -> str:
    if action.sub_actions:
        return "+".join(_written(part) for part in action.sub_actions)
    return f"{action.stage_index}{action.computation_type.value}{action.microbatch_index}"


def _of_torch(schedule: Schedule, pp: int, microbatches: int, chunks: int | None) -> list[list[str]]:
    """Torch's operations without idle slots and without gradient reductions, which are no computation."""
    order = get_schedule_ops(TORCH_CLASS[schedule], pp, microbatches, num_stages_per_rank=chunks)
    return [
        [_written(action) for action in rank if action is not None and action.computation_type.value != "REDUCE_GRAD"]
        for rank in order
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operations_are_those_of_torch(schedule: Schedule) -> None:
    compared = 0
    for pp in (1, 2, 3, 4, 5, 8):
        for microbatches in (*range(1, 10), 12, 15, 16, 20):
            for chunks in (2, 3) if schedule in CHOICE_OF_CHUNKS else (None,):
                if why_not(schedule, pp, microbatches, chunks=chunks):
                    continue
                ours = [
                    [str(operation) for operation in rank]
                    for rank in operations(schedule, pp, microbatches, chunks=chunks)
                ]
                theirs = _of_torch(schedule, pp, microbatches, chunks)
                if schedule == "1f1b" and theirs[-1][0] == f"{pp - 1}F1":
                    # Torch's listing counts the last rank's forwards from 1; what it runs does not, see below.
                    theirs[-1] = [
                        f"{pp - 1}F{int(text.split('F')[1]) - 1}" if "F" in text else text for text in theirs[-1]
                    ]
                assert ours == theirs, (pp, microbatches, chunks)
                compared += 1
    assert compared > 30


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_single_stage_schedules_run_what_we_list(schedule: Schedule) -> None:
    for pp, microbatches in ((1, 1), (1, 3), (2, 2), (4, 4), (4, 9)):
        order = operations(schedule, pp, microbatches)
        for rank in range(pp):
            assert _run_by_torch(schedule, pp, rank, microbatches) == [str(operation) for operation in order[rank]]


def _run_by_torch(schedule: Schedule, pp: int, rank: int, microbatches: int) -> list[str]:
    """What torch's own loop calls on a stage that does nothing."""
    ran: list[str] = []
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.stage_index = rank, pp, pp, rank
    stage.is_last, stage.submod = False, None
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, name).return_value = []
    stage.forward_one_chunk.side_effect = lambda number, *_, **__: ran.append(f"{rank}F{number}")
    stage.backward_one_chunk.side_effect = lambda number, *_, **__: ran.append(f"{rank}B{number}")
    runner = torch_schedules.get_schedule_class(TORCH_CLASS[schedule])(stage, microbatches)
    with mock.patch.object(runner, "_initialize_stage"):
        runner._step_microbatches([()] * microbatches, [{}] * microbatches)
    return ran


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_runs_every_microbatch_forward_and_backward_once(schedule: Schedule) -> None:
    pp, microbatches = 4, 12
    parts = [part for rank in operations(schedule, pp, microbatches) for each in rank for part in each.parts]
    assert len(parts) == len(set(parts))
    stages = 1 + max(part.stage for part in parts)
    for kinds in ("F", "BI", "BW"):
        done = sorted((part.stage, part.microbatch) for part in parts if part.kind in kinds)
        assert done == [(stage, number) for stage in range(stages) for number in range(microbatches)]


def test_a_pair_names_both_and_takes_its_parts_apart() -> None:
    pair = Operation("F", 3, 4, Operation("B", 2, 1))
    assert str(pair) == "3F4+2B1"
    assert pair.parts == (Operation("F", 3, 4), Operation("B", 2, 1))
    assert Operation("W", 0, 2).parts == (Operation("W", 0, 2),)


def test_orders_that_break_a_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="1f1b needs at least 8 microbatches"):
        operations("1f1b", 8, 7)
    with pytest.raises(ValueError, match="must be equal"):
        operations("interleaved", 4, 9)


def test_the_peak_weighs_stages() -> None:
    # Rank 0 of a two-rank V has the first and the last stage. It holds four of the first, or three and one.
    order = operations("zbv", 2, 4)
    first_only = peak_held(order, [1.0, 0.0, 0.0, 0.0])
    last_only = peak_held(order, [0.0, 0.0, 0.0, 1.0])
    both = peak_held(order, [1.0, 0.0, 0.0, 1.0])
    assert first_only.tolist() == [4.0, 0.0]
    assert last_only.tolist() == [1.0, 0.0]
    assert both.tolist() == [4.0, 0.0]
    assert peak_held(operations("gpipe", 2, 5), [2.0, 3.0]).tolist() == [10.0, 15.0]
