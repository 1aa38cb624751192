"""The all-gather latency suite: density of its sizes, and its oracle in a real gloo world."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from bench.suite import Case, Context, Site
from suites.allgather_latency import AllGatherLatencySuite
from suites.collectives import CollectivesSuite
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Value

SUITE = AllGatherLatencySuite()


def case_of(ranks: int, size: int, dtype: str = "bfloat16") -> Case:
    params: dict[str, Value] = {"op": "all_gather", "ranks": ranks, "dtype": dtype, "bytes": size}
    return Case(params | {"algorithm": "library", "traffic": "uniform"})


@pytest.mark.parametrize("preset", ["quick", "standard", "full"])
def test_sizes_are_dense_enough_to_interpolate(preset: Any) -> None:
    sizes = [case["bytes"] for case in SUITE.cases(preset, {"ranks": [2]})]
    # Of what a rank contributes, 1 KiB to 64 MiB.
    assert sizes[0] <= 2 << 10
    assert sizes[-1] >= 128 << 20
    assert len(sizes) >= 14
    assert all(small < large <= 4 * small for small, large in pairwise(sizes))


def test_skip_reasons() -> None:
    assert SUITE.skip_reason(case_of(2, 1024), Site(world=2)) is None
    assert SUITE.skip_reason(case_of(1, 1024), Site()) == "a collective operation needs at least 2 ranks"
    assert SUITE.skip_reason(case_of(3, 1024), Site(world=3)) == (
        "1024 bytes do not divide into units of 6 (elements of bfloat16, 3 at a time); use 1020 or 1026"
    )


def test_preset_sizes_fit_any_number_of_ranks() -> None:
    cases = list(SUITE.cases("quick", {"ranks": [3]}))
    assert [SUITE.skip_reason(case, Site(world=3)) for case in cases] == [None] * len(cases)
    assert len(cases) == len(list(SUITE.cases("quick", {})))


def test_sizes_mean_the_same_as_in_collectives() -> None:
    case = case_of(4, 4096)
    assert set(case.params) == {axis.name for axis in CollectivesSuite.axes}
    assert SUITE.placed_params(case, Site(world=4)) == {"bytes_per_rank": 1024}
    assert SUITE.placed_params(case, Site()) == CollectivesSuite().placed_params(case, Site())


@pytest.mark.parametrize("world", [2, 3])
def test_each_rank_contributes_its_part_of_s(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> tuple[int, int, int]:
        workload: Any = SUITE.setup(case_of(world, world * 4096), context)
        workload.run()
        return workload.check(), workload._received.nbytes, workload.work.bytes

    assert run_world(world, body, tmp_path) == [(0, world * 4096, world * 4096)] * world
