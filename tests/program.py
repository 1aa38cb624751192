"""Runs the real program ``bench`` in a process of its own, for tests of what users see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER_MARKS = ("RANK", "WORLD_SIZE", "OMPI_", "PMI_", "PMIX_", "SLURM_", "MASTER_")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with the project importable, and no trace of a launcher."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_MARKS)}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def command(*arguments: str) -> list[str]:
    """The command line of ``bench`` with the Python that runs the tests."""
    return [sys.executable, "-m", "bench.cli", *arguments]


def bench(*arguments: str, cwd: Path, timeout: float = 120, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``bench`` to its end in folder ``cwd`` and keep what it printed."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def json_lines(text: str) -> list[dict[str, Any]]:
    """Every line of a program's output, parsed; fails on a line that is no JSON."""
    return [json.loads(line) for line in text.splitlines()]


PEAK_MEMORY_CODE = """
def peak_memory_bytes():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
"""
"""Defines the peak of a process's own memory; getrusage's would count what the parent held when it forked."""
