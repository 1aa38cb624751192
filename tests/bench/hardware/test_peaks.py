"""Upper bounds of matrix rates: generous, by the widest unit that the kernel reports."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from bench.hardware.peaks import GPU_PEAKS_TFLOPS, peaks_tflops, theoretical_peak_tflops

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree

ALL = frozenset(range(16))
ONE = frozenset({0})
AVX2 = "sse4_2 avx avx2 fma"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl"


@pytest.mark.parametrize(
    ("flags", "dtype", "flops_per_cycle"),
    [
        ("sse4_2", "fp32", 8),
        ("sse4_2 avx", "fp32", 16),
        (AVX2, "fp64", 16),
        (AVX2, "fp32", 32),
        (AVX2, "bf16", 32),
        (AVX512, "fp64", 32),
        (AVX512, "fp32", 64),
        (AVX512, "fp16", 64),
        (f"{AVX512} avx512_bf16", "bf16", 128),
        (f"{AVX512} avx512_bf16", "fp16", 64),
        (f"{AVX512} avx512_fp16", "fp16", 128),
        (f"{AVX512} avx512_bf16 amx_bf16 amx_tile", "bf16", 1024),
        (f"{AVX512} avx512_bf16 amx_bf16 amx_tile", "fp32", 64),
    ],
)
def test_x86_units(tree: Tree, flags: str, dtype: str, flops_per_cycle: int) -> None:
    tree.write("proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}")
    ceiling = theoretical_peak_tflops(dtype, root=tree.root, cpus=ONE)
    assert ceiling is not None
    assert ceiling.value == pytest.approx(6.0 * flops_per_cycle / 1e3)
    assert "assumed" in ceiling.source


@pytest.mark.parametrize(
    ("features", "vector_bytes", "dtype", "flops_per_cycle"),
    [
        ("asimd", None, "fp32", 32),
        ("asimd asimdhp", None, "fp16", 64),
        ("asimd asimdhp bf16 sve", 16, "bf16", 128),
        ("asimd sve", 64, "fp64", 64),
    ],
)
def test_arm_units(tree: Tree, features: str, vector_bytes: int | None, dtype: str, flops_per_cycle: int) -> None:
    tree.write("proc/cpuinfo", f"processor\t: 0\nFeatures\t: {features}")
    if vector_bytes is not None:
        tree.write("proc/sys/abi/sve_default_vector_length", str(vector_bytes))
    ceiling = theoretical_peak_tflops(dtype, root=tree.root, cpus=ONE)
    assert ceiling is not None
    assert ceiling.value == pytest.approx(6.0 * flops_per_cycle / 1e3)


def test_the_clock_of_a_driver_that_knows_turbo_is_taken(hgx: Path) -> None:
    ceiling = theoretical_peak_tflops("float32", root=hgx, cpus=ALL)
    assert ceiling is not None
    assert ceiling.value == pytest.approx(8 * 3.8 * 64 / 1e3)
    assert (
        ceiling.source == "8 cores x 3.8 GHz (turbo clock by cpufreq) x 64 float32 FLOP a cycle (AVX-512, 2 FMA pipes)"
    )


def test_the_clock_of_a_driver_that_leaves_turbo_out_is_not(amd_node: Path) -> None:
    ceiling = theoretical_peak_tflops("float32", root=amd_node, cpus=ALL)
    assert ceiling is not None
    assert ceiling.value == pytest.approx(8 * 6.0 * 32 / 1e3)


@pytest.mark.parametrize("features", ["asimd sme", "vfp", ""])
def test_no_bound_is_made_up(tree: Tree, features: str) -> None:
    tree.write("proc/cpuinfo", f"processor\t: 0\nFeatures\t: {features}")
    assert theoretical_peak_tflops("float32", root=tree.root, cpus=ONE) is None


def test_other_types_have_no_bound(hgx: Path) -> None:
    assert theoretical_peak_tflops("int8", root=hgx, cpus=ALL) is None
    assert theoretical_peak_tflops("int8", "NVIDIA A100-SXM4-80GB") is None


@pytest.mark.parametrize(
    ("model", "bf16_tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 312),
        ("NVIDIA H100 80GB HBM3", 990),
        ("NVIDIA H100 PCIe", 757),
        ("NVIDIA H100 NVL", 836),
        ("NVIDIA H200", 990),
        ("NVIDIA H200 NVL", 836),
        ("NVIDIA GH200 480GB", 990),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("AMD Instinct MI250X", 191.5),
        ("AMD Instinct MI250X/MI250", 191.5),
        ("AMD Instinct MI300X", 1307.4),
    ],
)
def test_known_gpus(model: str, bf16_tflops: float) -> None:
    ceiling = theoretical_peak_tflops("bf16", model)
    assert ceiling is not None
    assert ceiling.value == bf16_tflops


def test_unknown_gpus_have_no_bound() -> None:
    assert theoretical_peak_tflops("bf16", "NVIDIA A10") is None
    assert peaks_tflops("NVIDIA GeForce RTX 4090") == {}


def test_dense_peaks_double_from_type_to_type() -> None:
    for _, peaks in GPU_PEAKS_TFLOPS.values():
        assert peaks["float64"] <= peaks["float32"] < peaks["bfloat16"] == peaks["float16"]
        assert peaks.get("float8", 0) in (0, pytest.approx(2 * peaks["bfloat16"], rel=0.01))


def test_every_dtype_of_the_table_is_looked_up() -> None:
    for model in ("NVIDIA H200", "NVIDIA B200", "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X"):
        (known,) = (set(peaks) for pattern, (_, peaks) in GPU_PEAKS_TFLOPS.items() if re.search(pattern, model))
        assert set(peaks_tflops(model)) == known
    assert peaks_tflops("NVIDIA H200")["float8"].value == 1979


@pytest.mark.alone
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_this_processor_stays_below_its_bound(dtype: str) -> None:
    import torch

    ceiling = theoretical_peak_tflops(dtype)
    if ceiling is None:
        pytest.skip("no bound is known for this processor")
    size = 768
    left, right = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
    fastest_s = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        torch.mm(left, right)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    reached = 2 * size**3 / fastest_s / 1e12
    assert 0 < reached < ceiling.value
