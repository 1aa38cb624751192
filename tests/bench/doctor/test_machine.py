"""Checks of the machine: laid-out nodes, and real limits in other processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from bench.doctor import machine
from bench.doctor.torch_probe import TorchProbe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Tree

ALL = frozenset(range(16))
TORCH_CUDA = TorchProbe(version="2.13.0", built_for="CUDA 13.0", has_nccl=True, devices=("NVIDIA H100",) * 8)
TORCH_CPU = TorchProbe(version="2.13.0", built_for="CPU")


def test_cores_of_a_whole_node(hgx: Path) -> None:
    check = machine.check_cores(hgx, ALL)
    assert (check.status, check.found) == ("ok", "8 of 8 cores usable, 2 socket(s), Intel(R) Xeon(R) Platinum 8480C")


def test_cores_behind_an_affinity_mask(hgx: Path) -> None:
    check = machine.check_cores(hgx, frozenset({0, 1, 8, 9}))
    assert check.status == "warn"
    assert check.found.startswith("2 of 8 cores usable")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_process_that_is_bound_is_warned(check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    bind = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    check = check_elsewhere("machine", "check_cores()", first=bind)
    assert check["status"] == "warn"
    assert "affinity mask" in check["found"]


def test_cores_with_a_quota(hgx: Path, tree: Tree) -> None:
    tree.write("proc/self/cgroup", "0::/")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.write("sys/fs/cgroup/cpu.max", "150000 100000")
    check = machine.check_cores(hgx, ALL)
    assert (check.status, check.found.partition(",")[0]) == ("warn", "1 of 8 cores usable")
    assert "quota of 1.5 cores" in check.found


def test_cores_that_the_hypervisor_shares(hgx: Path, tree: Tree) -> None:
    tree.write("proc/stat", "cpu  500 0 100 300 0 0 0 100 0 0")
    check = machine.check_cores(hgx, ALL)
    assert check.status == "warn"
    assert "10% of the time" in check.found


def test_memory(hgx: Path, tree: Tree) -> None:
    assert machine.check_memory(hgx).found == "1907.3 GiB available of 2048 GiB"
    tree.write("proc/self/cgroup", "0::/")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.write("sys/fs/cgroup/memory.max", str(2**29))
    tree.write("sys/fs/cgroup/memory.current", "0")
    check = machine.check_memory(hgx)
    assert (check.status, check.found) == (
        "warn",
        "0.5 GiB available of 2048 GiB, limited to 512MiB by a control group",
    )


def test_gpus_that_torch_can_use(hgx: Path) -> None:
    check = machine.check_gpus(TORCH_CUDA, hgx)
    assert (check.status, check.found) == ("ok", "8 x NVIDIA H100 80GB HBM3, driver 550.90.07; torch can use 8")


def test_gpus_and_a_torch_for_the_cpu(hgx: Path) -> None:
    check = machine.check_gpus(TORCH_CPU, hgx)
    assert check.status == "missing"
    assert check.fix.startswith("pip install torch")


def test_gpus_without_a_driver(hgx: Path) -> None:
    for file in (hgx / "proc/driver/nvidia/gpus").rglob("information"):
        file.unlink()
    check = machine.check_gpus(TORCH_CUDA, hgx)
    assert (check.status, check.found) == ("missing", "8 x nvidia on the PCI bus, and no driver answers")


def test_gpus_that_are_hidden_or_broken(hgx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = TorchProbe(version="2.13.0", built_for="CUDA 13.0")
    assert "torch finds none" in machine.check_gpus(none, hgx).found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.check_gpus(none, hgx).fix == "unset CUDA_VISIBLE_DEVICES"
    broken = TorchProbe(version="2.13.0", built_for="CUDA 13.0", device_error="RuntimeError: driver too old")
    assert "driver too old" in machine.check_gpus(broken, hgx).found
    assert "no torch" in machine.check_gpus(TorchProbe(error="gone"), hgx).found


def test_no_gpus(tree: Tree) -> None:
    assert machine.check_gpus(TORCH_CPU, tree.root).status == "n/a"


def test_rdma_needs_memory_that_can_be_pinned(hgx: Path, check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, resource.getrlimit(8)[1]))"
    call = f"check_rdma(__import__('pathlib').Path({str(hgx)!r}))"
    check = check_elsewhere("machine", call, first=limit.replace("getrlimit(8)", "getrlimit(resource.RLIMIT_MEMLOCK)"))
    assert check["status"] == "warn"
    assert check["found"] == "8 x InfiniBand 400 Gb/s; only 8MiB of memory may be pinned"


def test_no_rdma(tree: Tree) -> None:
    assert machine.check_rdma(tree.root).status == "n/a"


def test_governors(hgx: Path, tree: Tree) -> None:
    check = machine.check_governor(hgx)
    assert (check.status, check.fix) == ("warn", "sudo cpupower frequency-set -g performance")
    for cpu in range(16):
        tree.write(f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor", "performance")
    assert machine.check_governor(hgx).status == "ok"
    assert machine.check_governor(hgx.parent / "nothing").status == "n/a"


@pytest.mark.parametrize(("load", "warns"), [("0.00", False), ("9999.0", True)])
def test_load(tree: Tree, load: str, warns: bool) -> None:
    tree.write("proc/loadavg", f"{load} 0.1 0.1 1/100 5")
    assert machine.check_load(tree.root).status == ("warn" if warns else "ok")


def test_clock_sources(tree: Tree) -> None:
    folder = "sys/devices/system/clocksource/clocksource0"
    tree.write(f"{folder}/current_clocksource", "tsc")
    assert machine.check_clock_source(tree.root).status == "ok"
    tree.write(f"{folder}/current_clocksource", "hpet")
    tree.write(f"{folder}/available_clocksource", "tsc hpet acpi_pm")
    check = machine.check_clock_source(tree.root)
    assert (check.status, check.fix) == ("warn", f"echo tsc | sudo tee /{folder}/current_clocksource")
    tree.write(f"{folder}/available_clocksource", "hpet acpi_pm")
    assert machine.check_clock_source(tree.root).fix == "boot with clocksource=tsc"


def test_open_files(check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))"
    check = check_elsewhere("machine", "check_open_files()", first=limit)
    assert (check["status"], check["found"]) == ("warn", "256, at most 512: too few for large groups")
