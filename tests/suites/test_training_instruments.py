"""What instruments find in a step is the same on all ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ciera_piper_core.ranges import region
from ciera_piper_core.training.wire_bytes import COLLECTIVES, TOTAL
from suites.training_instruments import look_into
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_all_ranks_learn_the_same_of_a_step(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[dict[str, list[float]], list[float], list[float], dict[str, float]]:
        def step(number: int) -> None:
            import torch
            import torch.distributed as dist

            with region("gradient_reduce"):
                dist.all_reduce(torch.ones(100), group=context.group.data)
                time.sleep(0.02 * (1 + context.site.rank))
            with region("optimizer"):
                time.sleep(0.01)

        found = look_into(step, 2, context)
        return found.seconds, found.exposed_seconds, found.residual_shares, found.wire_bytes

    one, other = run_world(2, body, tmp_path)
    assert one == other
    seconds, exposed, residual, wire = one
    # No less than the ranks slept, on average; on a loaded machine more.
    assert all(0.03 <= spent < 1 for spent in seconds["gradient_reduce"])
    # The slowest rank's, which is more than the mean.
    assert all(whole > mean for whole, mean in zip(exposed, seconds["gradient_reduce"], strict=True))
    assert all(0 <= share < 1 for share in residual)
    assert list(wire) == list(COLLECTIVES)
    # Each of two ranks sends the whole once: 2 (n - 1) / n of it.
    assert wire["all_reduce"] == wire[TOTAL] == 2 * 400
