"""Checks of the machine: what there is to measure, and what would make its measurements noisy."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from bench.definitions import format_bytes
from bench.doctor.check import Check
from bench.doctor.software import torch_for_gpu_command
from bench.hardware.cgroup import memory_limit_bytes
from bench.hardware.conditions import clock_source, governor, load_1min, steal_fraction, transparent_hugepages
from bench.hardware.cpu import read_cpu, usable_cores
from bench.hardware.gpu import pci_gpu_vendors, read_gpus
from bench.hardware.kernelfs import ROOT, read_text
from bench.hardware.memory import GIB, available_memory_bytes, total_memory_gib
from bench.hardware.network import read_rdma_devices

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bench.doctor.torch_probe import TorchProbe

FAST_CLOCK_SOURCES = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase")
"""Those that a process reads without a system call."""

LEAST_OPEN_FILES = 1024
MOST_STEAL_FRACTION = 0.01


def check_cores(root: Path = ROOT, cpus: frozenset[int] | None = None) -> Check:
    """Cores of the machine, and whether others share them or a limit hides some.

    ``cpus`` stands in for the affinity mask of this process.
    """
    cpu = read_cpu(root, cpus)
    usable, steal = usable_cores(root, cpus), steal_fraction(root) or 0.0
    found = f"{usable} of {cpu.physical_cores} cores usable, {cpu.sockets or '?'} socket(s), {cpu.model}"
    if cpu.quota_cores is not None:
        found += f"; a quota of {cpu.quota_cores:g} cores throttles whatever exceeds it"
        return Check("cores", "warn", found, "raise the container's or the job's CPU limit (docker run --cpus)")
    if cpu.usable_logical_cpus < (cpu.logical_cpus or 0):
        found += "; the affinity mask hides the others, whose work still shares caches and memory"
        advice = "ask for whole nodes (srun --exclusive --cpu-bind=none), or start without taskset or --cpuset-cpus"
        return Check("cores", "warn", found, advice)
    if steal > MOST_STEAL_FRACTION:
        found += f"; since boot, the hypervisor gave {steal:.0%} of the time to others"
        return Check("cores", "warn", found, "use a machine with dedicated cores")
    return Check("cores", "ok", found)


def check_memory(root: Path = ROOT) -> Check:
    """Memory that ranks can have."""
    available, limit = available_memory_bytes(root), memory_limit_bytes(root)
    found = f"{available / GIB:.1f} GiB available of {total_memory_gib(root)} GiB"
    if limit is not None and limit < total_memory_gib(root) * GIB:
        found += f", limited to {format_bytes(limit)} by a control group"
    return Check("memory", "ok" if available >= GIB else "warn", found)


def check_gpus(torch: TorchProbe, root: Path = ROOT) -> Check:
    """GPUs that are there, that a driver answers for, and that torch can use: the three may differ."""
    on_bus, gpus = pci_gpu_vendors(root), read_gpus(root)
    if not on_bus and not gpus:
        return Check("GPUs", "n/a", "none; suites run on the CPU")
    if not gpus:
        found = f"{_counted(on_bus)} on the PCI bus, and no driver answers"
        return Check(
            "GPUs", "missing", found, "install the driver; in a container, pass them in (docker run --gpus all)"
        )
    found = f"{_counted([gpu.model for gpu in gpus])}, driver {gpus[0].driver or 'of unknown version'}"
    if torch.error:
        return Check("GPUs", "missing", f"{found}; no torch to use them")
    if torch.built_for == "CPU":
        return Check("GPUs", "missing", f"{found}; this torch is built for the CPU alone", torch_for_gpu_command(root))
    if torch.device_error or not torch.devices:
        hidden = [name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in os.environ]
        why = torch.device_error or (f"{hidden[0]} is set" if hidden else "torch finds none")
        fix = f"unset {hidden[0]}" if hidden else "see whether nvidia-smi or rocm-smi lists them for this user"
        return Check("GPUs", "missing", f"{found}; torch can use none: {why}", fix)
    return Check("GPUs", "ok", f"{found}; torch can use {len(torch.devices)}")


def check_rdma(root: Path = ROOT) -> Check:
    """InfiniBand and RoCE devices, and the right to pin memory that they need."""
    devices = read_rdma_devices(root)
    if not devices:
        return Check("RDMA", "n/a", "no InfiniBand or RoCE device")
    ports = [(port.link_layer or "unknown link", port.rate_mbit_per_s) for device in devices for port in device.ports]
    found = _counted([f"{link} {rate / 1000:g} Gb/s" if rate else f"{link}, down" for link, rate in ports])
    soft_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft_bytes == resource.RLIM_INFINITY:
        return Check("RDMA", "ok", found)
    found += f"; only {format_bytes(soft_bytes)} of memory may be pinned"
    advice = "ulimit -l unlimited (for jobs: PropagateResourceLimitsExcept=MEMLOCK and LimitMEMLOCK of slurmd)"
    return Check("RDMA", "warn", found, advice)


def check_governor(root: Path = ROOT) -> Check:
    """Who chooses the clock frequency."""
    found = governor(root)
    if found is None:
        return Check("governor", "n/a", "firmware or the hypervisor chooses the clock")
    if found == "performance":
        return Check("governor", "ok", found)
    return Check(
        "governor", "warn", f"{found}: the clock follows the load", "sudo cpupower frequency-set -g performance"
    )


def check_load(root: Path = ROOT) -> Check:
    """Whether others compute here now."""
    load, cores = load_1min(root), usable_cores(root)
    if load is None:
        return Check("load", "n/a", "unknown")
    found = f"{load:g} over the last minute, on {cores} core(s)"
    if load > cores / 2:
        return Check(
            "load", "warn", f"{found}: results will be noisy", "wait until it is below half of the cores (uptime)"
        )
    return Check("load", "ok", found)


def check_clock_source(root: Path = ROOT) -> Check:
    """What durations are read from, and what a reading costs."""
    source = clock_source(root)
    found = f"{source or 'unknown'}, {_clock_reading_ns():.0f} ns a reading"
    if source is None or source in FAST_CLOCK_SOURCES:
        return Check("clock source", "ok" if source else "n/a", found)
    folder = "sys/devices/system/clocksource/clocksource0"
    can_be_tsc = "tsc" in (read_text(root / folder / "available_clocksource") or "").split()
    fix = f"echo tsc | sudo tee /{folder}/current_clocksource" if can_be_tsc else "boot with clocksource=tsc"
    return Check("clock source", "warn", f"{found}: each is a system call", fix)


def check_hugepages(root: Path = ROOT) -> Check:
    """The policy for transparent huge pages: it changes memory rates, so that it should not change between runs."""
    policy = transparent_hugepages(root)
    return Check("huge pages", "ok" if policy else "n/a", policy or "the kernel has no transparent huge pages")


def check_open_files() -> Check:
    """How many sockets a rank may hold: a group of n ranks needs some for each of its peers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = f"{_limit(soft)}, at most {_limit(hard)}"
    if soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES:
        return Check("open files", "ok", limits)
    return Check("open files", "warn", f"{limits}: too few for large groups", f"ulimit -n {LEAST_OPEN_FILES}")


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _clock_reading_ns(readings: int = 2000, rounds: int = 9) -> float:
    costs = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        for _ in range(readings):
            time.perf_counter_ns()
        costs.append((time.perf_counter_ns() - began) / readings)
    return median(costs)
