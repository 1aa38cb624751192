"""What changes while a machine runs: clocks, load, temperatures, free memory. Recorded, never compared."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.hardware.kernelfs import ROOT, list_dir, read_int, read_text
from bench.hardware.memory import available_memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

_PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
"""Chips that answer at once; board controllers may take a tenth of a second a sensor."""


@dataclass(frozen=True)
class Conditions:
    """The state of the machine at one moment; what it does not tell is None.

    Attributes:
        clock_mhz_min, clock_mhz_median, clock_mhz_max: over logical CPUs.
        governor: of cpufreq, all that are in use, comma separated.
        turbo: True if the processor may exceed its nominal clock.
        load_1min: runnable and blocked tasks, averaged over a minute.
        steal_fraction: of CPU time since boot, what the hypervisor gave to others.
        temperature_c: the hottest sensor of the processors.
        uptime_s, boot_id: since when, and which, boot.
        available_memory_bytes: within the limits of control groups.
        clock_source: what the kernel reads time from.
        transparent_hugepages: ``always``, ``madvise`` or ``never``.
    """

    clock_mhz_min: float | None
    clock_mhz_median: float | None
    clock_mhz_max: float | None
    governor: str | None
    turbo: bool | None
    load_1min: float | None
    steal_fraction: float | None
    temperature_c: float | None
    uptime_s: float | None
    boot_id: str | None
    available_memory_bytes: int
    clock_source: str | None
    transparent_hugepages: str | None


def read_conditions(root: Path = ROOT) -> Conditions:
    """The state of the machine now."""
    clocks = _clocks_mhz(root)
    return Conditions(
        clock_mhz_min=min(clocks, default=None),
        clock_mhz_median=median(clocks) if clocks else None,
        clock_mhz_max=max(clocks, default=None),
        governor=governor(root),
        turbo=_turbo(root),
        load_1min=load_1min(root),
        steal_fraction=steal_fraction(root),
        temperature_c=_temperature(root),
        uptime_s=_first_float(root / "proc/uptime"),
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id"),
        available_memory_bytes=available_memory_bytes(root),
        clock_source=clock_source(root),
        transparent_hugepages=transparent_hugepages(root),
    )


def governor(root: Path = ROOT) -> str | None:
    """Frequency governors in use, comma separated; None where the system does not control the clock."""
    policies = list_dir(root / "sys/devices/system/cpu/cpufreq", "policy[0-9]*")
    names = {read_text(policy / "scaling_governor") for policy in policies} - {None}
    return ",".join(sorted(str(name) for name in names)) or None


def load_1min(root: Path = ROOT) -> float | None:
    """Runnable and blocked tasks, averaged over the last minute."""
    return _first_float(root / "proc/loadavg")


def steal_fraction(root: Path = ROOT) -> float | None:
    """Share of CPU time since boot that the hypervisor gave to others."""
    fields = (read_text(root / "proc/stat") or "").partition("\n")[0].split()[1:9]
    if len(fields) < 8 or not all(field.isdecimal() for field in fields):
        return None
    total = sum(int(field) for field in fields)
    return int(fields[7]) / total if total else None


def clock_source(root: Path = ROOT) -> str | None:
    """What the kernel reads time from, as ``tsc``."""
    return read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


def transparent_hugepages(root: Path = ROOT) -> str | None:
    """The policy in force: of ``always [madvise] never``, the one in brackets."""
    policies = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    return policies.partition("[")[2].partition("]")[0] or None


def _clocks_mhz(root: Path) -> list[float]:
    """The clock of every logical CPU.

    /proc/cpuinfo has them all in one read; sysfs, which some kernels answer only after a pause for
    each CPU, is asked for one where the former has none (AArch64).
    """
    lines = (read_text(root / "proc/cpuinfo") or "").split("\n")
    texts = [line.partition(":")[2].strip() for line in lines if line.startswith("cpu MHz")]
    clocks = [clock for clock in map(_to_float, texts) if clock is not None]
    if clocks:
        return clocks
    khz = read_int(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    return [khz / 1000] if khz else []


def _turbo(root: Path) -> bool | None:
    cpus = root / "sys/devices/system/cpu"
    off = read_int(cpus / "intel_pstate/no_turbo")
    if off is not None:
        return off == 0
    boost = read_int(cpus / "cpufreq/boost")
    return None if boost is None else boost == 1


def _temperature(root: Path) -> float | None:
    chips = [chip for chip in list_dir(root / "sys/class/hwmon") if read_text(chip / "name") in _PROCESSOR_SENSORS]
    sensors = [sensor for chip in chips for sensor in list_dir(chip, "temp[0-9]*_input")]
    readings = [reading for reading in map(read_int, sensors) if reading is not None]
    return max(readings) / 1000 if readings else None


def _first_float(path: Path) -> float | None:
    return _to_float((read_text(path) or "").partition(" ")[0])


def _to_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # float() also reads "nan" and "inf", which JSON has no word for.
    return value if abs(value) < 1e18 else None
