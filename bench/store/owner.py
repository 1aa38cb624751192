"""Which process writes a file, and whether that process still lives."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

from bench.measure.clock import boot_id

_STATE_AND_START_TICKS = re.compile(r".*\) (\S)(?: \S+){18} (\d+) ", re.DOTALL)
"""Fields 3 and 22 of /proc/PID/stat; the greedy start skips a command that holds blanks or parentheses."""


def this_process() -> dict[str, Any]:
    """What tells this process from any other: host, boot, process id, its start and its id namespace."""
    pid = os.getpid()
    _, started = _state_and_start(pid)
    return {
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid": pid,
        "pid_started": started,
        "pid_namespace": _pid_namespace(),
    }


def is_alive(writer: dict[str, Any]) -> bool | None:
    """Whether the process that ``this_process`` described is still there; None if that cannot be known here.

    It cannot be known for a process of another machine, of another boot (two machines may share a
    host name), of a container with process ids of its own, or where there is no /proc.
    """
    here = this_process()
    if here["pid_started"] is None:
        return None
    if any(writer.get(name) != here[name] for name in ("host", "boot_id")):
        return None
    if writer.get("pid_namespace", here["pid_namespace"]) != here["pid_namespace"]:
        return None
    state, started = _state_and_start(int(writer.get("pid", 0)))
    if state is None or state in "ZX":
        return False
    # A process id is used again after a while; the start time tells the new process from the old.
    return writer.get("pid_started") in (None, started)


def _state_and_start(pid: int) -> tuple[str | None, int | None]:
    """State letter and start (clock ticks since boot) of a process; None, None if there is none."""
    try:
        match = _STATE_AND_START_TICKS.match(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return None, None
    return (match.group(1), int(match.group(2))) if match else (None, None)


def _pid_namespace() -> int | None:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
