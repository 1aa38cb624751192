"""The processor: model, cores, caches and instruction sets, and what of it this process may use."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from bench.hardware.cgroup import cpu_quota_cores
from bench.hardware.kernelfs import ROOT, list_dir, parse_cpu_list, read_int, read_text

if TYPE_CHECKING:
    from pathlib import Path

ISA_EXTENSIONS = (
    # x86-64, in the kernel's spelling
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    # AArch64
    "asimd",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
    "svebf16",
    "sme",
)
"""Extensions that change what matrix and vector kernels reach; the others are not recorded."""

ARM_CORES = {
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0x46", "0x001"): "A64FX",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""Core names by the implementer and part numbers that AArch64 shows in place of a model name."""


@dataclass(frozen=True)
class Cpu:
    """Facts of the processor that do not change while the process runs.

    Attributes:
        model, architecture: ``AMD EPYC 9654 96-Core Processor``, ``x86_64``.
        sockets, numa_nodes, physical_cores, logical_cpus: of the machine.
        usable_physical_cores, usable_logical_cpus: that the affinity mask allows.
        quota_cores: CPU time that control groups allow, in cores; None without a quota.
        l1d_bytes, l2_bytes, l3_bytes: one cache of that level.
        isa_extensions: those of ``ISA_EXTENSIONS`` that the kernel reports.
        hypervisor: name of the virtual machine monitor, ``unknown`` if it hides; None on bare metal
            and on processors that do not say (AArch64).
    """

    model: str
    architecture: str
    sockets: int | None
    numa_nodes: int | None
    physical_cores: int | None
    logical_cpus: int | None
    usable_physical_cores: int
    usable_logical_cpus: int
    quota_cores: float | None
    l1d_bytes: int | None
    l2_bytes: int | None
    l3_bytes: int | None
    isa_extensions: tuple[str, ...]
    hypervisor: str | None


def read_cpu(root: Path = ROOT, cpus: frozenset[int] | None = None) -> Cpu:
    """The processor. ``cpus`` stands in for the affinity mask of this process."""
    allowed = affinity() if cpus is None else cpus
    online = _online(root)
    info = read_cpuinfo(root)
    sizes = _cache_sizes(root, min(allowed, default=0))
    return Cpu(
        model=_model(info),
        architecture=platform.machine(),
        sockets=len({_topology(root, cpu, "physical_package_id") for cpu in online} - {None}) or None,
        numa_nodes=len(list_dir(root / "sys/devices/system/node", "node[0-9]*")) or None,
        physical_cores=count_cores(online, root) if online else psutil.cpu_count(logical=False),
        logical_cpus=len(online) or os.cpu_count(),
        usable_physical_cores=count_cores(allowed, root),
        usable_logical_cpus=len(allowed),
        quota_cores=cpu_quota_cores(root),
        l1d_bytes=sizes.get(1),
        l2_bytes=sizes.get(2),
        l3_bytes=sizes.get(3),
        isa_extensions=isa_extensions(root),
        hypervisor=_hypervisor(root, info),
    )


def usable_cores(root: Path = ROOT, cpus: frozenset[int] | None = None) -> int:
    """Physical cores that the affinity mask and the control groups' quota leave to this process, at least 1.

    A quota counts by its whole cores, since one thread more would be throttled.
    """
    cores = count_cores(affinity() if cpus is None else cpus, root)
    quota = cpu_quota_cores(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def affinity() -> frozenset[int]:
    """Logical CPUs that any thread of this process may run on.

    All threads are asked, because OpenMP may have bound the one that asks to a single core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(range(os.cpu_count() or 1))
    allowed = set(os.sched_getaffinity(0))
    for task in list_dir(ROOT / "proc/self/task"):
        try:
            allowed |= os.sched_getaffinity(int(task.name))
        except OSError:  # the thread has ended since
            continue
    return frozenset(allowed)


def last_level_cache_bytes(root: Path = ROOT, cpus: frozenset[int] | None = None) -> int | None:
    """Capacity of all last-level caches that this process's CPUs reach, together; None if unknown.

    Working sets of several times this size are in main memory on any placement of threads.
    """
    levels: dict[int, dict[str, int]] = {}
    for cpu in affinity() if cpus is None else cpus:
        for level, kind, size, sharers in _caches(root, cpu):
            if kind != "Instruction":
                levels.setdefault(level, {})[sharers] = size
    if levels:
        return sum(levels[max(levels)].values())
    match = re.fullmatch(r"(\d{1,9}) KB", read_cpuinfo(root).get("cache size", ""), re.ASCII)
    return int(match.group(1)) * 1024 if match else None


def isa_extensions(root: Path = ROOT) -> tuple[str, ...]:
    """Those of ``ISA_EXTENSIONS`` that the kernel reports, in that order."""
    info = read_cpuinfo(root)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return tuple(name for name in ISA_EXTENSIONS if name in flags)


def read_cpuinfo(root: Path = ROOT) -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    first_entry = (read_text(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first_entry.split("\n"))}


def count_cores(cpus: frozenset[int], root: Path = ROOT) -> int:
    """Distinct physical cores among logical CPUs, at least 1; a CPU whose core is unknown counts as one."""
    cores = set()
    for cpu in cpus:
        siblings = _topology(root, cpu, "core_cpus_list") or _topology(root, cpu, "thread_siblings_list")
        cores.add(siblings or f"cpu{cpu}")
    return max(1, len(cores))


def _online(root: Path) -> frozenset[int]:
    return parse_cpu_list(read_text(root / "sys/devices/system/cpu/online"))


def _topology(root: Path, cpu: int, name: str) -> str | None:
    return read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/{name}")


def _caches(root: Path, cpu: int) -> list[tuple[int, str, int, str]]:
    """Caches of a CPU: level, type, bytes, and the list of CPUs that share it."""
    caches = []
    for index in list_dir(root / f"sys/devices/system/cpu/cpu{cpu}/cache", "index[0-9]*"):
        level, kibibytes = read_int(index / "level"), read_int(index / "size")
        if level is not None and kibibytes is not None:
            sharers = read_text(index / "shared_cpu_list") or f"cpu{cpu}"
            caches.append((level, read_text(index / "type") or "Unified", kibibytes * 1024, sharers))
    return caches


def _cache_sizes(root: Path, cpu: int) -> dict[int, int]:
    return {level: size for level, kind, size, _ in _caches(root, cpu) if kind != "Instruction"}


def _model(info: dict[str, str]) -> str:
    if "model name" in info:
        return " ".join(info["model name"].split())
    implementer, part = info.get("CPU implementer"), info.get("CPU part")
    if implementer and part:
        return ARM_CORES.get((implementer, part), f"implementer {implementer} part {part}")
    return platform.processor() or platform.machine()


def _hypervisor(root: Path, info: dict[str, str]) -> str | None:
    """Who virtualises this machine, by what the firmware and the clocks say of it."""
    signs = " ".join(
        read_text(root / path) or ""
        for path in (
            "sys/hypervisor/type",
            "sys/class/dmi/id/sys_vendor",
            "sys/class/dmi/id/product_name",
            "sys/devices/system/clocksource/clocksource0/available_clocksource",
        )
    ).lower()
    known = {"xen": "xen", "vmware": "vmware", "kvm": "kvm", "qemu": "kvm", "amazon ec2": "kvm", "google": "kvm"}
    known |= {"hyperv": "hyper-v", "virtualbox": "virtualbox", "firecracker": "kvm"}
    if "hypervisor" not in info.get("flags", "").split() and not read_text(root / "sys/hypervisor/type"):
        return None
    return next((name for sign, name in known.items() if sign in signs), "unknown")
