"""Slurm's own commands: submit a job, ask for its state, cancel it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.slurm.folder import Job

PACKAGE = "slurm-client"
CALL_TIMEOUT_S = 60
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
FORGOTTEN = "FORGOTTEN"
"""The state of a job that Slurm no longer knows."""

_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"})
"""Of Slurm's variables, those that say where it is and who asks."""
_DROPPED = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "OMPI_", "PMI_", "PMIX_", "PRTE_", "TORCHELASTIC_", "MPI_LOCAL")
_DROPPED_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
_FIELD = r"^ +(?:\S.*? )?{name}=(\S*)"


@dataclass(frozen=True)
class JobState:
    """A job at one moment.

    Attributes:
        state: Slurm's word, such as PENDING; ``FORGOTTEN`` if Slurm knows nothing of it.
        reason: why it is in that state, or empty.
        nodes: that it has, or empty.
        exit_status, exit_signal: of its script.
        restarts: how often it was requeued.
        time_limit: as Slurm writes it, or empty.
    """

    state: str
    reason: str = ""
    nodes: str = ""
    exit_status: int = 0
    exit_signal: int = 0
    restarts: int = 0
    time_limit: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED or self.state == FORGOTTEN


def submission_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables without those of an allocation or a launcher around this process.

    They would override what the script asks for, or make its ranks take themselves for others.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name.startswith(_DROPPED) or name in _DROPPED_NAMES)
    }


def require_slurm() -> None:
    """Refuse to go on without Slurm's commands.

    Raises:
        UsageError: sbatch is missing.
    """
    if shutil.which("sbatch") is None:
        raise UsageError(
            f"sbatch is not installed here (Debian: {PACKAGE}); submit from a login node, or look with --dry-run"
        )


def submit_script(script: Path) -> tuple[str, str]:
    """Submit a script with its folder as working folder; the job's id and the name of the cluster, if any.

    Raises:
        LaunchError: Slurm refuses it; the message is Slurm's own.
    """
    done = _call("sbatch", "--parsable", script.name, cwd=script.parent)
    number, _, cluster = done.stdout.strip().splitlines()[-1].partition(";") if done.stdout.strip() else ("", "", "")
    if done.returncode or not number.isdigit():
        raise LaunchError(f"Slurm refused the job: {_own_words(done) or 'sbatch said nothing'}")
    return number, cluster


def look(job: Job) -> JobState:
    """The state of a job, as the controller knows it, else as the accounting does.

    Raises:
        LaunchError: neither answers.
    """
    done = _call("scontrol", *_cluster(job), "show", "job", job.number)
    if done.returncode == 0:
        return parse_job(done.stdout)
    if "invalid job id" not in done.stderr.lower():
        raise LaunchError(f"Slurm does not answer: {_own_words(done)}")
    if shutil.which("sacct") is None:
        return JobState(FORGOTTEN)
    fields = "--format=State,ExitCode,NodeList,Timelimit"
    done = _call(
        "sacct", *_cluster(job), "--parsable2", "--noheader", "--allocations", "--duplicates", fields, "-j", job.number
    )
    return parse_accounting(done.stdout) if done.returncode == 0 else JobState(FORGOTTEN)


def cancel(job: Job) -> None:
    """Ask Slurm to end a job.

    Raises:
        LaunchError: Slurm refuses.
    """
    done = _call("scancel", *_cluster(job), job.number)
    if done.returncode:
        raise LaunchError(f"Slurm did not cancel job {job.number}: {_own_words(done)}")


def parse_job(text: str) -> JobState:
    """The state in what ``scontrol show job`` prints; fields lie at known places of indented lines."""
    status, _, ended_by = _field(text, "ExitCode").partition(":")
    reason = _field(text, "Reason")
    nodes = _field(text, "NodeList")
    return JobState(
        state=_field(text, "JobState") or FORGOTTEN,
        reason="" if reason == "None" else reason,
        nodes="" if nodes == "(null)" else nodes,
        exit_status=_number(status),
        exit_signal=_number(ended_by),
        restarts=_number(_field(text, "Restarts")),
        time_limit=_field(text, "TimeLimit"),
    )


def parse_accounting(text: str) -> JobState:
    """The state in what ``sacct --parsable2`` prints; a requeued job has a line for each start."""
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    if not lines:
        return JobState(FORGOTTEN)
    state, exit_code, nodes, time_limit = lines[-1]
    status, _, ended_by = exit_code.partition(":")
    return JobState(
        # "CANCELLED by 1000" says who; a "+" marks a word that was cut.
        state=state.partition(" ")[0].rstrip("+") or FORGOTTEN,
        nodes="" if nodes == "None assigned" else nodes,
        exit_status=_number(status),
        exit_signal=_number(ended_by),
        restarts=len(lines) - 1,
        time_limit=time_limit,
    )


def _field(text: str, name: str) -> str:
    match = re.search(_FIELD.format(name=name), text, re.MULTILINE)
    return match.group(1) if match else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _cluster(job: Job) -> list[str]:
    return [f"--clusters={job.cluster}"] if job.cluster else []


def _call(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands, in words that can be parsed; Ctrl-C is for this process, not for it."""
    environment = submission_environment() | {"LC_ALL": "C"} if command[0] != "sbatch" else submission_environment()
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UsageError(f"{command[0]} is not installed here (Debian: {PACKAGE})") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} gave no answer within {CALL_TIMEOUT_S} s") from None


def _own_words(done: subprocess.CompletedProcess[str]) -> str:
    """What the command said, in one line, without its name before each."""
    lines = [re.sub(r"^\w+: (?:error: )?", "", line).strip() for line in done.stderr.splitlines()]
    return "; ".join(line for line in lines if line)
