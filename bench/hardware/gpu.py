"""GPUs, asked of their driver: NVIDIA's through its management library, AMD's through sysfs.

Neither makes a CUDA or HIP context nor needs torch or an extra, so the answer is the same in every
process. ``CUDA_VISIBLE_DEVICES`` and its like do not hide a GPU here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.hardware.kernelfs import ROOT, list_dir, read_int, read_table, read_text
from bench.hardware.nvml import nvml_session

if TYPE_CHECKING:
    from pathlib import Path

Vendor = Literal["nvidia", "amd"]

AMD_MODELS = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A5: "AMD Instinct MI325X",
    0x74B5: "AMD Instinct MI300X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
"""Names by PCI device id, as in pci.ids, for boards whose own product name cannot be read."""

_PCI_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd"}
_XGMI = 11
"""Type of an Infinity Fabric link between GPUs in the topology of the ``kfd`` driver."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver shows it; one GCD of an AMD MI250X is a GPU of its own.

    Attributes:
        vendor, model: the model is the marketing name, or the PCI device id where nobody knows it.
        memory_bytes: device memory.
        driver: version of the kernel driver.
        pci_address: as sysfs writes it, ``0000:18:00.0``.
        fabric_links: active NVLink or xGMI links; None where there are none or nobody tells.
        mig: whether the GPU is divided (NVIDIA MIG); None where it cannot be.
        temperature_c, clock_mhz: now.
    """

    vendor: Vendor
    model: str
    memory_bytes: int | None = None
    driver: str | None = None
    pci_address: str | None = None
    fabric_links: int | None = None
    mig: bool | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None


def read_gpus(root: Path = ROOT) -> list[Gpu]:
    """GPUs that a driver is loaded for: NVIDIA's, then AMD's, each in the driver's order."""
    nvidia = _read_nvml() if root == ROOT else []  # the library answers for this machine alone
    return [*(nvidia or _read_nvidia_proc(root)), *_read_kfd(root)]


def pci_gpu_vendors(root: Path = ROOT) -> list[Vendor]:
    """The maker of each NVIDIA or AMD GPU on the PCI bus, with or without a driver.

    The display controllers of servers' management chips are by other makers.
    """
    vendors = []
    for device in list_dir(root / "sys/bus/pci/devices"):
        vendor = _PCI_VENDORS.get(read_text(device / "vendor") or "")
        # Classes 0x03.... are display controllers, 0x12.... processing accelerators.
        if vendor and (read_text(device / "class") or "").startswith(("0x03", "0x12")):
            vendors.append(vendor)
    return vendors


def _read_nvml() -> list[Gpu]:
    with nvml_session() as nvml:
        if nvml is None:
            return []
        driver = nvml.driver()
        return [
            Gpu(
                vendor="nvidia",
                model=device.name() or "unknown",
                memory_bytes=device.memory_bytes(),
                driver=driver,
                pci_address=device.pci_address(),
                fabric_links=device.active_nvlinks(),
                mig=device.mig(),
                temperature_c=device.temperature_c(),
                clock_mhz=device.sm_clock_mhz(),
            )
            for device in nvml.devices()
        ]


def _read_nvidia_proc(root: Path) -> list[Gpu]:
    """NVIDIA GPUs as the kernel module lists them, for containers without the management library."""
    version = re.search(r"Kernel Module.*?  (\d[\d.]*)", read_text(root / "proc/driver/nvidia/version") or "")
    driver = version.group(1) if version else None
    # PCI addresses are hexadecimal: their order is that of the text.
    entries = sorted(list_dir(root / "proc/driver/nvidia/gpus"))
    models = {entry.name: read_table(entry / "information").get("Model") for entry in entries}
    return [Gpu("nvidia", model, driver=driver, pci_address=address) for address, model in models.items() if model]


def _read_kfd(root: Path) -> list[Gpu]:
    """AMD GPUs of the compute driver. Nodes without SIMDs are CPUs; those given to others are unreadable."""
    gpus = []
    for node in list_dir(root / "sys/class/kfd/kfd/topology/nodes", "[0-9]*"):
        properties = read_table(node / "properties", " ")
        if not _number(properties, "simd_count"):
            continue
        domain, location = _number(properties, "domain"), _number(properties, "location_id")
        address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        device, device_id = root / "sys/bus/pci/devices" / address, _number(properties, "device_id")
        banks = [read_table(bank / "properties", " ") for bank in list_dir(node / "mem_banks")]
        links = [read_table(link / "properties", " ") for link in list_dir(node / "io_links")]
        gpus.append(
            Gpu(
                vendor="amd",
                model=read_text(device / "product_name")
                or AMD_MODELS.get(device_id, f"AMD PCI device 0x{device_id:04x}"),
                memory_bytes=sum(_number(bank, "size_in_bytes") for bank in banks) or None,
                driver=read_text(root / "sys/module/amdgpu/version"),
                pci_address=address,
                fabric_links=sum(_number(link, "type") == _XGMI for link in links) or None,
                temperature_c=_highest(device, "temp[0-9]*_input", 1e3),
                clock_mhz=_highest(device, "freq1_input", 1e6),
            )
        )
    return gpus


def _highest(device: Path, pattern: str, scale: float) -> float | None:
    """The highest reading of a device's sensors in hwmon's units over ``scale``."""
    sensors = [sensor for chip in list_dir(device / "hwmon") for sensor in list_dir(chip, pattern)]
    readings = [reading for reading in map(read_int, sensors) if reading is not None]
    return max(readings) / scale if readings else None


def _number(properties: dict[str, str], name: str) -> int:
    text = properties.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,19}", text, re.ASCII) else 0
