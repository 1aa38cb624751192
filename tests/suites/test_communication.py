"""What the communication suites share: sizes that double, and sizes that can be shared out among ranks."""

from __future__ import annotations

import pytest

from bench.suite import Case, Site
from suites.collectives import CollectivesSuite
from suites.communication import fitted, size_unit, sizes


def case_of(op: str, ranks: int, size: int) -> Case:
    return Case({"op": op, "ranks": ranks, "dtype": "float32", "bytes": size})


def test_sizes_grow_by_a_step_up_to_the_last() -> None:
    assert sizes(1024, 65536) == [1024, 4096, 16384, 65536]
    assert sizes(1, 7, 2) == [1, 2, 4]
    assert sizes(8, 7) == []


@pytest.mark.parametrize(("op", "unit"), [("all_gather", 12), ("all_to_all", 12), ("all_reduce", 4), ("broadcast", 4)])
def test_only_what_is_shared_out_must_divide_by_the_ranks(op: str, unit: int) -> None:
    assert size_unit(op, 3, "float32") == unit


def test_fitting_rounds_down_up_to_the_least_and_leaves_each_once() -> None:
    cases = [case_of("all_gather", 3, size) for size in (1, 13, 24, 25, 1000)]
    assert [case["bytes"] for case in fitted(cases)] == [12, 24, 996]


def test_a_ranks_part_is_known_where_s_is_the_total() -> None:
    placed = CollectivesSuite().placed_params
    assert placed(case_of("reduce_scatter", 3, 36), Site()) == {"bytes_per_rank": 12}
    assert placed(case_of("all_reduce", 3, 36), Site()) == {}
