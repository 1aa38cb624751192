"""Tests of compression that finds out in training whether it gains: what is switched when, and what stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from ciera_piper_core.allgather.adaptive import AdaptiveCompression
from tests.ciera_piper_core.allgather.fsdp_training import cpu_mesh
from tests.ciera_piper_core.allgather.test_fsdp import BF16, pair, train_alike
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

SETTLE, RECORD, TRIAL = 1, 1, 2
WAIT_S = 0.25


@pytest.mark.parametrize("slow", ["plain", "compressed"])
def test_whole_steps_decide(tmp_path: Path, slow: str) -> None:
    def body(context: Context) -> tuple[list[bool], bool]:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        # Shards this small would never be selected; here all of them are, whatever was measured.
        handle.keep_worthwhile = lambda: ()  # type: ignore[method-assign,assignment]
        adaptive = AdaptiveCompression([handle], SETTLE, RECORD, TRIAL, dist.group.WORLD)
        ways = []
        for step in range(adaptive.settled_after + 2):
            adaptive.before_step()
            ways.append(any(plan.selected for plan in handle.plans.values()))
            assert (adaptive.outcome is None) == (step < adaptive.settled_after - 1)
            train_alike(plain, compressed, context.group.rank, steps=1, first=step)
            # One rank that is slow is enough.
            if context.group.rank == 1 and ways[-1] == (slow == "compressed"):
                time.sleep(WAIT_S)
            adaptive.after_step()
        assert adaptive.outcome is not None
        assert abs(adaptive.outcome.compressed_s - adaptive.outcome.plain_s) > WAIT_S / 2
        handle.remove()
        return ways, adaptive.outcome.gains

    stays = slow == "plain"
    before = [True] * (SETTLE + RECORD + 1)
    expected = [*before, *[False] * TRIAL, *[True] * (TRIAL + 1), *[stays] * 3]
    assert run_world(2, body, tmp_path, timeout_s=90) == [(expected, stays)] * 2


def test_without_a_trial_gathers_alone_decide(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2))
        adaptive = AdaptiveCompression([handle], SETTLE, RECORD, 0, dist.group.WORLD)
        assert adaptive.settled_after == SETTLE + RECORD + 1
        for step in range(adaptive.settled_after):
            assert adaptive.selections == ()
            adaptive.before_step()
            # As after a step that failed, and is tried again.
            adaptive.before_step()
            train_alike(plain, compressed, context.group.rank, steps=1, first=step)
            adaptive.after_step()
        assert len(adaptive.selections) == 1
        assert adaptive.outcome is None
        assert not any(plan.selected for plan in handle.plans.values())
        handle.remove()

    run_world(2, body, tmp_path, timeout_s=90)


def test_where_nothing_is_compressed_there_is_nothing_to_decide(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        plain, compressed, handle = pair(BF16, cpu_mesh(2), only=lambda _: False)
        adaptive = AdaptiveCompression([handle], SETTLE, RECORD, TRIAL, dist.group.WORLD)
        for step in range(adaptive.settled_after):
            adaptive.before_step()
            train_alike(plain, compressed, context.group.rank, steps=1, first=step)
            adaptive.after_step()
        assert adaptive.selections == ()
        handle.remove()

    run_world(2, body, tmp_path, timeout_s=90)


@pytest.mark.parametrize("steps", [(-1, 1, 1), (0, 0, 1), (0, 1, -1)])
def test_numbers_of_steps_that_make_no_sense(steps: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="0 steps or more"):
        AdaptiveCompression([], *steps, None)  # type: ignore[arg-type]
