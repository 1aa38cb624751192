"""Interfaces that are hardware, and RDMA devices with their ports."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from bench.hardware.network import Nic, RdmaPort, read_nics, read_rdma_devices

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree


def test_virtual_interfaces_are_left_out_and_mac_addresses_masked(hgx: Path) -> None:
    nics = read_nics(hgx)
    assert [nic.name for nic in nics][:2] == ["enx<mac>", "ibp20s0"]
    assert len(nics) == 9
    assert nics[0] == Nic("enx<mac>", "i40e", "ethernet", 10000, 0)
    assert nics[-1] == Nic("ibp188s0", "mlx5_core", "infiniband", 400000, 1)


def test_rdma_devices_in_numeric_order(hgx: Path) -> None:
    devices = read_rdma_devices(hgx)
    assert [device.name for device in devices] == [f"mlx5_{index}" for index in range(8)]
    assert {device.model for device in devices} == {"MT4129"}
    assert [device.numa_node for device in devices] == [0] * 4 + [1] * 4
    assert devices[0].ports == (RdmaPort(1, "InfiniBand", 400000),)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("100 Gb/sec (4X EDR)", 100000), ("2.5 Gb/sec (1X SDR)", 2500), ("0 Gb/sec", 0), ("fast", None), ("", None)],
)
def test_rates_of_ports(tree: Tree, rate: str, expected: int | None) -> None:
    card = tree.pci_device("pci0000:00/0000:00:01.0", "0x15b3", "0x020000", -1, "mlx5_core")
    tree.rdma_device("roce_0", card, "MT4125", rate, "Ethernet")
    (device,) = read_rdma_devices(tree.root)
    assert (device.numa_node, device.ports) == (None, (RdmaPort(1, "Ethernet", expected),))


def test_a_link_that_is_down_has_no_speed(tree: Tree) -> None:
    card = tree.pci_device("pci0000:00/0000:00:01.0", "0x8086", "0x020000", 0, "ice")
    tree.interface("eth0", card, 1, -1)
    assert [nic.speed_mbit_per_s for nic in read_nics(tree.root)] == [None]


def test_virtual_functions_are_left_out_beside_their_card(tree: Tree) -> None:
    card = tree.pci_device("pci0000:00/0000:00:01.0", "0x15b3", "0x020000", 0, "mlx5_core")
    function = tree.pci_device("pci0000:00/0000:00:01.1", "0x15b3", "0x020000", 0, "mlx5_core")
    tree.link(f"{function}/physfn", card)
    for index, device in enumerate((card, function)):
        tree.interface(f"eth{index}", device, 1, 100000)
        tree.rdma_device(f"mlx5_{index}", device, "MT4125", "100 Gb/sec", "Ethernet")
    assert [nic.name for nic in read_nics(tree.root)] == ["eth0"]
    assert [device.name for device in read_rdma_devices(tree.root)] == ["mlx5_0"]


def test_real_virtual_interfaces_are_left_out() -> None:
    name = f"bt{os.getpid() % 100000}"
    made = subprocess.run(["ip", "link", "add", name, "type", "bridge"], capture_output=True, text=True, timeout=30)
    if made.returncode != 0:
        pytest.skip(f"cannot make an interface: {made.stderr.strip()}")
    try:
        names = [nic.name for nic in read_nics()]
    finally:
        subprocess.run(["ip", "link", "del", name], check=True, timeout=30)
    assert name not in names
    assert "lo" not in names
