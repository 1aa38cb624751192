"""What can be asked of a comparison, and how its iterations are cut into turns."""

from __future__ import annotations

from typing import Any

import pytest

from bench.comparison.request import SETTLING, ComparisonRequest, Side, comparable
from bench.errors import UsageError

SIDES = (Side("a", {"who": "a"}, 2), Side("b", {"who": "b"}, 2), Side("right", {"who": "right"}, 1, timed=False))


def request(**changes: Any) -> ComparisonRequest:
    return ComparisonRequest(**{"suite": "sides", "sides": SIDES, "reference": "a", **changes})


@pytest.mark.parametrize(
    ("steps", "turns", "expected"),
    [(24, 8, (3,) * 8), (10, 4, (3, 3, 2, 2)), (3, 8, (1, 1, 1)), (1, 1, (1,))],
)
def test_iterations_are_shared_out_evenly(steps: int, turns: int, expected: tuple[int, ...]) -> None:
    asked = request(steps=steps, turns=turns)
    assert asked.steps_of_turns == expected
    assert asked.iterations_of_turns == steps + SETTLING * len(expected)


def test_series_are_held_against_the_reference_unless_another_side_is_named() -> None:
    assert request().right == "a"
    assert request(checked_against="right").right == "right"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sides": (SIDES[0], SIDES[0])}, "a is there twice"),
        ({"sides": (SIDES[2],), "reference": "right"}, "at least one side"),
        ({"reference": "c"}, "unknown side 'c'"),
        ({"checked_against": "c"}, "unknown side 'c'"),
        ({"reference": "right"}, "right is not timed"),
        ({"steps": 0}, "--steps"),
        ({"turns": 0}, "--turns"),
        ({"warmup": 0}, "--warmup"),
        ({"device": "tpu"}, "--device"),
        ({"lab": "nodes=2,ranks-per-node=1,rate=1gbit", "device": "cuda"}, "--lab"),
        ({"timeout_s": 0.0}, "--timeout"),
    ],
)
def test_impossible_requests_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        request(**changes)


def test_only_suites_that_can_be_compared_are_taken() -> None:
    assert comparable("tests.bench.comparison.sides_suite:SidesSuite").name == "sides"
    with pytest.raises(UsageError, match="cannot be compared by turns"):
        comparable("tests.faulty_suite:FaultySuite")
