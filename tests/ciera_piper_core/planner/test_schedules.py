"""Limits are those that torch raises on, reasons say what to do, and the microbatches in flight are the real peak."""

from __future__ import annotations

import numpy as np
import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from ciera_piper_core.planner.schedule_operations import operations, peak_held
from ciera_piper_core.planner.schedules import (
    CHOICE_OF_CHUNKS,
    LIMITS,
    SCHEDULES,
    TORCH_CLASS,
    Schedule,
    allowed,
    broken_limits,
    check,
    chunks_of,
    in_flight,
    in_flight_of_rank,
    stage_of_chunk,
    why_not,
)


def _chunk_choices(schedule: Schedule) -> tuple[int | None, ...]:
    return (1, 2, 3, 4) if schedule in CHOICE_OF_CHUNKS else (None,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_limits_are_those_that_torch_raises_on(schedule: Schedule) -> None:
    for pp in (1, 2, 3, 4, 6):
        for microbatches in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13):
            try:
                get_schedule_ops(TORCH_CLASS[schedule], pp, microbatches)
            except ValueError:
                torch_takes_it = False
            else:
                torch_takes_it = True
            assert (why_not(schedule, pp, microbatches) is None) == torch_takes_it, (pp, microbatches)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_masks_and_reasons_agree(schedule: Schedule) -> None:
    pp = np.arange(1, 20)[:, None]
    microbatches = np.arange(1, 40)[None, :]
    for chunks in _chunk_choices(schedule):
        fine = allowed(schedule, pp, microbatches, 13, chunks=chunks)
        broken = broken_limits(schedule, pp, microbatches, 13, chunks=chunks)
        assert set(broken) == set(LIMITS)
        assert fine.shape == (19, 39)
        assert (fine == ~(broken["stages"] | broken["microbatches"] | broken["rounds"])).all()
        for row, column in np.ndindex(fine.shape):
            reason = why_not(schedule, row + 1, column + 1, 13, chunks=chunks)
            assert (reason is None) == fine[row, column]


def test_reasons_say_what_to_do() -> None:
    assert why_not("1f1b", 8, 4) == "1f1b needs at least 8 microbatches, one a stage, not 4; use more"
    assert "at least 16 microbatches" in (why_not("dualpipev", 8, 15) or "")
    assert "16 stages (8 ranks of 2)" in (why_not("interleaved", 8, 8, 12) or "")
    assert "9 stages but the model 8 layers" in (why_not("gpipe", 9, 9, 8) or "")
    # The numbers that a reason proposes are taken.
    reason = why_not("interleaved", 4, 11) or ""
    assert reason.endswith("use 10 or 12")
    assert why_not("interleaved", 4, 10) is None
    assert why_not("interleaved", 4, 12) is None
    with pytest.raises(ValueError, match="at least 8 microbatches"):
        check("1f1b", 8, 4)


@pytest.mark.parametrize("pp", range(2, 33))
def test_proposed_round_numbers_are_taken(pp: int) -> None:
    for microbatches in range(1, 200):
        reason = why_not("zero_bubble", pp, microbatches)
        if reason:
            fewer, more = reason.rsplit("use ", 1)[1].split(" or ")
            assert int(fewer) < microbatches < int(more)
            assert why_not("zero_bubble", pp, int(fewer)) is None


def test_unknown_names_and_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown schedule 'pipedream'; choose one of gpipe"):
        chunks_of("pipedream")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="zbv has 2 stages a rank, not 3"):
        why_not("zbv", 4, 8, chunks=3)
    with pytest.raises(ValueError, match="1f1b has 1 stage a rank, not 2"):
        chunks_of("1f1b", 2)
    with pytest.raises(ValueError, match="cannot have 0 stages"):
        chunks_of("interleaved", 0)
    with pytest.raises(ValueError, match="at least one rank"):
        allowed("gpipe", [1, 0], 4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_of_all_ranks_are_all_stages_and_those_that_run(schedule: Schedule) -> None:
    for chunks in _chunk_choices(schedule):
        stages = [stage_of_chunk(schedule, 5, rank, chunks=chunks) for rank in range(5)]
        assert sorted(sum(stages, ())) == list(range(5 * chunks_of(schedule, chunks)))
        order = operations(schedule, 5, 10, chunks=chunks)
        ran = [sorted({part.stage for operation in rank for part in operation.parts}) for rank in order]
        assert ran == [sorted(of_rank) for of_rank in stages]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_in_flight_is_the_peak_over_the_real_order(schedule: Schedule) -> None:
    checked = 0
    for pp in (1, 2, 3, 4, 5, 7, 8):
        for microbatches in (*range(1, 19), 24, 35):
            for chunks in _chunk_choices(schedule):
                if why_not(schedule, pp, microbatches, chunks=chunks):
                    continue
                count = chunks_of(schedule, chunks)
                order = operations(schedule, pp, microbatches, chunks=chunks)
                peak = peak_held(order, np.full(pp * count, 1.0 / count))
                assert in_flight(schedule, pp, microbatches, chunks=chunks) == pytest.approx(peak), (pp, microbatches)
                checked += 1
    assert checked > 60


def test_in_flight_of_arrays_and_of_the_textbook() -> None:
    # Stage 0 of 1F1B holds PP times what the last stage holds; GPipe holds everything.
    assert in_flight("1f1b", 4, 16).tolist() == [4, 3, 2, 1]
    assert in_flight("gpipe", 4, 16).tolist() == [16] * 4
    # The V schedules are as even as they promise, at about half a microbatch over the first of 1F1B.
    assert in_flight("zbv", 4, 16).tolist() == [4] * 4
    assert in_flight("dualpipev", 4, 16).tolist() == [4.5] * 4
    pp = np.array([2, 4, 8])
    first = in_flight_of_rank("interleaved", pp, 16, 0)
    assert first.tolist() == [in_flight("interleaved", int(one), 16)[0] for one in pp]
    with pytest.raises(ValueError, match="at least 8"):
        in_flight("1f1b", 8, 4)
