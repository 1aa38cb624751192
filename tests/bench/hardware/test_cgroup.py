"""Limits of control groups: laid-out hierarchies of both versions, and real ones where they can be made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.hardware.cgroup import cpu_quota_cores, memory_headroom_bytes, memory_limit_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Tree

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
GIB = 2**30


def test_no_hierarchy_is_no_limit(tree: Tree) -> None:
    assert cpu_quota_cores(tree.root) is None
    assert memory_limit_bytes(tree.root) is None
    assert memory_headroom_bytes(tree.root) is None


def test_version_2_takes_the_tightest_of_a_group_and_its_ancestors(tree: Tree) -> None:
    tree.write("proc/self/cgroup", "0::/slurm/job_7/step_0")
    tree.write("proc/self/mountinfo", V2_MOUNT)
    groups = "sys/fs/cgroup/slurm"
    tree.write(f"{groups}/cpu.max", "max 100000")
    tree.write(f"{groups}/job_7/cpu.max", "250000 100000")
    tree.write(f"{groups}/job_7/step_0/cpu.max", "800000 100000")
    tree.write(f"{groups}/job_7/memory.max", str(8 * GIB))
    tree.write(f"{groups}/job_7/memory.current", str(6 * GIB))
    tree.write(f"{groups}/job_7/memory.stat", f"anon {2 * GIB}\ninactive_file {3 * GIB}")
    tree.write(f"{groups}/job_7/step_0/memory.max", "max")
    assert cpu_quota_cores(tree.root) == 2.5
    assert memory_limit_bytes(tree.root) == 8 * GIB
    assert memory_headroom_bytes(tree.root) == 5 * GIB


def test_version_1_in_a_container_that_sees_the_path_of_its_host(tree: Tree) -> None:
    path = "/docker/0123abcd"
    tree.write("proc/self/cgroup", f"9:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/elsewhere")
    mounts = [
        f"41 40 0:36 {path} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        f"42 40 0:37 {path} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
    ]
    tree.write("proc/self/mountinfo", "\n".join(mounts))
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000")
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(4 * GIB))
    tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", str(5 * GIB))
    assert cpu_quota_cores(tree.root) == 1.5
    assert memory_limit_bytes(tree.root) == 4 * GIB
    assert memory_headroom_bytes(tree.root) == 0


def test_version_1_without_limits(tree: Tree) -> None:
    tree.write("proc/self/cgroup", "9:memory:/user\n4:cpu:/")
    mounts = [
        f"4{n} 40 0:3{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("memory", "cpu"))
    ]
    tree.write("proc/self/mountinfo", "\n".join(mounts))
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    tree.write("sys/fs/cgroup/memory/user/memory.limit_in_bytes", str(2**63 - 4096))
    assert cpu_quota_cores(tree.root) is None
    assert memory_limit_bytes(tree.root) is None


@contextlib.contextmanager
def real_group(name: str) -> Iterator[dict[str, Path]]:
    """Folders by controller of a new control group with half a core and 256 MiB; skips where none can be made."""
    v1 = {controller: Path("/sys/fs/cgroup", controller) for controller in ("cpu", "memory")}
    if not all((folder / "tasks").exists() for folder in v1.values()):
        pytest.skip("needs control groups of version 1")
    groups = {controller: folder / name for controller, folder in v1.items()}
    made = []
    try:
        try:
            for group in groups.values():
                group.mkdir()
                made.append(group)
            (groups["cpu"] / "cpu.cfs_period_us").write_text("100000")
            (groups["cpu"] / "cpu.cfs_quota_us").write_text("50000")
            (groups["memory"] / "memory.limit_in_bytes").write_text(str(256 * 2**20))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        yield groups
    finally:
        for group in made:
            group.rmdir()


def test_a_real_group_limits_a_real_process() -> None:
    code = """
import sys
for tasks in sys.argv[1:]:
    open(tasks, "w").write("0")
from bench.hardware.cgroup import cpu_quota_cores, memory_limit_bytes
from bench.hardware import available_memory_bytes, usable_cores
print(cpu_quota_cores(), memory_limit_bytes(), available_memory_bytes(), usable_cores())
"""
    with real_group(f"bench-test-{os.getpid()}") as groups:
        command = [sys.executable, "-c", code, *(str(group / "tasks") for group in groups.values())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    quota, limit, available, cores = done.stdout.split()
    assert (float(quota), int(limit), int(cores)) == (0.5, 256 * 2**20, 1)
    assert 128 * 2**20 < int(available) < 256 * 2**20
