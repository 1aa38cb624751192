"""Turns what is known of a failed rank into words: how it ended, its state, who held the others up."""

from __future__ import annotations

import signal
from pathlib import Path

PHASES = ("start", "idle", "setup", "measure", "check", "done")
WAITING_MARKS = ("torch/distributed", "torch/cuda", "bench/measure/group.py")
PROCESS_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for I/O",
    "T": "stopped by a signal",
    "t": "stopped by a tracer",
    "Z": "ended",
}


def death_text(returncode: int | None, log: Path) -> str:
    """How a process ended, with the last line that it wrote: ``was killed by SIGKILL``."""
    if returncode is None:
        return "is alive"
    if returncode < 0:
        name = signal.Signals(-returncode).name
        text = f"was killed by {name}"
        if name == "SIGKILL":
            text += " (out of memory, or somebody's kill -9)"
    else:
        text = f"exited early with status {returncode}"
    last = last_line(log)
    return f"{text}, last words: {last}" if last else text


def last_line(log: Path) -> str:
    """The last non-empty line of a log, at most 200 characters; empty if there is none."""
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def one_line(error: BaseException) -> str:
    """An exception's type and message, without line breaks; and the one that it was raised from, if there is one.

    What a library wraps an error in may say all but what went wrong.
    """
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    cause = error
    while (below := cause.__cause__) is not None and below not in (cause, error):
        cause = below
    return line if cause is error or str(cause) in str(error) else f"{one_line(cause)} ({line})"


def where(phase: str, iteration: int) -> str:
    """A rank's position in a case, in words."""
    return f"iteration {iteration}" if phase == "measure" else f"phase {phase!r}"


def process_state(pid: int) -> str:
    """What the kernel says of a process: running, stopped by a signal, ..."""
    try:
        # The name in parentheses may hold spaces, so the state is read after the last parenthesis.
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
    return PROCESS_STATES.get(letter, f"state {letter}")


def name_stalled(positions: dict[int, tuple[str, int]], stacks: dict[int, str]) -> str:
    """Which ranks hold the group up.

    Those furthest behind, if some are; else those that are not waiting for their peers by their
    stacks; else all.

    Args:
        positions: phase and iteration by rank.
        stacks: py-spy dumps by rank.
    """
    order = {rank: (PHASES.index(phase), iteration) for rank, (phase, iteration) in positions.items()}
    behind = [rank for rank, position in order.items() if position == min(order.values())]
    if len(behind) == len(order):
        behind = [rank for rank in order if not _waits_for_peers(stacks.get(rank, ""))] or behind
    if len(behind) == len(order) > 1:
        return "all ranks hang together"
    return f"rank {', '.join(str(rank) for rank in behind)} hangs in {where(*positions[behind[0]])}"


def _waits_for_peers(stack: str) -> bool:
    """True if the main thread's innermost frame is inside a collective."""
    main = stack.partition("MainThread")[2].split("\n")
    innermost = next((line for line in main[1:] if line.strip()), "")
    return any(mark in innermost for mark in WAITING_MARKS)
