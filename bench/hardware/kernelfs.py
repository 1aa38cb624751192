"""Reading the small files of /proc and /sys, any of which may be absent or unreadable.

Every reader of this package takes ``root``, the directory that holds ``proc``, ``sys`` and ``etc``:
``/`` on a machine, a laid-out tree in tests. What cannot be read is None, never an error.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str | None:
    """The file's text, stripped; None where it is absent, unreadable or empty."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip() or None
    except (OSError, ValueError):
        return None


def read_int(path: Path) -> int | None:
    """The whole number at the start of the file (``2100000``, ``-1``, ``400 Gb/sec``), or None."""
    match = re.match(r"-?\d{1,19}(?!\d)", read_text(path) or "")
    return int(match.group()) if match else None


def read_table(path: Path, separator: str = ":") -> dict[str, str]:
    """Lines ``name<separator>value`` as a mapping; the first line of a name wins."""
    table: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        name, found, value = line.partition(separator)
        if found:
            table.setdefault(name.strip(), value.strip())
    return table


def list_dir(path: Path, pattern: str = "*") -> list[Path]:
    """Entries of a directory that match ``pattern``, numbers in numeric order; empty where absent."""
    try:
        entries = list(path.glob(pattern))
    except OSError:
        return []
    return sorted(entries, key=lambda entry: natural_key(entry.name))


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts ``mlx5_10`` after ``mlx5_9``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts]


def link_name(path: Path) -> str | None:
    """The last component of what a symbolic link points to (a driver, a device), or None."""
    try:
        return path.readlink().name or None
    except OSError:
        return None


def parse_cpu_list(text: str | None) -> frozenset[int]:
    """CPU numbers of the kernel's list format, as in ``0-3,8,10-11``; empty where it is not one."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part, re.ASCII)
        if not match:
            return frozenset()
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        numbers.update(range(first, last + 1))
    return frozenset(numbers)
