"""GPUs by their drivers: AMD's and NVIDIA's sysfs and procfs, laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.hardware.gpu import Gpu, pci_gpu_vendors, read_gpus

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree


def test_nvidia_gpus_without_the_management_library(hgx: Path) -> None:
    gpus = read_gpus(hgx)
    assert len(gpus) == 8
    assert gpus[0] == Gpu("nvidia", "NVIDIA H100 80GB HBM3", driver="550.90.07", pci_address="0000:13:00.0")
    assert [gpu.pci_address for gpu in gpus] == sorted(str(gpu.pci_address) for gpu in gpus)


def test_the_open_kernel_module_tells_its_version_too(hgx: Path, tree: Tree) -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)"
    tree.write("proc/driver/nvidia/version", line)
    assert {gpu.driver for gpu in read_gpus(hgx)} == {"570.86.15"}


def test_each_gcd_of_an_amd_board_is_a_gpu(amd_node: Path) -> None:
    gpus = read_gpus(amd_node)
    assert len(gpus) == 4
    assert gpus[0] == Gpu(
        "amd",
        "AMD Instinct MI250X",
        memory_bytes=68702699520,
        driver="6.3.6",
        pci_address="0000:c1:00.0",
        fabric_links=3,
        temperature_c=41.0,
        clock_mhz=1700.0,
    )


def test_the_board_names_itself_where_it_can(amd_node: Path, tree: Tree) -> None:
    tree.write("sys/bus/pci/devices/0000:c1:00.0/product_name", "AMD INSTINCT MI250X OAM")
    assert [gpu.model for gpu in read_gpus(amd_node)][:2] == ["AMD INSTINCT MI250X OAM", "AMD Instinct MI250X"]


def test_an_amd_gpu_that_is_not_known_goes_by_its_number(tree: Tree) -> None:
    tree.write("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 8\ndevice_id 4660\nlocation_id 768")
    assert [gpu.model for gpu in read_gpus(tree.root)] == ["AMD PCI device 0x1234"]


def test_the_bus_shows_gpus_without_a_driver(hgx: Path) -> None:
    # The display controller of the management chip is no GPU to compute on.
    assert pci_gpu_vendors(hgx) == ["nvidia"] * 8


def test_a_machine_without_gpus(tree: Tree) -> None:
    assert read_gpus(tree.root) == []
    assert pci_gpu_vendors(tree.root) == []
