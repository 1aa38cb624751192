"""Tests of the memory suite: exact kernels, a working set beyond the caches, and a check that can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.errors import UsageError
from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Preset, Site
from suites.memory import ASSUMED_CACHE_BYTES, LEAST_CUDA_CACHE_BYTES, PERIOD, MemorySuite, array_bytes

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
    assert array_bytes(case_of(cache_multiple=12), SITE) == 24 * 2**20
    assert array_bytes(case_of("triad", cache_multiple=12), SITE) == 16 * 2**20
    assert array_bytes(case_of(), Site()) == 2 * ASSUMED_CACHE_BYTES


def test_a_pass_on_a_gpu_is_long_beside_its_launch() -> None:
    h200 = Site(device="cuda", last_level_cache_bytes=50 * 2**20)
    assert array_bytes(case_of(), h200) == 2 * LEAST_CUDA_CACHE_BYTES
    # At 8 TB/s, the fastest memory so far.
    assert SUITE.memory_bytes(case_of(), h200) / 8e12 > 100 * 5e-6
    larger = Site(device="cuda", last_level_cache_bytes=2 * LEAST_CUDA_CACHE_BYTES)
    assert array_bytes(case_of(), larger) == 4 * LEAST_CUDA_CACHE_BYTES


def test_rows_carry_the_true_number_of_threads_and_the_size() -> None:
    site = Site(cores=3, last_level_cache_bytes=6 * 2**20)
    assert SUITE.placed_params(case_of("triad"), site) == {"threads": 3, "array_bytes": 8 * 2**20}


@pytest.mark.parametrize("kernel", KERNELS)
def test_memory_is_that_of_the_arrays(kernel: str) -> None:
    workload = ran(kernel)
    assert SUITE.memory_bytes(case_of(kernel), SITE) == workload.work.bytes
    workload.close()


def test_reasons_to_skip() -> None:
    assert SUITE.skip_reason(case_of(), SITE) is None
    too_many = Case({**case_of().params, "threads": 2})
    assert SUITE.skip_reason(too_many, SITE) == "asks for 2 threads, the process may use 1 core(s)"


def test_what_fits_the_cache_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^cache_multiple needs at least 4, not 3$"):
        SUITE.axis("cache_multiple").parse("4,3")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert {case["kernel"] for case in cases} == set(KERNELS)
    assert min(case["cache_multiple"] for case in cases) == 4
