"""NICs near to a rank, read from made-up machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ciera_piper_core.alltoall import nic_affinity
from ciera_piper_core.alltoall.nic_affinity import nearest_by_numa, nearest_by_path, nearest_nics, nic_devices

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two sockets, each a PCI switch with a GPU and a NIC; a NIC without a device, as virtual ones are."""
    for socket, bus in ((0, "pci0000:00"), (1, "pci0000:80")):
        for device in ("gpu", "nic"):
            folder = tmp_path / "devices" / bus / f"switch{socket}" / f"{device}{socket}"
            folder.mkdir(parents=True)
            (folder / "numa_node").write_text(f"{socket}\n")
        nic = tmp_path / "class" / "infiniband" / f"mlx5_{socket}"
        nic.mkdir(parents=True)
        (nic / "device").symlink_to(tmp_path / "devices" / bus / f"switch{socket}" / f"nic{socket}")
        gpus = tmp_path / "bus" / "pci" / "devices"
        gpus.mkdir(parents=True, exist_ok=True)
        (gpus / f"0000:0{socket}:00.0").symlink_to(tmp_path / "devices" / bus / f"switch{socket}" / f"gpu{socket}")
    (tmp_path / "class" / "infiniband" / "rxe0").mkdir()
    return tmp_path


def test_nics_are_those_with_a_device(machine: Path) -> None:
    assert [nic.name for nic in nic_devices(machine)] == ["nic0", "nic1"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_gpu_is_near_to_the_nic_on_its_switch(number: int, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_affinity, "_current_gpu_address", lambda: f"0000:0{number}:00.0")
    assert nearest_nics(on_gpu=True, sysfs=machine) == (number,)


def test_a_gpu_that_sysfs_does_not_know_has_no_near_nic(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_affinity, "_current_gpu_address", lambda: "0000:ff:00.0")
    assert nearest_nics(on_gpu=True, sysfs=machine) == ()


def test_equally_near_nics_are_all_named(machine: Path) -> None:
    assert nearest_by_path(machine / "devices" / "elsewhere", nic_devices(machine)) == (0, 1)


def test_cores_are_near_to_the_nics_of_their_numa_node(machine: Path) -> None:
    nics = nic_devices(machine)
    assert nearest_by_numa({1}, nics) == (1,)
    assert nearest_by_numa({0, 1}, nics) == (0, 1)
    assert nearest_by_numa({7}, nics) == (0, 1)
    (nics[0] / "numa_node").unlink()
    (nics[1] / "numa_node").write_text("?")
    assert nearest_by_numa({0}, nics) == (0, 1)


def test_this_process_has_a_numa_node(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "devices" / "system" / "node" / "node1" / "cpu5").mkdir(parents=True)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5})
    assert nearest_nics(on_gpu=False, sysfs=machine) == (1,)


def test_a_machine_without_fast_nics_says_nothing(tmp_path: Path) -> None:
    assert nearest_nics(on_gpu=False, sysfs=tmp_path) == ()
