"""A task of a job's step: runs one rank of ``bench``, and lets rank 0 tell its end before any other rank.

``srun --kill-on-bad-exit`` ends all ranks as soon as one has ended badly. Rank 0 then could not store
which rank was lost, and the step's exit code would be that of a rank that was killed. So a lost rank's
task stays a little longer than its rank, and rank 0's task notes the exit code of rank 0 in a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from bench.same_python import python_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

FAREWELL_S = 20.0
"""Enough for rank 0 to find out who is lost, to collect stacks and to store the failure."""
ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
"""Those that ranks of a group wait for (``bench.launch.watch``)."""
SIGNALS = (*ENDING_SIGNALS, signal.SIGHUP)


def is_alone(environment: Mapping[str, str]) -> bool:
    """Whether this is the only rank: no group, so that ``bench`` supervises processes of its own."""
    return environment.get("SLURM_NTASKS") == "1"


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The rank's variables; those that number it are for ranks of a group."""
    marks = ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK") if is_alone(environment) else ()
    kept = {name: value for name, value in environment.items() if name not in marks}
    # Ranks that end together warn of each other's closed connections, each with a C++ stack.
    return {"TORCH_CPP_LOG_LEVEL": "ERROR", **kept}


def run_task(note: Path, arguments: list[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run ``bench`` with the arguments to its end; the exit code of this task."""
    rank = environment.get("SLURM_PROCID", "0")
    asked_to_end = threading.Event()
    if not is_alone(environment):
        # A rank of a group waits for these signals in a thread of its own. Blocked from the start, they cannot
        # end it through a thread that some library has begun before.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    command = [*python_command(), "-m", "bench.cli", *arguments]
    process = subprocess.Popen(command, env=rank_environment(environment))

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked_to_end.set()
        process.send_signal(number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    code = process.wait()
    if code < 0:
        print(f"rank {rank} was killed by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
    if rank != "0" and code != 0:
        asked_to_end.wait(FAREWELL_S)
    elif rank == "0" and code >= 0:
        hidden = note.with_name(f".{note.name}")
        hidden.write_text(f"{code}\n")
        hidden.replace(note)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(run_task(Path(sys.argv[1]), sys.argv[2:]))
