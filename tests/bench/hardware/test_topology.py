"""Which NIC is near which GPU, on laid-out nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.hardware.gpu import Gpu, read_gpus
from bench.hardware.topology import read_affinities

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree


def test_each_gpu_of_an_hgx_node_has_its_own_nic(hgx: Path) -> None:
    affinities = read_affinities(read_gpus(hgx), hgx)
    assert [affinity.numa_node for affinity in affinities] == [0] * 4 + [1] * 4
    for index, affinity in enumerate(affinities):
        near = {name for name, how in affinity.nics.items() if how == "PIX"}
        assert near == {f"mlx5_{index}"}
    # The interface of a card with an RDMA device is not listed twice; the board's own NIC has none.
    assert list(affinities[0].nics) == [*(f"mlx5_{index}" for index in range(8)), "enx<mac>"]
    assert affinities[0].nics["enx<mac>"] == "NODE"
    assert affinities[7].nics["enx<mac>"] == "SYS"


def test_two_gcds_share_a_nic(amd_node: Path) -> None:
    affinities = read_affinities(read_gpus(amd_node), amd_node)
    assert [affinity.nics for affinity in affinities[:2]] == [
        {"hsn0": "PIX", "hsn1": "NODE"},
        {"hsn0": "NODE", "hsn1": "NODE"},
    ]


def test_a_gpu_that_cannot_be_placed_is_left_out(tree: Tree) -> None:
    assert read_affinities([Gpu("nvidia", "X"), Gpu("nvidia", "Y", pci_address="0000:99:00.0")], tree.root) == []
