"""Main memory: how much there is, and how much of it this process can still have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psutil

from bench.hardware.cgroup import memory_headroom_bytes
from bench.hardware.kernelfs import ROOT, read_table

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def available_memory_bytes(root: Path = ROOT) -> int:
    """Memory that can be taken without swapping, within the limits of the process's control groups."""
    available = _meminfo_bytes(root, "MemAvailable")
    if available is None:
        available = int(psutil.virtual_memory().available)
    headroom = memory_headroom_bytes(root)
    return available if headroom is None else min(available, headroom)


def total_memory_gib(root: Path = ROOT) -> int:
    """Memory of the machine as it was installed, in GiB."""
    return installed_gib(_meminfo_bytes(root, "MemTotal") or int(psutil.virtual_memory().total))


def installed_gib(counted_bytes: int) -> int:
    """What was installed, in GiB, from what the kernel counts.

    The kernel counts 1 to 5 % less than is installed, and how much less varies with its version and
    from boot to boot. The next multiple of about a sixteenth of the whole takes that away: 503.5 and
    502.9 GiB are both 512.
    """
    step = GIB
    while step * 32 <= counted_bytes:
        step *= 2
    return -(-counted_bytes // step) * step // GIB


def _meminfo_bytes(root: Path, name: str) -> int | None:
    match = re.fullmatch(r"(\d{1,15}) kB", read_table(root / "proc/meminfo").get(name, ""), re.ASCII)
    return int(match.group(1)) * 1024 if match else None
