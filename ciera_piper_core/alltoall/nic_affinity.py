"""Which of a node's NICs is nearest to this rank, as far as the kernel tells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SYSFS = Path("/sys")

NIC_CLASSES = ("infiniband", "cxi")
"""Kernel classes of the NICs of fast networks: InfiniBand and RoCE, Slingshot."""


def nearest_nics(on_gpu: bool, sysfs: Path = SYSFS) -> tuple[int, ...]:
    """Indices of the NICs nearest to this process, among its node's NICs in order of name.

    Near a GPU is what shares most of its path through PCI; near cores is what is on their NUMA node.

    Args:
        on_gpu: the rank's data is on the current CUDA device, not in host memory.

    Returns:
        All that are equally near; empty where there is none, or the place of one cannot be read.
    """
    nics = nic_devices(sysfs)
    if not nics:
        return ()
    if on_gpu:
        gpu = sysfs / "bus" / "pci" / "devices" / _current_gpu_address()
        return nearest_by_path(gpu.resolve(), nics) if gpu.exists() else ()
    return nearest_by_numa(_numa_nodes_of_this_process(sysfs), nics)


def nic_devices(sysfs: Path = SYSFS) -> list[Path]:
    """The PCI devices behind the node's NICs, in order of the NICs' names; virtual ones are left out."""
    found = []
    for kind in NIC_CLASSES:
        folder = sysfs / "class" / kind
        names = sorted(folder.iterdir()) if folder.is_dir() else []
        found += [(name / "device").resolve() for name in names if (name / "device").exists()]
    return found


def nearest_by_path(device: Path, nics: list[Path]) -> tuple[int, ...]:
    """Indices of the NICs whose path in sysfs has most in common with ``device``'s."""
    common = [len(os.path.commonpath([device, nic]).split(os.sep)) for nic in nics]
    return tuple(index for index, length in enumerate(common) if length == max(common))


def nearest_by_numa(numa_nodes: set[int], nics: list[Path]) -> tuple[int, ...]:
    """Indices of the NICs on one of ``numa_nodes``; all of them if none is, or none says where it is."""
    near = tuple(index for index, nic in enumerate(nics) if _numa_node(nic) in numa_nodes)
    return near or tuple(range(len(nics)))


def _numa_node(device: Path) -> int | None:
    try:
        return int((device / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _numa_nodes_of_this_process(sysfs: Path) -> set[int]:
    cores = os.sched_getaffinity(0)
    found = set()
    for folder in (sysfs / "devices" / "system" / "node").glob("node[0-9]*"):
        if any((folder / f"cpu{core}").exists() for core in cores):
            found.add(int(folder.name.removeprefix("node")))
    return found


def _current_gpu_address() -> str:
    """As the kernel writes it, ``0000:1b:00.0``."""
    import torch

    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
