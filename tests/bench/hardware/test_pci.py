"""Places on the PCI tree and how near they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.hardware.pci import PciPlace, locate, proximity

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree

GPU = PciPlace(("pci0000:10", "10:01.0", "11:00.0", "12:00.0", "13:00.0"), 0)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PciPlace(("pci0000:10", "10:01.0", "11:00.0", "12:01.0", "14:00.0"), 0), "PIX"),
        (PciPlace(("pci0000:10", "10:01.0", "11:00.0", "12:01.0", "14:00.0", "15:01.0", "16:00.0"), 0), "PXB"),
        (PciPlace(("pci0000:10", "10:02.0", "17:00.0"), 0), "PHB"),
        (PciPlace(("pci0000:20", "20:01.0", "21:00.0"), 0), "NODE"),
        (PciPlace(("pci0000:80", "80:01.0", "81:00.0"), 1), "SYS"),
        (PciPlace(("pci0000:80", "80:01.0", "81:00.0"), None), "SYS"),
    ],
    ids=["same switch", "switch below the switch", "same host bridge", "same node", "other node", "unknown node"],
)
def test_proximity_is_the_farthest_hop(other: PciPlace, expected: str) -> None:
    assert proximity(GPU, other) == expected
    assert proximity(other, GPU) == expected


def test_bridges_of_unknown_nodes_are_not_taken_for_neighbours() -> None:
    assert proximity(PciPlace(("pci0000:00", "00:01.0"), None), PciPlace(("pci0000:01", "01:01.0"), None)) == "SYS"


def test_locate_follows_links(hgx: Path) -> None:
    place = locate(hgx / "sys/class/infiniband/mlx5_0/device")
    path = ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0")
    assert place == PciPlace(path, 0)


def test_what_is_not_on_pci_has_no_place(tree: Tree) -> None:
    tree.link("sys/class/net/usb0/device", "sys/devices/platform/usb")
    assert locate(tree.root / "sys/class/net/usb0/device") is None
    assert locate(tree.root / "sys/class/net/lo/device") is None
