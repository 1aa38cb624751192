"""The mark that all processes of a lab carry, and ending those of labs whose owner is gone.

A lab consists of processes only: its holder, and what runs in its nodes. A holder ends by itself,
and everything in the lab with it, when the owner ends; something is left only if the holder was
killed or stopped too, or if a process was just about to enter.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

MARK_VARIABLE = "BENCH_LAB_OWNER"
"""In the environment of all of a lab's processes: the lab's mark."""

_GONE_SECONDS = 5.0

_numbers = itertools.count()


def new_mark() -> str:
    """The mark of another lab of this process: its id, start time and pid namespace, and a number."""
    return f"{os.getpid()}:{_start_time(os.getpid())}:{_pid_namespace()}:{next(_numbers)}"


def remove_leftovers() -> list[str]:
    """End the processes of all labs whose owner is gone; their networks vanish with them.

    Labs of living owners stay, and are not taken for those of an earlier process with the same id. So
    do those of other containers, whose process ids mean nothing here, and of other users unless root calls.

    Returns:
        A sentence for each lab that was removed, to tell the user.
    """
    texts = []
    for mark in sorted({mark for _, mark in _marked_processes() if _is_gone(mark)}):
        ended = end_marked(mark)
        if ended:
            owner = mark.partition(":")[0]
            ids = ", ".join(map(str, ended))
            texts.append(f"removed the lab of process {owner}, which is gone: ended its processes {ids}")
    return texts


def end_marked(mark: str) -> list[int]:
    """Kill all processes with a lab's mark, and return their ids when they are gone."""
    ended: list[int] = []
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        found = [process for process, its_mark in _marked_processes() if its_mark == mark]
        if not found:
            break
        ended += [process for process in found if process not in ended and _kill_if_marked(process, mark)]
        time.sleep(0.005)
    return ended


def _marked_processes() -> list[tuple[int, str]]:
    """Process id and mark of all processes of labs that run, apart from this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            process = int(entry.name)
            mark = _mark_of(process)
            if mark and _start_time(process) is not None:
                found.append((process, mark))
    return found


def _mark_of(process: int) -> str | None:
    prefix = f"{MARK_VARIABLE}=".encode()
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        # `env` has the mark as its first argument until it becomes the program that it starts.
        arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it ended meanwhile, or belongs to someone else
        return None
    for entry in [*arguments[1:2], *environment]:
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def _is_gone(mark: str) -> bool:
    """True if the owner that a mark names has ended."""
    try:
        process, started, namespace, _ = map(int, mark.split(":"))
    except ValueError:  # not a mark of ours
        return False
    return namespace == _pid_namespace() and _start_time(process) != started


def _start_time(process: int) -> int | None:
    """Clock ticks from boot to the start of a process; None if it is gone, or dead and not yet reaped."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold anything; state and start time are fields 3 and 22.
    after_name = stat.rpartition(")")[2].split()
    return None if after_name[0] in "ZX" else int(after_name[19])


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _kill_if_marked(process: int, mark: str) -> bool:
    """Kill a process if it is still the one that was found; its id may have been given to another."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            if _mark_of(process) == mark:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
