"""Checks of where results go, and of the shared memory that ranks of a host exchange data through."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from bench.doctor.check import Check
from bench.hardware.kernelfs import ROOT, read_text
from bench.hardware.memory import GIB

SHARED_MEMORY = Path("/dev/shm")


def check_store(store: Path) -> Check:
    """Whether results can be written: a file is created and synced there, or in the first folder above that exists.

    Any file system will do, NFS and Lustre among them: the store needs no locks.
    """
    folder = _existing(store.absolute())
    place = f"{store}" if folder == store.absolute() else f"{store} (to be created)"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bench-doctor-") as file:
            file.write(b"doctor")
            file.flush()
            os.fsync(file.fileno())
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        found = f"{place} cannot be written: {error.strerror}"
        return Check("store", "missing", found, "choose another folder with --store", required=True)
    found = f"{place}, {filesystem_of(folder.resolve())}, {free_bytes / GIB:.1f} GiB free"
    if free_bytes < GIB:
        return Check("store", "warn", found, "free some space, or choose another folder with --store", required=True)
    return Check("store", "ok", found, required=True)


def check_shared_memory(folder: Path = SHARED_MEMORY) -> Check:
    """Containers often get 64 MiB, which NCCL and torch outgrow."""
    try:
        total_bytes = shutil.disk_usage(folder).total
    except OSError:
        return Check("shared memory", "n/a", f"no {folder}")
    found = f"{total_bytes / GIB:.2g} GiB in {folder}"
    if total_bytes < GIB:
        return Check("shared memory", "warn", f"{found}: too little for NCCL", "docker run --shm-size=8g")
    return Check("shared memory", "ok", found)


def filesystem_of(path: Path, root: Path = ROOT) -> str:
    """The type of file system that holds ``path``, ``ext4`` or ``nfs4``; ``unknown`` where nobody tells."""
    deepest, kind = -1, "unknown"
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        fields, _, filesystem = line.partition(" - ")
        places = fields.split(" ")
        if len(places) < 5:
            continue
        # Blanks and backslashes in a mount point are written as octal numbers.
        mount_point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), places[4]))
        # Of mounts on the same point, the last hides the others.
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= deepest:
            deepest, kind = len(mount_point.parts), filesystem.split(" ")[0]
    return kind


def _existing(path: Path) -> Path:
    """The path itself if it exists, else the nearest folder above that does."""
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
