"""Tests of what compute suites share: threads, ceilings, and cases that would take too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.definitions import Ceiling
from bench.hardware import peaks_tflops
from bench.suite import Case, Site
from suites import compute
from suites.compute import ThreadedWorkload, peak_of, threads_of, threads_reason
from suites.matmul_peak import MatmulPeakSuite

if TYPE_CHECKING:
    import pytest

    from bench.suite import Value


def case_of(**changes: Value) -> Case:
    params: dict[str, Value] = {
        "dtype": "float32",
        "size": 64,
        "shape": "square",
        "threads": 0,
        "m": 64,
        "n": 64,
        "k": 64,
    }
    return Case(params | changes)


class Idle(ThreadedWorkload):
    """Computes nothing."""

    def run(self) -> None:
        pass

    def check(self) -> int:
        return 0


def test_zero_threads_are_all_cores() -> None:
    assert threads_of(case_of(threads=0), Site(cores=12)) == 12
    assert threads_of(case_of(threads=3), Site(cores=12)) == 3
    assert threads_of(case_of(threads=0), Site(cores=12, device="cuda")) == 0


def test_more_threads_than_cores_are_skipped() -> None:
    assert threads_reason(case_of(threads=2), Site(cores=2)) is None
    assert threads_reason(case_of(threads=4), Site(cores=2)) == "asks for 4 threads, the process may use 2 core(s)"


def test_rows_carry_the_true_number_of_threads() -> None:
    assert MatmulPeakSuite().placed_params(case_of(), Site(cores=6)) == {"threads": 6}


def test_threads_are_set_and_given_back() -> None:
    before = torch.get_num_threads()
    workload = Idle(case_of(threads=before + 1), Site(cores=before + 1))
    assert torch.get_num_threads() == before + 1
    workload.close()
    assert torch.get_num_threads() == before


def test_the_peak_is_the_ceiling_of_the_throughput() -> None:
    peak = Ceiling(0.5, "AVX-512")
    work = MatmulPeakSuite().work(case_of(), Site(peak_tflops={"float32": peak}))
    assert work.ceilings == {"throughput": peak}
    assert work.flops == 2 * 64**3
    assert MatmulPeakSuite().work(case_of(), Site()).ceilings == {}
    float8 = MatmulPeakSuite().work(case_of(dtype="float8_e4m3fn"), Site(peak_tflops={"float8": peak}))
    assert float8.ceilings == {"throughput": peak}


def test_every_dtype_of_the_suites_has_a_ceiling_on_a_known_gpu() -> None:
    h200 = Site(device="cuda", peak_tflops=peaks_tflops("NVIDIA H200"))
    peaks = {str(dtype): peak_of(case_of(dtype=dtype), h200) for dtype in MatmulPeakSuite().axis("dtype").choices}
    assert {dtype: peak and peak.value for dtype, peak in peaks.items()} == {
        "bfloat16": 990,
        "float16": 990,
        "float32": 67,
        "float8_e4m3fn": 1979,
    }
    long = case_of(dtype="float8_e4m3fn", m=2**17, n=2**16, k=2**16)
    work = MatmulPeakSuite().work(long, h200)
    assert work.flops / 1979e12 > compute.LONGEST_ITERATION_S
    assert "over 0.5 s even at 1.98e+03 TFLOP/s" in str(MatmulPeakSuite()._too_long_reason(long, h200))


def test_a_case_that_would_take_too_long_is_skipped() -> None:
    site = Site(peak_tflops={"float32": Ceiling(0.5, "AVX-512")})
    long = case_of(size=16384, m=16384, n=16384, k=16384)
    assert MatmulPeakSuite().skip_reason(case_of(), site) is None
    assert MatmulPeakSuite().skip_reason(long, Site()) is None
    assert MatmulPeakSuite().skip_reason(long, site) == (
        "an iteration is 8.8 TFLOP: over 0.5 s even at 0.5 TFLOP/s (AVX-512)"
    )


def test_rotation_fills_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "ROTATED_BYTES", 100)
    assert [compute.rotation(size) for size in (1, 30, 100, 1000)] == [100, 4, 1, 1]
