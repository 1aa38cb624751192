"""The all-gather latency suite: density of its sizes, and its oracle in a real gloo world."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from bench.suite import Case, Context, Site
from suites.allgather_latency import AllGatherLatencySuite
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

SUITE = AllGatherLatencySuite()


def case_of(ranks: int, size: int, dtype: str = "bfloat16") -> Case:
    return Case({"op": "all_gather", "ranks": ranks, "dtype": dtype, "bytes": size, "algorithm": "library"})


@pytest.mark.parametrize("preset", ["quick", "standard", "full"])
def test_sizes_are_dense_enough_to_interpolate(preset: Any) -> None:
    sizes = [case["bytes"] for case in SUITE.cases(preset, {"ranks": [2]})]
    assert sizes[0] <= 1 << 10
    assert sizes[-1] >= 64 << 20
    assert len(sizes) >= 14
    assert all(small < large <= 4 * small for small, large in pairwise(sizes))


def test_skip_reasons() -> None:
    assert SUITE.skip_reason(case_of(2, 1024), Site(world=2)) is None
    assert SUITE.skip_reason(case_of(1, 1024), Site()) == "an all-gather needs at least 2 ranks"
    assert SUITE.skip_reason(case_of(2, 1023), Site(world=2)) == "1023 bytes are no whole elements of bfloat16"


@pytest.mark.parametrize("world", [2, 3])
def test_each_rank_contributes_the_payload(world: int, tmp_path: Path) -> None:
    def body(context: Context) -> tuple[int, int, int]:
        workload: Any = SUITE.setup(case_of(world, 4096), context)
        workload.run()
        return workload.check(), workload._received.nbytes, workload.work.bytes

    assert run_world(world, body, tmp_path) == [(0, world * 4096, world * 4096)] * world
