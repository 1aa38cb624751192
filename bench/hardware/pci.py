"""The PCI tree: where a device hangs, and how near two of them are, in the terms of ``nvidia-smi topo``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.hardware.kernelfs import read_int

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Proximity = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
"""Through one PCIe switch; several; the host bridge; between host bridges of a NUMA node; between NUMA nodes."""


@dataclass(frozen=True)
class PciPlace:
    """Where a PCI device hangs.

    Attributes:
        path: its host bridge, the bridges below it, and the device itself, as sysfs names them.
        numa_node: of the host bridge; None where the firmware does not say.
    """

    path: tuple[str, ...]
    numa_node: int | None


def locate(device: Path) -> PciPlace | None:
    """The place of a ``device`` entry of sysfs; None if it is absent or not on PCI."""
    try:
        parts = device.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return None
    host_bridge = next((part for part in parts if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), None)
    addresses = tuple(part for part in parts if _ADDRESS.fullmatch(part))
    if host_bridge is None or not addresses:
        return None
    return PciPlace((host_bridge, *addresses), numa_node(device))


def numa_node(device: Path) -> int | None:
    """The NUMA node of a ``device`` entry of sysfs; None if the kernel does not know (it writes -1)."""
    node = read_int(device / "numa_node")
    return None if node is None or node < 0 else node


def proximity(one: PciPlace, other: PciPlace) -> Proximity:
    """How near two devices are: the farthest kind of hop that data between them must take."""
    shared = 0
    for mine, theirs in zip(one.path, other.path, strict=False):
        if mine != theirs:
            break
        shared += 1
    if shared == 0:
        same_node = one.numa_node == other.numa_node and one.numa_node is not None
        return "NODE" if same_node else "SYS"
    if shared == 1:
        return "PHB"
    # A switch is an upstream port with downstream ports below it, so that two devices of the same
    # switch are each at most two steps under the last bridge that they share.
    farthest = max(len(one.path), len(other.path)) - shared
    return "PIX" if farthest <= 2 else "PXB"
