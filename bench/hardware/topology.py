"""Which NIC is near which GPU: the affinity that decides how traffic leaves a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.hardware.kernelfs import ROOT, list_dir
from bench.hardware.network import without_mac
from bench.hardware.pci import PciPlace, Proximity, locate, proximity

if TYPE_CHECKING:
    from pathlib import Path

    from bench.hardware.gpu import Gpu


@dataclass(frozen=True)
class GpuAffinity:
    """The surroundings of a GPU.

    Attributes:
        gpu: index in ``read_gpus``.
        numa_node: that it hangs on; None where the firmware does not say.
        nics: how near each NIC is, by name: RDMA devices, and interfaces that have none.
    """

    gpu: int
    numa_node: int | None
    nics: dict[str, Proximity]


def read_affinities(gpus: list[Gpu], root: Path = ROOT) -> list[GpuAffinity]:
    """The surroundings of every GPU whose place on the PCI tree can be read."""
    nics = _nic_places(root)
    affinities = []
    for index, gpu in enumerate(gpus):
        place = locate(root / "sys/bus/pci/devices" / gpu.pci_address) if gpu.pci_address else None
        if place:
            near = {name: proximity(place, nic) for name, nic in nics.items()}
            affinities.append(GpuAffinity(index, place.numa_node, near))
    return affinities


def _nic_places(root: Path) -> dict[str, PciPlace]:
    """Places of NICs by name. A card with an RDMA device goes by that, as NCCL_IB_HCA names it."""
    places: dict[str, PciPlace] = {}
    for kind in ("infiniband", "net"):
        for entry in list_dir(root / "sys/class" / kind):
            place = locate(entry / "device")
            if place and place not in places.values() and not (entry / "device/physfn").exists():
                places[without_mac(entry.name)] = place
    return places
