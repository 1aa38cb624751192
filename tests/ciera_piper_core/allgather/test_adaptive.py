"""Tests of compression that finds out in training whether it gains: what is switched when, and what stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch.distributed as dist

from ciera_piper_core.allgather import adaptive as adaptive_module
from ciera_piper_core.allgather.adaptive import AdaptiveCompression, Trial
from tests.ciera_piper_core.allgather.fsdp_training import cpu_mesh
from tests.ciera_piper_core.allgather.test_fsdp import BF16, pair, train_alike
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from collections.abc import Iterable
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
        # Which of them gain is measured: shards this small seldom do.
        (selection,) = adaptive.selections
        gathered = {(name, one.name) for name, plan in handle.plans.items() for one in plan.selected}
        assert gathered == selection.selected
        assert adaptive.outcome is None
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


class Steps:
    """A model without parameters: only what is done when matters."""

    plans: ClassVar[dict[str, Any]] = {}
    recorded = 0

    def record(self) -> None:
        self.recorded += 1

    def apply(self, plans: Iterable[Any]) -> None:
        assert not list(plans)


@pytest.mark.parametrize(
    ("left_out", "expected"),
    # Steps 3 and 4 are plain, 6 and 7 compressed; one whose update was left out would be the fastest.
    [({3}, (0.2, 0.3)), ({7}, (0.4, 0.1)), ({3, 4}, (0.2, 0.1)), (set(), (0.2, 0.1))],
)
def test_steps_whose_update_was_left_out_count_only_alone(
    left_out: set[int], expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    took = {3: 0.1, 4: 0.3, 6: 0.4, 7: 0.2}
    now = [0.0]
    monkeypatch.setattr(adaptive_module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, mine, group: found.__setitem__(0, mine))
    adaptive = AdaptiveCompression([Steps()], SETTLE, RECORD, TRIAL, None)  # type: ignore[list-item,arg-type]
    for step in range(adaptive.settled_after):
        now[0] = 0.0
        adaptive.before_step()
        now[0] = took.get(step, 9.0)
        adaptive.after_step(applied=step not in left_out)
    assert adaptive.outcome == Trial(*expected)


def test_what_failed_before_a_step_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Steps()
    adaptive = AdaptiveCompression([model], SETTLE, RECORD, 0, None)  # type: ignore[list-item,arg-type]
    adaptive.before_step()
    adaptive.after_step()
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "record", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adaptive.before_step()
    adaptive.before_step()
    adaptive.before_step()
    assert model.recorded == 1


@pytest.mark.parametrize("steps", [(-1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_numbers_of_steps_that_make_no_sense(steps: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be 1 step or more"):
        AdaptiveCompression([], *steps, None)  # type: ignore[arg-type]
