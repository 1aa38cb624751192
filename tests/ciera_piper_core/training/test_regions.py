"""Time by region: nested regions count once, other threads do not, and the parts are the whole."""

from __future__ import annotations

import pytest

from ciera_piper_core.ranges import Span
from ciera_piper_core.training.regions import (
    INSTRUMENTS,
    REGIONS,
    RESIDUAL,
    communication_shares,
    exclusive_seconds,
)

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
    found = exclusive_seconds(spans, 0, 10 * S, {1})
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
    assert nonzero(exclusive_seconds(spans, 0, 10 * S, {1})) == {"loss": 1.0, RESIDUAL: 9.0}


def test_a_thread_that_works_while_the_first_waits_is_the_step() -> None:
    spans = [span("attention", 1, 4, thread=2), span("loss", 5, 6)]
    assert nonzero(exclusive_seconds(spans, 0, 10 * S, {1, 2})) == {"attention": 3.0, "loss": 1.0, RESIDUAL: 6.0}


def test_a_region_within_itself_counts_once() -> None:
    spans = [span("codec", 2, 3), span("codec", 1, 5)]
    assert nonzero(exclusive_seconds(spans, 0, 6 * S, {1})) == {"codec": 4.0, RESIDUAL: 2.0}


def test_regions_that_follow_each_other_at_once_are_no_nest() -> None:
    spans = [span("attention", 1, 2), span("dense", 2, 3)]
    assert nonzero(exclusive_seconds(spans, 1 * S, 3 * S, {1})) == {"attention": 1.0, "dense": 1.0}


def test_what_marking_costs_is_no_part_of_the_step() -> None:
    spans = [span(INSTRUMENTS, 1, 3), span("loss", 3, 4), span(INSTRUMENTS, 5, 6), span("dense", 4, 7)]
    assert nonzero(exclusive_seconds(spans, 0, 10 * S, {1})) == {"loss": 1.0, "dense": 2.0, RESIDUAL: 4.0}


def test_shares_of_communication_add_up() -> None:
    seconds = {"parameter_gather": 3.0, "gradient_reduce": 1.0, "moe.dispatch": 1.0, "pipeline_wait": 3.0, "codec": 9.0}
    assert communication_shares(seconds) == {"allgather": 0.375, "reduce_scatter": 0.125, "other": 0.5}
    assert communication_shares({"loss": 1.0}) == {"allgather": 0.0, "reduce_scatter": 0.0, "other": 0.0}
