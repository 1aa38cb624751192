"""The files of a store: their names, and how a new one appears whole or not at all.

``runs/<run_id>.jsonl`` is the first part of a run, ``runs/<run_id>.2.jsonl`` what was added when it
was resumed, and so on; sealing turns each into the ``.parquet`` of the same name. Every other
``.parquet`` there holds parts of several runs. A part is written by one process only, and a name is
never used again for other content, so no process needs a lock and any may remove what it replaced.
"""

from __future__ import annotations

import errno
import os
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError
from bench.store.owner import is_alive, this_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
OWNER_FIELDS = ("host", "boot_id", "pid", "pid_started", "pid_namespace")
LEFTOVER_AGE_S = 3600.0
"""A file that must be short-lived is left over after this; needed where its maker cannot be asked for."""

_PART_NAME = re.compile(r"(?P<run_id>[A-Za-z0-9][A-Za-z0-9_-]*)(?:\.(?P<part>[1-9][0-9]*))?\.(?:jsonl|parquet)")


def runs_folder(store: Path) -> Path:
    return store / "runs"


def part_path(store: Path, run_id: str, part: int, suffix: str) -> Path:
    """Where part ``part`` (from 1) of a run is kept; ``suffix`` is ``.jsonl`` or ``.parquet``.

    Raises:
        StoreError: the run id cannot be a file's name.
    """
    path = runs_folder(store) / (f"{run_id}{suffix}" if part == 1 else f"{run_id}.{part}{suffix}")
    if part_of(path) != (run_id, part):
        raise StoreError(f"{run_id!r} cannot be a run id: it needs letters, digits, - and _ only")
    return path


def part_of(path: Path) -> tuple[str, int] | None:
    """The run id and the part that a file's name stands for, or None."""
    match = _PART_NAME.fullmatch(path.name)
    return (match["run_id"], int(match["part"] or 1)) if match else None


def list_files(store: Path) -> list[Path]:
    """The files of ``runs/``, sorted; none where the folder is missing.

    A folder that changes while it is read may show neither a file that was just replaced nor the
    one that replaces it, so it is read until two readings agree.

    Raises:
        StoreError: the folder cannot be read.
    """
    folder = runs_folder(store)
    seen: list[str] | None = None
    while True:
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise unreadable(folder, error) from error
        if names == seen:
            return [folder / name for name in names]
        seen = names


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A hidden path to write a new file at; it becomes ``target``, on disk for good, when the block ends.

    When the block raises, nothing is left. When the process dies, the hidden file is left and
    ``left_over`` tells so.

    Raises:
        StoreError: the folder cannot be written.
    """
    owner = this_process()
    marks = "~".join(str(owner[name]) for name in OWNER_FIELDS)
    temporary = target.with_name(f".{target.name}~{marks}{TEMPORARY_SUFFIX}")
    try:
        temporary.touch()
    except OSError as error:
        # Without a cause: it must not look as if a file of the store had vanished.
        raise unwritable(target, error) from None
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def temporary_files(store: Path) -> list[Path]:
    """The files that ``new_file`` is writing, or has left, anywhere in the store."""
    return sorted(store.glob(f"*/.*~*{TEMPORARY_SUFFIX}"))


def left_over(path: Path) -> bool:
    """Whether a temporary file's maker is gone."""
    marks = path.name.removesuffix(TEMPORARY_SUFFIX).split("~")[1:]
    alive = is_alive(_owner(marks)) if len(marks) == len(OWNER_FIELDS) else None
    if alive is not None:
        return not alive
    try:
        return time.time() - path.stat().st_mtime > LEFTOVER_AGE_S
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Remove a file that is replaced; another process may have done so before."""
    with suppress(FileNotFoundError):
        path.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the filesystem can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"cannot read {path}: {_cause(error)}")


def unwritable(path: Path, error: Exception, kept: str = "") -> StoreError:
    """The error for a write that failed: what, where, what was kept, what to do next."""
    number = getattr(error, "errno", None)
    text = str(error).lower()
    if number in (errno.ENOSPC, errno.EDQUOT) or "no space left" in text:
        advice = "free some space"
    elif number == errno.EFBIG or "file too large" in text:
        advice = "raise the file size limit (ulimit -f)"
    elif number == errno.ENOENT:
        advice = "make its folder first"
    elif number in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR):
        advice = "choose another place with --store or -o"
    else:
        advice = "see whether the disk is well"
    return StoreError(f"cannot write {path}: {_cause(error)}; {kept + '; ' if kept else ''}{advice}")


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())


def _owner(marks: list[str]) -> dict[str, Any]:
    host, boot_id, *numbers = marks
    return dict(
        zip(OWNER_FIELDS, [host, boot_id, *(int(text) if text.isdigit() else None for text in numbers)], strict=True)
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
