"""Tests of the matmul suite: shapes of equal work, rotated operands, and a check that can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Preset, Site
from suites import compute
from suites.matmul_peak import CHECKED_ROWS, MatmulPeakSuite, dimensions

SUITE = MatmulPeakSuite()
SHAPES = ["square", "deep", "wide"]


@pytest.fixture(autouse=True)
def _small_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "ROTATED_BYTES", 2**20)


def case_of(shape: str = "square", dtype: str = "float32", size: int = 192) -> Case:
    (case,) = SUITE.cases("quick", {"dtype": [dtype], "size": [size], "shape": [shape]})
    return case


def ran(case: Case) -> Any:
    """The workload of the case after some iterations."""
    workload = SUITE.setup(case, Context(Site(), RankGroup()))
    for _ in range(3):
        workload.prepare()
        workload.run()
    return workload


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_products_pass(shape: str, dtype: str) -> None:
    workload = ran(case_of(shape, dtype))
    assert workload.check() == 0
    workload.close()


def test_scaled_float8_products_pass() -> None:
    # torch has a slow float8 product on CPUs, too slow to report, and good enough to run this code.
    workload = ran(case_of(dtype="float8_e4m3fn", size=64))
    assert workload.check() == 0
    workload.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrong_products_fail(dtype: str) -> None:
    workload = ran(case_of(dtype=dtype))
    a, b, c = workload._sets[workload._current]
    c[0, 0] += 1
    c[-1, -1] = torch.nan
    assert workload.check() == 2
    workload.run()
    assert workload.check() == 0
    # A product that leaves out one of the terms.
    c.copy_(a[:, 1:] @ b[:, 1:].T)
    assert workload.check() > CHECKED_ROWS
    workload.close()


def test_a_product_that_never_ran_is_all_wrong() -> None:
    workload = SUITE.setup(case_of(), Context(Site(), RankGroup()))
    assert workload.check() == CHECKED_ROWS**2
    workload.close()


def test_operands_rotate() -> None:
    workload = ran(case_of())
    used = []
    for _ in range(6):
        workload.prepare()
        used.append(workload._sets[workload._current][0].data_ptr())
    # A set has 3 * 192 * 192 * 4 = 442,368 bytes: three make a mebibyte.
    assert len(set(used)) == 3
    workload.close()


@pytest.mark.parametrize("size", [2, 64, 2048, 16384])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_have_equal_work(shape: str, size: int) -> None:
    m, n, k = dimensions(shape, size)
    assert m * n * k == size**3


def test_cases_carry_their_dimensions() -> None:
    case = case_of("deep", size=2048)
    assert (case["m"], case["n"], case["k"]) == (1024, 1024, 8192)
    assert SUITE.flops(case) == 2 * 2048**3


def test_odd_sizes_leave_no_case() -> None:
    assert {case["size"] for case in SUITE.cases("quick", {"size": [63, 64]})} == {64}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert {case["dtype"] for case in cases} >= {"float32", "bfloat16", "float16"}
    assert len({case.id for case in cases}) == len(cases)
    assert max(SUITE.memory_bytes(case, Site()) for case in SUITE.cases("quick", {})) < 2**30


def test_float8_is_skipped_without_a_gpu() -> None:
    reason = SUITE.skip_reason(case_of(dtype="float8_e4m3fn"), Site())
    assert reason == "float8 products need a CUDA device of capability 8.9 or above"
