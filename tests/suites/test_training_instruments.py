"""Time by region: nested regions count once, other threads do not, and the parts are the whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ciera_piper_core.ranges import Span, region
from suites.training_instruments import COLLECTIVES, REGIONS, RESIDUAL, TOTAL, exclusive_seconds, look_into
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

S = 1_000_000_000


def span(name: str, start: float, end: float, thread: int = 1) -> Span:
    return Span(name, round(start * S), round(end * S), thread)


def nonzero(found: dict[str, float]) -> dict[str, float]:
    assert list(found) == list(REGIONS)
    return {name: seconds for name, seconds in found.items() if seconds}


def test_time_within_an_inner_region_is_the_inner_regions() -> None:
    # Spans come in the order of their ends, as a recording has them.
    spans = [
        span("moe.dispatch", 2, 3),
        span("moe.router", 1, 1.5),
        span("moe.experts", 4, 5),
        span("dense", 1, 7),
        span("optimizer", 8, 9),
    ]
    found = exclusive_seconds(spans, 0, 10 * S, thread=1)
    assert nonzero(found) == {
        "moe.router": 0.5,
        "moe.dispatch": 1.0,
        "moe.experts": 1.0,
        "dense": 3.5,
        "optimizer": 1.0,
        RESIDUAL: 3.0,
    }
    assert sum(found.values()) == pytest.approx(10)


def test_other_threads_and_other_names_are_not_the_step() -> None:
    spans = [span("codec", 1, 4, thread=2), span("a.layer.of.its.own", 1, 9), span("loss", 2, 3)]
    assert nonzero(exclusive_seconds(spans, 0, 10 * S, thread=1)) == {"loss": 1.0, RESIDUAL: 9.0}


def test_a_region_within_itself_counts_once() -> None:
    spans = [span("codec", 2, 3), span("codec", 1, 5)]
    assert nonzero(exclusive_seconds(spans, 0, 6 * S, thread=1)) == {"codec": 4.0, RESIDUAL: 2.0}


def test_regions_that_follow_each_other_at_once_are_no_nest() -> None:
    spans = [span("attention", 1, 2), span("dense", 2, 3)]
    assert nonzero(exclusive_seconds(spans, 1 * S, 3 * S, thread=1)) == {"attention": 1.0, "dense": 1.0}


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
    assert all(spent == pytest.approx(0.03, abs=0.02) for spent in seconds["gradient_reduce"])
    # The slowest rank's, which is more than the mean.
    assert all(whole > mean for whole, mean in zip(exposed, seconds["gradient_reduce"], strict=True))
    assert min(residual) < 0.3
    assert list(wire) == list(COLLECTIVES)
    # Each of two ranks sends the whole once: 2 (n - 1) / n of it.
    assert wire["all_reduce"] == wire[TOTAL] == 2 * 400
