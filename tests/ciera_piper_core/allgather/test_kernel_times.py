"""Kernel times: blends of what was calibrated, and sums of a profile's codec rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ciera_piper_core.allgather.kernel_times import STAGES, StageTimes, codec_kernel_times
from tests.ciera_piper_core.allgather.gain_cases import line

RATES = {"split_hash": 8.0, "merge": 9.0, "encode": 2.0, "decode": 3.0}
MIB = 1 << 20


def row(stage: str, rate: float, **params: Any) -> dict[str, Any]:
    """A codec row."""
    values = {"throughput": rate}
    if "coded_ratio" in params:
        values["coded_ratio"] = params.pop("coded_ratio")
    defaults = {"backend": "native", "isa": "avx512", "dtype": "bfloat16", "bytes": 64 * MIB, "threads": 1}
    return {"params": {"stage": stage, "data": "gaussian", **defaults, **params}, "values": values}


def rows(factor: float = 1.0, **params: Any) -> list[dict[str, Any]]:
    """The rows of all stages."""
    return [row(stage, rate * factor, **params) for stage, rate in RATES.items()]


def times() -> StageTimes:
    return StageTimes(line(4e9), line(2e9), line(1e9), sparse_ratio=0.01, dense_ratio=0.31)


def test_nothing_changed_costs_the_pass_alone() -> None:
    assert float(times().seconds(MIB, 0.0, 0.0)) == pytest.approx(MIB / 4e9)


def test_everything_changed_costs_what_was_measured() -> None:
    assert float(times().seconds(MIB, 1.0, 0.01)) == pytest.approx(MIB / 2e9)
    assert float(times().seconds(MIB, 1.0, 0.31)) == pytest.approx(MIB / 1e9)


def test_between_them_it_is_a_blend() -> None:
    half_way = float(times().seconds(MIB, 1.0, 0.16))
    assert half_way == pytest.approx((MIB / 2e9 + MIB / 1e9) / 2)
    assert float(times().seconds(MIB, 0.5, 0.31)) == pytest.approx((MIB / 4e9 + MIB / 1e9) / 2)


def test_ratios_beyond_those_measured_cost_no_more() -> None:
    assert float(times().seconds(MIB, 1.0, 0.9)) == pytest.approx(MIB / 1e9)
    assert float(times().seconds(MIB, 1.0, 0.0)) == pytest.approx(MIB / 2e9)


def test_noise_never_makes_more_work_cheaper() -> None:
    noisy = StageTimes(line(1e9), line(2e9), line(4e9), 0.01, 0.31)
    seconds = noisy.seconds(MIB, np.array([0.0, 0.5, 1.0]), 0.31)
    assert np.all(np.diff(seconds) >= 0)


def test_equal_ratios_count_as_dense() -> None:
    same = StageTimes(line(4e9), line(2e9), line(1e9), 0.3, 0.3)
    assert float(same.seconds(MIB, 1.0, 0.1)) == pytest.approx(MIB / 1e9)


@pytest.mark.parametrize("ratios", [(-0.1, 0.3), (0.4, 0.3)])
def test_ratios_that_cannot_be_are_refused(ratios: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="sparse ratio"):
        StageTimes(line(1e9), line(1e9), line(1e9), *ratios)


def test_a_side_is_the_sum_of_its_stages() -> None:
    kernels = codec_kernel_times(rows(), "bfloat16")
    size = 10 * MIB
    # Half of bfloat16 are exponents.
    assert float(kernels.encode.seconds(size, 0.0, 0.0)) == pytest.approx(size / 8e9)
    assert float(kernels.encode.seconds(size, 1.0, 0.5)) == pytest.approx(size / 8e9 + size / 2 / 2e9)
    assert float(kernels.decode.seconds(size, 1.0, 0.5)) == pytest.approx(size / 9e9 + size / 2 / 3e9)
    assert kernels.source == "codec rows: native avx512, 1 thread(s), bfloat16"


@pytest.mark.parametrize(("dtype", "share"), [("float16", 5 / 16), ("float32", 1 / 4)])
def test_other_types_have_another_share_of_exponents(dtype: str, share: float) -> None:
    kernels = codec_kernel_times(rows(dtype=dtype), dtype)
    size = 10 * MIB
    assert float(kernels.encode.seconds(size, 1.0, 0.5)) == pytest.approx(size / 8e9 + size * share / 2e9)


def test_rows_of_differences_are_the_sparse_mix() -> None:
    measured = [
        *rows(),
        row("encode", 2.0, coded_ratio=0.33),
        row("encode", 20.0, data="delta", coded_ratio=0.007),
        row("decode", 30.0, data="delta"),
    ]
    kernels = codec_kernel_times(measured, "bfloat16")
    assert (kernels.encode.sparse_ratio, kernels.encode.dense_ratio) == (0.007, 0.33)
    size = 10 * MIB
    assert float(kernels.encode.seconds(size, 1.0, 0.007)) == pytest.approx(size / 8e9 + size / 2 / 20e9)
    assert float(kernels.decode.seconds(size, 1.0, 0.007)) == pytest.approx(size / 9e9 + size / 2 / 30e9)


def test_data_that_is_no_model_does_not_count() -> None:
    odd = [row(stage, 1000.0, data=data) for stage in ("encode", "decode") for data in ("constant", "skewed")]
    kernels = codec_kernel_times([*odd, *rows()], "bfloat16")
    assert float(kernels.encode.seconds(MIB, 1.0, 0.5)) == pytest.approx(MIB / 8e9 + MIB / 2 / 2e9)


def test_the_fastest_backend_with_the_fewest_threads_counts_unless_named() -> None:
    measured = [*rows(0.1, isa="scalar"), *rows(), *rows(2.0, threads=2), *rows(0.01, backend="reference", isa="none")]
    assert "native avx512, 1 thread" in codec_kernel_times(measured, "bfloat16").source
    assert "native scalar, 1 thread" in codec_kernel_times(measured, "bfloat16", isa="scalar").source
    assert "avx512, 2 thread" in codec_kernel_times(measured, "bfloat16", threads=2).source
    assert "reference none" in codec_kernel_times(measured, "bfloat16", backend="reference").source


def test_ranks_that_share_cores_are_slower() -> None:
    alone, shared = (codec_kernel_times(rows(), "bfloat16", sharing=sharing) for sharing in (1.0, 2.0))
    ratio = shared.decode.seconds(MIB, 0.5, 0.2) / alone.decode.seconds(MIB, 0.5, 0.2)
    assert float(ratio) == pytest.approx(2.0)
    assert "share cores" in shared.source


@pytest.mark.parametrize("missing", STAGES)
def test_a_missing_stage_is_an_error(missing: str) -> None:
    measured = [each for each in rows() if each["params"]["stage"] != missing]
    with pytest.raises(ValueError, match=r"no codec rows of bfloat16 for all of .* \(it has: native avx512 with 1"):
        codec_kernel_times(measured, "bfloat16")


def test_another_type_or_thread_count_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no codec rows of float32 for all of .*it has: none"):
        codec_kernel_times(rows(), "float32")
    with pytest.raises(ValueError, match="bfloat16 8 threads for"):
        codec_kernel_times(rows(), "bfloat16", threads=8)


def test_sizes_that_were_not_measured_are_named() -> None:
    kernels = codec_kernel_times(rows(), "bfloat16")
    assert kernels.note([64 * MIB]) == ""
    assert kernels.note([MIB, 64 * MIB]) == (
        "kernel times are extrapolated for 1 of 2 segment(s): measured from 67,108,864 to 67,108,864 bytes"
    )
