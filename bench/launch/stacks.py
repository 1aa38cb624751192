"""Stacks of running Python processes, taken from outside with py-spy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DUMP_TIMEOUT_S = 10
DUMPS_AT_ONCE = 8


def py_spy_path() -> str | None:
    """The py-spy program: beside this Python first, then on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def dump_stack(pid: int) -> str:
    """The Python stacks of all threads of ``pid``, or one line that says why there are none.

    It reads without pausing the process, so it also works on one that is stopped.
    """
    program = py_spy_path()
    if program is None:
        return "no stack: py-spy is not installed (pip install py-spy)"
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=DUMP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no stack: py-spy took longer than {DUMP_TIMEOUT_S} s"
    if done.returncode != 0:
        # py-spy adds a backtrace of its own to some errors; the cause stands before it.
        cause = done.stderr.partition("Stack backtrace:")[0]
        return f"no stack: py-spy failed: {' '.join(cause.split())}"
    return done.stdout.rstrip()


def dump_stacks(pids: dict[int, int]) -> dict[int, str]:
    """``dump_stack`` of many at once: by rank, for process ids by rank."""
    with ThreadPoolExecutor(DUMPS_AT_ONCE) as pool:
        return dict(zip(pids, pool.map(dump_stack, pids.values()), strict=True))


def allow_tracing() -> None:
    """Let py-spy attach to this process where Yama allows only a parent to (Linux; else nothing)."""
    _prctl(0x59616D61, 0xFFFFFFFFFFFFFFFF)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends (Linux)."""
    import signal

    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
