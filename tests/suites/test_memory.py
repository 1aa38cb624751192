"""Tests of the memory suite: exact kernels, a working set beyond the caches, and a check that can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Preset, Site
from suites.memory import ASSUMED_CACHE_BYTES, PERIOD, MemorySuite, working_set_bytes

SUITE = MemorySuite()
SITE = Site(last_level_cache_bytes=4 * 2**20)
KERNELS = ["copy", "triad"]


def case_of(kernel: str = "copy", cache_multiple: int = 4) -> Case:
    return Case({"kernel": kernel, "cache_multiple": cache_multiple, "threads": 0})


def ran(kernel: str) -> Any:
    workload = SUITE.setup(case_of(kernel), Context(SITE, RankGroup()))
    workload.prepare()
    workload.run()
    return workload


@pytest.mark.parametrize("kernel", KERNELS)
def test_right_results_pass(kernel: str) -> None:
    workload = ran(kernel)
    assert workload.check() == 0
    workload.close()


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_wrong_element_is_counted(kernel: str) -> None:
    workload = ran(kernel)
    for index in (0, PERIOD, -1):
        workload._a[index] += 1
    workload._a[7] = torch.nan
    assert workload.check() == 4
    workload.close()


def test_a_kernel_that_never_ran_is_all_wrong() -> None:
    workload = SUITE.setup(case_of(), Context(SITE, RankGroup()))
    assert workload.check() == 2 * 2**20
    workload.close()


def test_triad_reads_both_inputs() -> None:
    workload = ran("triad")
    workload._inputs[1][5] += 1
    workload.run()
    assert workload.check() == 1
    assert workload._a[:3].tolist() == [0 + 3 * 1, 1 + 3 * 2, 2 + 3 * 3]
    workload.close()


@pytest.mark.parametrize(("kernel", "arrays"), [("copy", 2), ("triad", 3)])
def test_bytes_are_those_read_and_written(kernel: str, arrays: int) -> None:
    workload = ran(kernel)
    held = workload._a.nbytes + sum(array.nbytes for array in workload._inputs)
    assert workload.work.bytes == held
    # All arrays together are four caches, up to the rounding of a third.
    assert 16 * 2**20 - 4 * arrays < held <= 16 * 2**20
    workload.close()


def test_the_working_set_follows_the_cache() -> None:
    assert working_set_bytes(case_of(cache_multiple=12), SITE) == 48 * 2**20
    assert working_set_bytes(case_of(), Site()) == 4 * ASSUMED_CACHE_BYTES


def test_rows_carry_the_true_number_of_threads() -> None:
    assert SUITE.placed_params(case_of(), Site(cores=3)) == {"threads": 3}


def test_reasons_to_skip() -> None:
    assert SUITE.skip_reason(case_of(), SITE) is None
    assert SUITE.skip_reason(case_of(cache_multiple=2), SITE) == (
        "arrays of less than 4 times the last level cache would measure the cache"
    )
    huge = Site(last_level_cache_bytes=2**50)
    assert str(SUITE.skip_reason(case_of(), huge)).startswith("needs 4096TiB of memory, ")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert {case["kernel"] for case in cases} == set(KERNELS)
    assert min(case["cache_multiple"] for case in cases) == 4
