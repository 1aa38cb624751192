"""Upper bounds of matrix-product rates, to reject numbers that no hardware of this kind can reach.

The bounds are generous on purpose: a number above one is a fault of the measurement. They are no
denominators of a utilisation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bench.definitions import Ceiling
from bench.hardware.cpu import affinity, count_cores, isa_extensions
from bench.hardware.kernelfs import ROOT, read_int, read_text

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("float64", "float32", "bfloat16", "float16", "float8")
"""torch's names; ``float8`` stands for all of its kinds, which run at one rate."""

DTYPE_ALIASES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}

GENEROUS_CLOCK_GHZ = 6.0
"""No processor of a server or a laptop runs faster on all cores."""

_TRUSTED_CLOCK_DRIVERS = ("intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp")
"""Drivers whose highest frequency includes turbo; that of acpi-cpufreq and cppc does not."""

GPU_PEAKS_TFLOPS: dict[str, tuple[str, dict[str, float]]] = {
    r"\bGB200\b": (
        "NVIDIA GB200 NVL72 datasheet, per GPU, half of the sparse figures",
        {"float64": 40, "float32": 80, "bfloat16": 2500, "float16": 2500, "float8": 5000},
    ),
    r"\bB200\b": (
        "NVIDIA HGX B200 datasheet, per GPU, half of the sparse figures",
        {"float64": 37.5, "float32": 75, "bfloat16": 2250, "float16": 2250, "float8": 4500},
    ),
    r"\bH[12]00 NVL\b": (
        "NVIDIA H100/H200 NVL datasheets, half of the sparse figures",
        {"float64": 60, "float32": 60, "bfloat16": 836, "float16": 836, "float8": 1671},
    ),
    r"\bH100 PCIe\b": (
        "NVIDIA H100 PCIe datasheet, half of the sparse figures",
        {"float64": 51.2, "float32": 51.2, "bfloat16": 757, "float16": 757, "float8": 1513},
    ),
    r"\b(H100|H200|GH200)\b": (
        "NVIDIA H100/H200 SXM datasheets, half of the sparse figures",
        {"float64": 67, "float32": 67, "bfloat16": 990, "float16": 990, "float8": 1979},
    ),
    r"\bA100\b": (
        "NVIDIA A100 datasheet, without sparsity",
        {"float64": 19.5, "float32": 19.5, "bfloat16": 312, "float16": 312},
    ),
    r"\bMI300X\b": (
        "AMD Instinct MI300X datasheet, matrix peaks without sparsity",
        {"float64": 163.4, "float32": 163.4, "bfloat16": 1307.4, "float16": 1307.4, "float8": 2614.9},
    ),
    r"\bMI250X?\b": (
        "AMD Instinct MI250X datasheet, matrix peaks, half a board (one GCD)",
        {"float64": 47.9, "float32": 47.9, "bfloat16": 191.5, "float16": 191.5},
    ),
}
"""Dense peaks in TFLOP/s by a pattern of the GPU's model; the first match holds. float64 and float32 are
the higher of vector and matrix units; float32 is without TF32, which is no float32 arithmetic."""


def theoretical_peak_tflops(
    dtype: str, gpu_model: str | None = None, root: Path = ROOT, cpus: frozenset[int] | None = None
) -> Ceiling | None:
    """What matrix products of ``dtype`` can reach at best: on a GPU, or on the CPUs of this process.

    Args:
        dtype: ``float64``, ``float32``, ``bfloat16``, ``float16`` or in short ``fp64``, ``bf16``; on a GPU also
            ``float8``.
        gpu_model: as ``torch.cuda.get_device_name`` gives it; None for the CPUs.
        cpus: stands in for the affinity mask of this process. A quota is left aside, because a short
            iteration may run on all cores before the quota stops it.

    Returns:
        The bound in TFLOP/s; None if none is known for the processor or the dtype.
    """
    name = DTYPE_ALIASES.get(dtype, dtype)
    if gpu_model is not None:
        return _gpu_ceiling(name, gpu_model)
    isa = frozenset(isa_extensions(root))
    rate = _x86_flops_per_cycle(name, isa) if "sse4_2" in isa else _arm_flops_per_cycle(name, isa, root)
    if rate is None:
        return None
    flops_per_cycle, units = rate
    allowed = affinity() if cpus is None else cpus
    cores = count_cores(allowed, root)
    clock_ghz, clock_source = _highest_clock(allowed, root)
    return Ceiling(
        value=cores * clock_ghz * flops_per_cycle / 1e3,
        source=f"{cores} cores x {clock_ghz:g} GHz ({clock_source}) x {flops_per_cycle} {name} FLOP a cycle ({units})",
    )


def peaks_tflops(gpu_model: str | None = None) -> dict[str, Ceiling]:
    """``theoretical_peak_tflops`` by each dtype that has one, under torch's names."""
    found = {dtype: theoretical_peak_tflops(dtype, gpu_model) for dtype in DTYPES}
    return {dtype: ceiling for dtype, ceiling in found.items() if ceiling is not None}


def _gpu_ceiling(dtype: str, model: str) -> Ceiling | None:
    for pattern, (source, peaks) in GPU_PEAKS_TFLOPS.items():
        if re.search(pattern, model):
            return Ceiling(peaks[dtype], source) if dtype in peaks else None
    return None


def _x86_flops_per_cycle(dtype: str, isa: frozenset[str]) -> tuple[int, str] | None:
    """Of one core, with two pipes of the widest unit that the kernel reports."""
    width_bits, unit = next(
        ((bits, name) for flag, bits, name in (("avx512f", 512, "AVX-512"), ("avx", 256, "AVX")) if flag in isa),
        (128, "SSE"),
    )
    # Without FMA, one pipe adds while the other multiplies.
    per_lane, pipes = (4, "2 FMA pipes") if "fma" in isa else (2, "an add and a multiply pipe")
    if dtype in ("float64", "float32"):
        lanes = width_bits // (64 if dtype == "float64" else 32)
        return lanes * per_lane, f"{unit}, {pipes}"
    if dtype not in ("bfloat16", "float16"):
        return None
    # The kernel never shows the flag of AMX-FP16, so any AMX stands for it too. A tile product is
    # 16 x 16 x 32 multiply-adds in 16 cycles.
    if "amx_tile" in isa:
        return 1024, "AMX"
    if ("avx512_bf16" if dtype == "bfloat16" else "avx512_fp16") in isa:
        return 512 // 16 * 4, f"{unit} with 16-bit products, 2 pipes"
    return width_bits // 32 * per_lane, f"computed as float32 on {unit}, {pipes}"


def _arm_flops_per_cycle(dtype: str, isa: frozenset[str], root: Path) -> tuple[int, str] | None:
    """Of one core, with four pipes; none for cores with SME, whose matrix unit may be shared and of any size."""
    if "asimd" not in isa or "sme" in isa:
        return None
    # The default vector length of a process, in bytes, is the longest of the hardware unless an administrator cut it.
    sve_bits = 8 * (read_int(root / "proc/sys/abi/sve_default_vector_length") or 0) if "sve" in isa else 0
    width_bits = max(128, sve_bits)
    unit = f"{width_bits}-bit {'SVE' if sve_bits else 'NEON'}, 4 pipes"
    if dtype in ("float64", "float32"):
        return width_bits // (64 if dtype == "float64" else 32) * 8, unit
    if dtype == "bfloat16" and isa & {"bf16", "svebf16"}:
        # BFMMLA does two multiply-adds for each 16-bit lane.
        return width_bits // 16 * 16, f"{unit}, BFMMLA"
    if dtype == "float16" and "asimdhp" in isa:
        return width_bits // 16 * 8, unit
    if dtype in ("bfloat16", "float16"):
        return width_bits // 32 * 8, f"computed as float32 on {unit}"
    return None


def _highest_clock(cpus: frozenset[int], root: Path) -> tuple[float, str]:
    """The highest clock of these CPUs in GHz, turbo included, and how it is known."""
    clocks_khz = []
    for cpu in cpus:
        policy = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        if read_text(policy / "scaling_driver") in _TRUSTED_CLOCK_DRIVERS:
            clocks_khz.append(read_int(policy / "cpuinfo_max_freq") or 0)
    if max(clocks_khz, default=0) > 0:
        return max(clocks_khz) / 1e6, "turbo clock by cpufreq"
    return GENEROUS_CLOCK_GHZ, "assumed: this machine does not tell its turbo clock"
