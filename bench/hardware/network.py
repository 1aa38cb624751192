"""Network interfaces and RDMA devices that are hardware, or a hypervisor's stand-in for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.hardware.kernelfs import ROOT, link_name, list_dir, read_int, read_text
from bench.hardware.pci import numa_node

if TYPE_CHECKING:
    from pathlib import Path

LINK_TYPES = {1: "ethernet", 32: "infiniband"}
"""Names of ARPHRD_* numbers, as in ``/sys/class/net/*/type``."""


@dataclass(frozen=True)
class Nic:
    """A network interface.

    Attributes:
        name: as ``ip link`` shows it; the MAC address in a name such as ``enx0c37960010ab`` is masked.
        driver: kernel module.
        link_type: ``ethernet``, ``infiniband``, or the number that the kernel gives it.
        speed_mbit_per_s: of the link; None while it is down, and where the driver does not know.
        numa_node: None where the firmware does not say.
    """

    name: str
    driver: str | None
    link_type: str | None
    speed_mbit_per_s: int | None
    numa_node: int | None


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device; ``link_layer`` tells InfiniBand from RoCE (``Ethernet``)."""

    number: int
    link_layer: str | None
    rate_mbit_per_s: int | None


@dataclass(frozen=True)
class RdmaDevice:
    """A device of ``/sys/class/infiniband``; ``model`` is its HCA type (``MT4129`` is a ConnectX-7)."""

    name: str
    model: str | None
    driver: str | None
    numa_node: int | None
    ports: tuple[RdmaPort, ...]


def read_nics(root: Path = ROOT) -> list[Nic]:
    """Interfaces with a device behind them: no loopback, bridges, tunnels, bonds, veth pairs.

    Virtual functions of a card whose physical function is here too are left out.
    """
    nics = []
    for interface in list_dir(root / "sys/class/net"):
        device = interface / "device"
        if not device.exists() or (device / "physfn").exists():
            continue
        speed, kind = read_int(interface / "speed"), read_int(interface / "type")
        nics.append(
            Nic(
                name=without_mac(interface.name),
                driver=link_name(device / "driver"),
                link_type=None if kind is None else LINK_TYPES.get(kind, str(kind)),
                speed_mbit_per_s=speed if speed is not None and speed > 0 else None,
                numa_node=numa_node(device),
            )
        )
    return nics


def without_mac(name: str) -> str:
    """An interface's name, with the MAC address masked in one that consists of it."""
    return re.sub(r"^enx[0-9a-f]{12}$", "enx<mac>", name)


def read_rdma_devices(root: Path = ROOT) -> list[RdmaDevice]:
    """InfiniBand and RoCE devices, virtual functions beside their physical one left out."""
    return [
        RdmaDevice(
            name=entry.name,
            model=read_text(entry / "hca_type"),
            driver=link_name(entry / "device/driver"),
            numa_node=numa_node(entry / "device"),
            ports=tuple(_read_port(port) for port in list_dir(entry / "ports", "[0-9]*") if port.name.isdecimal()),
        )
        for entry in list_dir(root / "sys/class/infiniband")
        if not (entry / "device/physfn").exists()
    ]


def _read_port(port: Path) -> RdmaPort:
    rate = re.match(r"(\d{1,6})(?:\.(\d))?\d* Gb/sec", read_text(port / "rate") or "", re.ASCII)
    return RdmaPort(
        number=int(port.name),
        link_layer=read_text(port / "link_layer"),
        rate_mbit_per_s=int(rate.group(1)) * 1000 + int(rate.group(2) or 0) * 100 if rate else None,
    )
