"""Finding and ending what is left of labs whose owner is gone.

A lab consists of processes only: its holder, and what runs in its nodes. All of them carry the
owner's mark in their environment. A holder ends by itself, and everything in the lab with it, when
the owner ends; something is left only if the holder was killed or stopped too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

OWNER_VARIABLE = "BENCH_LAB_OWNER"
"""In the environment of all of a lab's processes: process id, start time and pid namespace of the owner."""

_GONE_SECONDS = 5.0


def owner_mark() -> str:
    """The mark of a lab that this process owns."""
    return f"{os.getpid()}:{_start_time(os.getpid())}:{_pid_namespace()}"


def remove_leftovers() -> list[str]:
    """End the processes of all labs whose owner is gone; their networks vanish with them.

    Labs of living owners stay, also if their process id was in use before, and so do those of other
    containers, whose process ids mean nothing here, and of other users unless root calls.

    Returns:
        A sentence for each lab that was removed, to tell the user.
    """
    ended: dict[str, list[int]] = {}
    for process, owner in _orphans():
        if _kill_if_marked(process, owner):
            ended.setdefault(owner, []).append(process)
    deadline = time.monotonic() + _GONE_SECONDS
    for process in itertools.chain.from_iterable(ended.values()):
        while _start_time(process) is not None and time.monotonic() < deadline:
            time.sleep(0.005)
    return [
        f"removed the lab of process {owner.partition(':')[0]}, which is gone:"
        f" ended its processes {', '.join(map(str, processes))}"
        for owner, processes in ended.items()
    ]


def _orphans() -> list[tuple[int, str]]:
    """Process id and owner's mark of each process of a lab without an owner."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            owner = _mark_of(int(entry.name))
            if owner and _is_gone(owner):
                found.append((int(entry.name), owner))
    return found


def _mark_of(process: int) -> str | None:
    prefix = f"{OWNER_VARIABLE}=".encode()
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it ended meanwhile, or belongs to someone else
        return None
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def _is_gone(owner: str) -> bool:
    try:
        process, started, namespace = map(int, owner.split(":"))
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


def _kill_if_marked(process: int, owner: str) -> bool:
    """Kill a process if it is still the one that was found; its id may have been given to another."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            if _mark_of(process) == owner:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
