"""Closed forms of the makespan against the event simulation of the real order."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.planner.schedule_cost import DUALPIPEV_ERROR, ZBV_BETWEEN_ERROR, is_exact, makespan
from ciera_piper_core.planner.schedule_operations import Order, operations
from ciera_piper_core.planner.schedule_simulation import simulate
from ciera_piper_core.planner.schedules import CHOICE_OF_CHUNKS, SCHEDULES, V_SHAPED, Schedule, chunks_of, why_not

# Seconds a chunk: forward, backward for inputs, for weights, transfer. Ordinary, recomputing, light
# weights, heavy weights, no weights, transfers as long as the shortest.
SECONDS = np.array(
    [
        (1.0, 1.0, 1.0, 0.0), (1.0, 1.1, 0.9, 0.07), (1.0, 2.2, 0.8, 0.3), (1.0, 1.3, 0.2, 0.6),
        (1.0, 0.7, 2.5, 0.4), (0.8, 1.9, 0.0, 0.5), (0.5, 1.7, 1.3, 0.5), (1.7, 0.6, 0.5, 0.3),
    ]
)  # fmt: skip
# With these, each path in the tables of the V schedules is the longest somewhere: without it, a test fails.
V_SECONDS = np.array(
    [
        *SECONDS.tolist(),
        (0.78, 1.17, 1.17, 0.77), (1.2, 0.61, 0.99, 0.6), (2.98, 1.5, 0.32, 1.42), (0.76, 0.57, 0.88, 0.16),
        (1.8, 0.12, 5.21, 0.03), (1.24, 0.19, 1.66, 0.0), (7.86, 2.4, 0.08, 0.71), (3.2, 2.53, 1.12, 0.06),
        (0.55, 0.51, 0.24, 0.05), (2.98, 0.16, 5.42, 0.02), (4.32, 0.07, 2.08, 0.02), (1.38, 0.76, 0.23, 0.75),
        (0.05, 2.44, 4.93, 0.01), (0.82, 0.57, 0.58, 0.55), (1.93, 0.82, 0.75, 0.7),
    ]
)  # fmt: skip


@cache
def _order(schedule: Schedule, pp: int, microbatches: int, chunks: int | None) -> Order:
    return operations(schedule, pp, microbatches, chunks=chunks)


def _simulated(schedule: Schedule, pp: int, microbatches: int, chunks: int | None, seconds: np.ndarray) -> np.ndarray:
    order = _order(schedule, pp, microbatches, chunks)
    return np.array([simulate(order, *row).step_seconds for row in seconds])


def _arguments(schedule: Schedule, chunks: int | None, seconds: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of ``makespan``: seconds of all chunks of a rank, and of a transfer."""
    f, b, w, p = seconds.T
    count = chunks_of(schedule, chunks)
    return f * count, b * count, w * count, p


def _grid(schedule: Schedule, ranks: tuple[int, ...], most: int) -> list[tuple[int, int, int | None]]:
    choices = (1, 2, 3) if schedule in CHOICE_OF_CHUNKS else (None,)
    return [
        (pp, microbatches, chunks)
        for pp in ranks
        for microbatches in range(1, most)
        for chunks in choices
        if not why_not(schedule, pp, microbatches, chunks=chunks)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_to_the_simulation(schedule: Schedule) -> None:
    rows = V_SECONDS if schedule in V_SHAPED else SECONDS
    exact = total = 0
    for pp, microbatches, chunks in _grid(schedule, (1, 2, 3, 4, 5), 14):
        arguments = _arguments(schedule, chunks, rows)
        found = makespan(schedule, pp, microbatches, *arguments, chunks=chunks)
        where = is_exact(schedule, pp, microbatches, *arguments, chunks=chunks)
        expected = _simulated(schedule, pp, microbatches, chunks, rows[where])
        assert found[where] == pytest.approx(expected, rel=1e-12), (pp, microbatches, chunks)
        exact += int(where.sum())
        total += len(where)
    assert exact > 0.7 * total


@pytest.mark.parametrize(
    ("schedule", "pp", "microbatches"),
    [
        ("gpipe", 32, 64), ("1f1b", 32, 100), ("interleaved", 16, 72), ("zero_bubble", 16, 72), ("zbv", 24, 60),
        ("zbv", 30, 20), ("dualpipev", 24, 61), ("1f1b", 8, 1024), ("zero_bubble", 6, 516), ("zbv", 6, 511),
        ("dualpipev", 6, 512),
    ],
)  # fmt: skip
def test_equal_for_long_pipelines_and_many_microbatches(schedule: Schedule, pp: int, microbatches: int) -> None:
    seconds = SECONDS[[1, 2]]
    arguments = _arguments(schedule, None, seconds)
    assert is_exact(schedule, pp, microbatches, *arguments).all()
    found = makespan(schedule, pp, microbatches, *arguments)
    assert found == pytest.approx(_simulated(schedule, pp, microbatches, None, seconds), rel=1e-12)


durations = st.floats(0.0, 4.0).map(lambda value: round(value, 3))


@settings(deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    pp=st.integers(1, 7),
    microbatches=st.integers(1, 24),
    chunks=st.integers(1, 4),
    seconds=st.tuples(durations, durations, durations, durations),
)
def test_exact_or_within_what_is_promised(
    schedule: Schedule,
    pp: int,
    microbatches: int,
    chunks: int,
    seconds: tuple[float, float, float, float],
) -> None:
    choice = chunks if schedule in CHOICE_OF_CHUNKS else None
    if why_not(schedule, pp, microbatches, chunks=choice):
        return
    row = np.array([seconds])
    arguments = _arguments(schedule, choice, row)
    found = float(makespan(schedule, pp, microbatches, *arguments, chunks=choice)[0])
    expected = float(_simulated(schedule, pp, microbatches, choice, row)[0])
    if is_exact(schedule, pp, microbatches, *arguments, chunks=choice)[0]:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
        return
    lowest = 0.0
    if schedule == "zbv" and pp < microbatches < 2 * pp - 1:
        lowest = ZBV_BETWEEN_ERROR[0]
        if seconds[3] <= min(seconds[:2]):
            assert found <= expected * (1 + ZBV_BETWEEN_ERROR[1])
    if schedule == "dualpipev":
        lowest = -DUALPIPEV_ERROR
    assert found >= expected * (1 + lowest) - 1e-9


@settings(deadline=None)
@given(
    pp=st.integers(1, 5),
    more=st.integers(0, 9),
    seconds=st.tuples(durations, durations, durations, durations),
    share=st.floats(0, 1),
)
def test_overlapped_pairs_are_within_the_bound(
    pp: int, more: int, seconds: tuple[float, float, float, float], share: float
) -> None:
    f, b, w, p = seconds
    saved = share * min(f, b + w)
    microbatches = 2 * pp + more
    order = _order("dualpipev", pp, microbatches, None)
    expected = simulate(order, f, b, w, p, overlapped=saved).step_seconds
    found = float(makespan("dualpipev", pp, microbatches, 2 * f, 2 * b, 2 * w, p, overlapped=2 * saved))
    assert found >= expected * (1 - DUALPIPEV_ERROR) - 1e-9
    if p <= min(f, b):
        assert found <= expected * (1 + 1e-9) + 1e-9


def test_interpolated_zbv_is_within_its_bounds() -> None:
    for pp in range(3, 8):
        for microbatches in range(pp + 1, 2 * pp - 1):
            arguments = _arguments("zbv", None, SECONDS)
            assert not is_exact("zbv", pp, microbatches, *arguments).any()
            found = makespan("zbv", pp, microbatches, *arguments)
            error = found / _simulated("zbv", pp, microbatches, None, SECONDS) - 1
            assert error.min() >= ZBV_BETWEEN_ERROR[0]
            assert error.max() <= ZBV_BETWEEN_ERROR[1]


def test_the_textbook_bubble() -> None:
    # (PP - 1) / (M + PP - 1) of 1F1B and GPipe; less by the number of chunks when interleaved.
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        busy = 32 * 3.0
        step = float(makespan(schedule, 8, 32, 1.0, 1.0, 1.0))  # type: ignore[arg-type]
        assert step / busy - 1 == pytest.approx(7 / 32 / chunks)
    # ZBV has next to no bubble when all parts take the same and transfers nothing.
    assert float(makespan("zbv", 8, 32, 1.0, 1.0, 1.0)) / (32 * 3.0) - 1 < 0.05


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_candidates_of_all_shapes_at_once(schedule: Schedule) -> None:
    pp = np.array([1, 2, 4])[:, None]
    microbatches = np.array([8, 16, 24, 32])[None, :]
    together = makespan(schedule, pp, microbatches, 2.0, 2.5, 1.5, 0.125)
    assert together.shape == (3, 4)
    for row, column in np.ndindex(3, 4):
        alone = makespan(schedule, int(pp[row, 0]), int(microbatches[0, column]), 2.0, 2.5, 1.5, 0.125)
        assert alone.shape == ()
        assert alone == together[row, column]
    assert is_exact(schedule, pp, microbatches, 2.0, 2.5, 1.5, 0.125).all()


def test_fewer_microbatches_than_ranks() -> None:
    pp, microbatches = np.array([4, 4, 2]), np.array([2, 3, 4])
    f, b, w, p = np.array([1.0, 2.0, 1.0]), 1.5, 0.5, 3.0
    found = makespan("zero_bubble", pp, microbatches, f, b, w, p)
    for place in (0, 1):
        order = operations("zero_bubble", int(pp[place]), int(microbatches[place]))
        assert found[place] == pytest.approx(simulate(order, f[place] / 2, b / 2, w / 2, p).step_seconds)
    assert is_exact("zero_bubble", pp, microbatches, f, b, w, p).tolist() == [True, True, False]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="1f1b needs at least 8 microbatches"):
        makespan("1f1b", [2, 8], [4, 4], 1, 1, 1)
    with pytest.raises(ValueError, match="backward_input must be finite and not negative"):
        makespan("1f1b", 2, 4, 1, [1, np.nan], 1)
    with pytest.raises(ValueError, match="zbv runs no forward beside a backward"):
        makespan("zbv", 2, 4, 1, 1, 1, overlapped=0.1)
    with pytest.raises(ValueError, match="longer than the shorter of forward and backward"):
        makespan("dualpipev", 2, 4, 1, 1, 1, overlapped=1.5)


def test_a_search_full_of_candidates_is_quick() -> None:
    # The planner's search has two seconds for everything; here 600,000 candidates of all schedules.
    generator = np.random.default_rng(3)
    pp = 2 ** generator.integers(0, 7, 100_000)
    microbatches = 2 * pp * generator.integers(1, 9, 100_000)
    f, b, w, p = generator.uniform(0.1, 1, (4, 100_000))
    began = perf_counter()
    for schedule in SCHEDULES:
        makespan(schedule, pp, microbatches, f, b, w, p)
    assert perf_counter() - began < 3.0
