"""A rank that samples its own stacks with py-spy while it goes on working: raw stacks and a flame graph."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import numpy as np

from bench.launch.stacks import py_spy_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.measure.group import RankGroup

RATE_HZ = 100
FORMATS = (("raw", "stacks.txt"), ("flamegraph", "svg"))
BATCH_S = 0.1
GRACE_S = 120.0
"""How long py-spy may take beyond the sampling itself: it reads the symbols of all libraries first."""


def record_stacks(
    iterate: Callable[[], None], group: RankGroup, folder: Path, seconds: float, iteration_s: float
) -> tuple[list[str], str]:
    """Keep iterating while py-spy samples this rank, once for each format (collective).

    Native frames are there where every rank may have them, else Python's alone. Samples are of the
    wall clock: waiting threads count.

    Args:
        iterate: one iteration, the same number on every rank.
        iteration_s: about how long one takes.

    Returns:
        the names of the files, and why there are none (or no native frames), else an empty text.
    """
    files: list[str] = []
    remark, native = "", True
    for form, suffix in FORMATS:
        path = folder / f"rank{group.rank}.{suffix}"
        error = _record(iterate, group, _command(form, path, seconds, native), seconds, iteration_s)
        if native and error:
            native, remark = False, f"no native frames: {error}"
            error = _record(iterate, group, _command(form, path, seconds, native), seconds, iteration_s)
        if error:
            return files, error
        files.append(path.name)
    return files, remark


def _command(form: str, path: Path, seconds: float, native: bool) -> list[str]:
    options = ["--format", form, "--output", str(path), "--duration", f"{round(seconds)}", "--rate", str(RATE_HZ)]
    return [
        py_spy_path() or "py-spy",
        "record",
        "--pid",
        str(os.getpid()),
        "--idle",
        "--threads",
        *options,
        *(["--native"] if native else []),
    ]


def _record(
    iterate: Callable[[], None], group: RankGroup, command: list[str], seconds: float, iteration_s: float
) -> str:
    """Run py-spy beside the iterations until every rank's has ended; what went wrong, the same on all ranks."""
    batch = max(1, round(BATCH_S / max(iteration_s, 1e-6)))
    deadline = time.monotonic() + seconds + GRACE_S
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as spy:
        late = False
        while True:
            if spy.poll() is None and time.monotonic() > deadline:
                spy.send_signal(signal.SIGKILL)
                late = True
            if group.gather(np.array([spy.poll() is not None], dtype=np.float64)).all():
                break
            for _ in range(batch):
                iterate()
        told = (spy.stderr.read() if spy.stderr else b"").decode(errors="replace")
    mine = ""
    if late:
        mine = f"py-spy did not end within {seconds + GRACE_S:g} s"
    elif spy.returncode:
        mine = f"py-spy failed: {' '.join(told.partition('Stack backtrace:')[0].split())}"
    # All ranks go on alike, or they would wait for each other in different places.
    everyone = group.gather_objects(mine)
    return next((f"rank {rank}: {error}" for rank, error in enumerate(everyone) if error), "")
