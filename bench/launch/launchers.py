"""Recognises the launcher that started this process, from the variables that it sets."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT_BASE, PORT_SPAN = 20_000, 12_000
"""Ports below the kernel's ephemeral range, from which a job takes one by its id."""


LAUNCHER_VARIABLES = frozenset({"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})
"""Variables that torchrun sets by itself: they say nothing about the machine."""


@dataclass(frozen=True)
class Launched:
    """This process's place in a group that somebody else started.

    Attributes:
        launcher: torchrun, srun or mpirun.
        rank, world, local_rank, local_world: as the launcher numbers them.
        master_address, master_port: where the ranks meet.
        agent_store: the launcher itself serves the meeting point (torchrun), so rank 0 must not.
    """

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    master_address: str
    master_port: int
    agent_store: bool = False


def detect(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """The place in the group that torchrun, mpirun or srun started, or None if none did.

    A Slurm allocation alone, without ``srun``, is no launch.

    Raises:
        UsageError: the launcher's variables contradict each other or cannot be read.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _from(environment, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "OMPI_COMM_WORLD_RANK" in environment:
        return _from(
            environment,
            "mpirun",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        )
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment and _is_task_step(environment):
        return _from(environment, "srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
    if "PMI_RANK" in environment:
        return _from(environment, "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return None


def require_world(launched: Launched, asked: tuple[int, ...]) -> None:
    """Refuse a world that is not what was asked for (a world of one per process is the usual cause).

    Raises:
        UsageError: ``--ranks`` names another number.
    """
    if asked and asked != (launched.world,):
        wanted = ", ".join(str(ranks) for ranks in asked)
        raise UsageError(
            f"--ranks {wanted} was asked for, but {launched.launcher} started a world of {launched.world};"
            f" start {wanted} processes, or leave --ranks out"
        )


def _is_task_step(environment: Mapping[str, str]) -> bool:
    """False in the batch script and in an interactive shell, whose step is no task of srun's own."""
    return environment["SLURM_STEP_ID"].isdigit()


def _from(
    environment: Mapping[str, str], launcher: str, rank: str, world: str, local: str, local_world: str
) -> Launched:
    here = Launched(
        launcher,
        _number(environment, rank),
        _number(environment, world),
        _number(environment, local, default=0),
        _number(environment, local_world, default=1),
        environment.get("MASTER_ADDR") or _master_address(environment, launcher),
        _number(environment, "MASTER_PORT", default=_job_port(environment)),
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    if not 0 <= here.rank < here.world:
        raise UsageError(f"{rank}={here.rank} is not a rank of a world of {world}={here.world}")
    return here


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        # Slurm writes a list such as 2(x3) for tasks per node; its first number is the largest.
        return int((text or "").partition("(")[0].partition(",")[0])
    except ValueError:
        raise UsageError(f"the launcher's variable {name} is {text!r}, not a number") from None


def _master_address(environment: Mapping[str, str], launcher: str) -> str:
    """The first host of the job, where rank 0 runs."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if hosts is None:
        if launcher == "mpirun" and _hosts_of_mpirun(environment) > 1:
            raise UsageError("set MASTER_ADDR to rank 0's host: mpirun does not say it (mpirun -x MASTER_ADDR=...)")
        return "127.0.0.1"
    if "[" not in hosts:
        return hosts.partition(",")[0]
    if shutil.which("scontrol") is None:
        raise UsageError(f"set MASTER_ADDR to rank 0's host: scontrol is missing, so {hosts!r} cannot be read")
    expanded = subprocess.run(
        ["scontrol", "show", "hostnames", hosts], capture_output=True, text=True, check=True, timeout=30
    )
    return expanded.stdout.split()[0]


def _hosts_of_mpirun(environment: Mapping[str, str]) -> int:
    local = _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", default=0)
    world = _number(environment, "OMPI_COMM_WORLD_SIZE", default=0)
    return 1 if local == world else 2


def _job_port(environment: Mapping[str, str]) -> int:
    """The same port on every rank of a job, another one for another job."""
    import zlib

    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_KVSNAME")
    job = "/".join(environment.get(name, "") for name in names)
    return PORT_BASE + zlib.crc32(job.encode()) % PORT_SPAN
