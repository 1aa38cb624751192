"""Many strategies at once give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.planner.schedule_batch import batch_seconds, operation_count
from ciera_piper_core.planner.schedule_operations import operations
from ciera_piper_core.planner.schedule_simulation import simulate
from ciera_piper_core.planner.schedules import SCHEDULES, Schedule, allowed, chunks_of


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(1, 7), st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_each_row_is_simulated_over_its_own_stages(schedule: Schedule, pp: int, microbatches: int, seed: int) -> None:
    if not allowed(schedule, pp, microbatches).all():
        microbatches = 2 * pp
    stages = pp * chunks_of(schedule)
    random = np.random.default_rng(seed)
    parts = [random.choice([0.0, 0.5, 1.0, 2.0, 3.7], size=(4, stages)) for _ in range(3)]
    hops = random.choice([0.0, 0.3, 2.0], size=4)
    forward, inputs, weights = parts
    found = batch_seconds(schedule, pp, microbatches, forward, inputs, weights, hops)
    order = operations(schedule, pp, microbatches)
    alone = [simulate(order, forward[row], inputs[row], weights[row], hops[row]).step_seconds for row in range(4)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operations_are_counted_without_writing_them(schedule: Schedule) -> None:
    written = operations(schedule, 4, 8)
    parts = sum(len(operation.parts) for rank in written for operation in rank)
    # ZBV and DualPipeV split some backwards only, at their ends.
    counted = operation_count(schedule, 4, 8)
    assert parts <= counted * 1.5 if schedule == "dualpipev" else parts <= counted
    if schedule in ("gpipe", "1f1b", "interleaved"):
        assert parts == counted


def test_a_broken_limit_is_refused() -> None:
    one = np.ones((1, 4))
    with pytest.raises(ValueError, match="microbatches"):
        batch_seconds("1f1b", 4, 2, one, one, one, np.zeros(1))
