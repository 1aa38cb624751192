"""CPU and memory limits that control groups (v1, v2 or both) put on this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.hardware.kernelfs import ROOT, read_int, read_table, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page below 2**63."""


def cpu_quota_cores(root: Path = ROOT) -> float | None:
    """CPU time that this process may use, in cores: the tightest quota of its groups; None if unlimited."""
    quotas = []
    for group in _groups("cpu", root):
        quota, _, period = (read_text(group / "cpu.max") or "").partition(" ")
        if not quota:
            quota = str(read_int(group / "cpu.cfs_quota_us"))
            period = str(read_int(group / "cpu.cfs_period_us"))
        # "max" (v2) and "-1" (v1) mean no quota, and are no digits.
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """The tightest memory limit of this process's groups; None if unlimited."""
    return min((limit for limit, _ in _memory_limits(root)), default=None)


def memory_headroom_bytes(root: Path = ROOT) -> int | None:
    """Memory that this process's groups still allow, page cache that can be dropped included; None if unlimited."""
    return min((max(0, limit - _used_bytes(group)) for limit, group in _memory_limits(root)), default=None)


def _memory_limits(root: Path) -> Iterator[tuple[int, Path]]:
    for group in _groups("memory", root):
        limit = read_int(group / "memory.max")
        if limit is None:
            limit = read_int(group / "memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT_BYTES:
            yield limit, group


def _used_bytes(group: Path) -> int:
    """What the group holds, without the file pages that the kernel would drop before it ran out."""
    usage = read_int(group / "memory.current")
    if usage is None:
        usage = read_int(group / "memory.usage_in_bytes") or 0
    stat = read_table(group / "memory.stat", " ")
    droppable = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return usage - (int(droppable) if droppable.isdecimal() else 0)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """This process's groups that may limit ``controller``, each with all its ancestors, innermost first."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = _mount(controller if controllers else None, root)
        if mount is None:
            continue
        mounted, mount_point = mount
        # In a container the mount shows the hierarchy from the container's own group downwards, while
        # the path may still be that of the host.
        below = path.removeprefix(mounted).strip("/") if path.startswith(mounted) else ""
        group = mount_point / below
        while group != mount_point:
            yield group
            group = group.parent
        yield mount_point


def _mount(controller: str | None, root: Path) -> tuple[str, Path] | None:
    """Which part of a hierarchy is mounted, and where: version 2 if ``controller`` is None."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        fields, _, filesystem = line.partition(" - ")
        kind, options = filesystem.split(" ")[0], filesystem.split(" ")[-1].split(",")
        wanted = kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options
        places = fields.split(" ")
        if wanted and len(places) >= 5:
            return places[3], root / places[4].lstrip("/")
    return None
