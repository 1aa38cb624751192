"""The processor, on laid-out machines and on the one at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.hardware.cpu import affinity, count_cores, last_level_cache_bytes, read_cpu, usable_cores

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Tree

ALL = frozenset(range(16))
MIB = 2**20


def test_a_two_socket_node(hgx: Path) -> None:
    cpu = read_cpu(hgx, ALL)
    assert cpu.model == "Intel(R) Xeon(R) Platinum 8480C"
    assert (cpu.sockets, cpu.numa_nodes, cpu.physical_cores, cpu.logical_cpus) == (2, 2, 8, 16)
    assert (cpu.usable_physical_cores, cpu.usable_logical_cpus, cpu.quota_cores) == (8, 16, None)
    assert (cpu.l1d_bytes, cpu.l2_bytes, cpu.l3_bytes) == (48 * 1024, 2 * MIB, 105 * MIB)
    assert {"avx512_bf16", "amx_tile"} <= set(cpu.isa_extensions)
    assert "fpu" not in cpu.isa_extensions
    assert cpu.hypervisor is None


@pytest.mark.parametrize(
    ("cpus", "cores"),
    [({0}, 1), ({0, 8}, 1), ({0, 1, 2}, 3), ({0, 1, 8, 9}, 2), (set(range(16)), 8)],
    ids=["one thread", "both threads of a core", "three cores", "two whole cores", "all"],
)
def test_two_threads_of_a_core_are_one_core(hgx: Path, cpus: set[int], cores: int) -> None:
    assert usable_cores(hgx, frozenset(cpus)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("250000", 2), ("400000", 4), ("6400000", 8), ("max", 8)])
def test_a_quota_counts_by_whole_cores(hgx: Path, tree: Tree, quota: str, cores: int) -> None:
    tree.write("proc/self/cgroup", "0::/job")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.write("sys/fs/cgroup/job/cpu.max", f"{quota} 100000")
    assert usable_cores(hgx, ALL) == cores
    assert read_cpu(hgx, ALL).quota_cores == (None if quota == "max" else int(quota) / 100000)


def test_the_last_level_is_summed_over_the_chiplets_within_reach(amd_node: Path) -> None:
    assert last_level_cache_bytes(amd_node, ALL) == 64 * MIB
    assert last_level_cache_bytes(amd_node, frozenset({0, 1})) == 32 * MIB
    assert last_level_cache_bytes(amd_node, frozenset({0, 4})) == 64 * MIB


def test_cache_size_without_sysfs_comes_from_cpuinfo(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\ncache size\t: 16384 KB")
    assert last_level_cache_bytes(tree.root, frozenset({0})) == 16 * MIB


def test_an_empty_machine_still_has_a_core(tree: Tree) -> None:
    assert last_level_cache_bytes(tree.root, frozenset({0})) is None
    assert usable_cores(tree.root, frozenset()) == 1
    assert read_cpu(tree.root, frozenset({0, 1})).usable_physical_cores == 2


def test_an_arm_processor_goes_by_its_core(tree: Tree) -> None:
    entry = "Features\t: fp asimd asimdhp sve bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f"
    tree.write("proc/cpuinfo", f"processor\t: 0\n{entry}")
    cpu = read_cpu(tree.root, frozenset({0}))
    assert (cpu.model, cpu.isa_extensions) == ("Neoverse V2", ("asimd", "asimdhp", "bf16", "sve"))
    tree.write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x99\nCPU part\t: 0x001")
    assert read_cpu(tree.root, frozenset({0})).model == "implementer 0x99 part 0x001"


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("sys/class/dmi/id/sys_vendor", "Amazon EC2", "kvm"),
        ("sys/class/dmi/id/product_name", "VMware7,1", "vmware"),
        ("sys/devices/system/clocksource/clocksource0/available_clocksource", "hyperv_clocksource_tsc_page", "hyper-v"),
        ("sys/class/dmi/id/sys_vendor", "ACME", "unknown"),
    ],
)
def test_the_hypervisor_is_named(tree: Tree, path: str, text: str, expected: str) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor avx")
    tree.write(path, text)
    assert read_cpu(tree.root, frozenset({0})).hypervisor == expected


def test_bare_metal_of_a_cloud_vendor_has_no_hypervisor(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx")
    tree.write("sys/class/dmi/id/sys_vendor", "Amazon EC2")
    assert read_cpu(tree.root, frozenset({0})).hypervisor is None


def test_this_machine_agrees_with_psutil() -> None:
    cpu = read_cpu()
    assert cpu.logical_cpus == psutil.cpu_count()
    assert cpu.physical_cores == psutil.cpu_count(logical=False)
    assert 1 <= usable_cores() <= cpu.usable_physical_cores <= cpu.usable_logical_cpus


def test_a_process_bound_to_one_cpu_has_one_core() -> None:
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from bench.hardware.cpu import read_cpu, usable_cores
print(usable_cores(), read_cpu().usable_logical_cpus)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_a_thread_that_is_bound_does_not_hide_the_cores_of_the_others() -> None:
    before, inside = affinity(), []

    def bind_and_look() -> None:
        os.sched_setaffinity(threading.get_native_id(), {min(before)})
        inside.append(affinity())

    thread = threading.Thread(target=bind_and_look)
    thread.start()
    thread.join()
    assert inside == [before]
    assert count_cores(before) >= 1
