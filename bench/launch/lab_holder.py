"""The process that holds a lab's network namespaces: they exist as long as it, and vanish with it.

It runs as a script of its own, on the standard library only, so that it starts fast and needs
nothing of the owner's import path. The namespaces have no names and no files: the kernel removes
them, and every link in them, when the last process in them ends.

Protocol: one JSON request on stdin, ``{"owner": pid, "namespaces": count, "steps": [...]}``, where
a step is ``{"namespace": index, "command": [...], "input": text}``; one JSON answer on stdout,
``{"user_namespace": bool}`` or ``{"error": text}``. Then it waits until stdin speaks or closes, or
the owner ends, kills every process that is left in the namespaces, and exits.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

FIRST_FD = 16
"""Namespace ``i`` of the lab is open in the holder as file descriptor ``FIRST_FD + i``."""

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21

_KILL_SECONDS = 5.0


class Step(TypedDict):
    """A command to run in one of the namespaces, and what it reads."""

    namespace: int
    command: list[str]
    input: str


_libc = ctypes.CDLL(None, use_errno=True)


def namespace_path(holder: int, index: int) -> str:
    """Where any process of the same user finds namespace ``index`` of a holder's lab."""
    return f"/proc/{holder}/fd/{FIRST_FD + index}"


def processes_in(namespaces: set[int]) -> list[int]:
    """Ids of the processes, apart from this one, whose network namespace has one of these inodes."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            inode = os.stat(entry / "ns" / "net").st_ino
        except OSError:  # it ended meanwhile, is a zombie, or belongs to someone else
            continue
        if inode in namespaces:
            found.append(int(entry.name))
    return found


def _may_create_namespaces() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return bool(effective >> CAP_NET_ADMIN & 1 and effective >> CAP_SYS_ADMIN & 1)
    return False


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter_user_namespace() -> None:
    """Become root of a new user namespace, which may create network namespaces of its own."""
    user, group = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWUSER)
    # An unprivileged process may map its group only once it has given up setgroups.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _create_namespaces(count: int) -> None:
    for index in range(count):
        _unshare(CLONE_NEWNET)
        descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
        os.dup2(descriptor, FIRST_FD + index, inheritable=False)
        os.close(descriptor)


def _run(step: Step) -> str | None:
    """Run one step in its namespace; the error in one line, or None."""
    _enter(FIRST_FD + step["namespace"])
    done = subprocess.run(step["command"], input=step["input"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    # In a batch, iproute2 ends with "Command failed -:3", where 3 is the line.
    *said, last = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
    batch_line = last.rpartition(":")[2]
    where = ""
    if last.startswith("Command failed -:") and batch_line.isdecimal():
        where = " " + step["input"].splitlines()[int(batch_line) - 1]
    else:
        said.append(last)
    return f"{step['command'][0]}{where}: {' '.join(said)}"


def _build(request: dict[str, Any]) -> dict[str, Any]:
    user_namespace = not _may_create_namespaces()
    try:
        if user_namespace:
            _enter_user_namespace()
        _create_namespaces(request["namespaces"])
        for step in request["steps"]:
            error = _run(step)
            if error:
                return {"error": error}
    except OSError as error:
        doing = "user namespace" if user_namespace else "network namespace"
        return {"error": f"the kernel refuses a {doing}: {error.strerror}", "refused": doing}
    return {"user_namespace": user_namespace}


def _wait_for_the_end(owner: int) -> None:
    watched: list[Any] = [sys.stdin]
    try:
        watched.append(os.pidfd_open(owner))
    except ProcessLookupError:
        return
    select.select(watched, [], [])


def _kill_everyone(namespaces: set[int]) -> None:
    """Kill what still runs in the namespaces, until nothing is found there."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        found = processes_in(namespaces)
        if not found:
            return
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def main() -> None:
    request = json.loads(sys.stdin.readline() or "null")
    if request is None:  # the owner ended before it asked for anything
        return
    answer = _build(request)
    print(json.dumps(answer), flush=True)
    if "error" not in answer:
        _wait_for_the_end(request["owner"])
        _kill_everyone({os.fstat(FIRST_FD + index).st_ino for index in range(request["namespaces"])})


if __name__ == "__main__":
    main()
