"""A real Slurm cluster on loopback for tests: munged, slurmctld and two slurmd, all of it in one folder."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
PACKAGES = "Debian: slurm-wlm munge"
START_S, END_S = 20.0, 5.0
REQUEUE_DELAY_S = 5
"""How long Slurm keeps a requeued job waiting: two minutes where less than five seconds are asked for."""

CONFIGURATION = """\
ClusterName=emulated
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_delay}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
BatchStartTimeout=10
KillWait=5
OverTimeLimit=0
ReturnToService=2
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why no cluster can be started here, or None."""
    missing = [name for name in DAEMONS if _program(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed ({PACKAGES})"
    if os.geteuid() != 0:
        return "slurmd starts its steps as root"
    return None


class SlurmCluster:
    """The cluster while the context lasts.

    Attributes:
        folder: of sockets, state and logs; its path must be short, since it holds sockets.
        environment: the variables that Slurm's commands need to find the cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def call(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=_plain_environment() | self.environment, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._end)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        for name in ("state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir()
        ports = _free_ports(3)
        text = CONFIGURATION.format(folder=self.folder, ports=ports, requeue_delay=REQUEUE_DELAY_S)
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
            "--num-threads=2",
        )
        self._until("munged listens", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D", "-i")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self._until("both nodes are idle", self._is_ready)

    def _daemon(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        with (self.folder / f"{name}-{len(self._daemons)}.out").open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [program, *arguments],
                    env=_plain_environment() | self.environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )

    def _is_ready(self) -> bool:
        try:
            return self.call("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"]
        except subprocess.CalledProcessError:
            return False

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(
                    f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}"
                    for path in (*self.folder.glob("*.log"), *self.folder.glob("*.out"))
                )
                raise RuntimeError(f"not so within {START_S:g} s: {what}\n{logs}")
            time.sleep(0.1)

    def _end(self) -> None:
        """End every daemon by its process id, in the order opposite to their start, then what their jobs left."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._end_steps()

    def _end_steps(self) -> None:
        """slurmstepd outlives its slurmd, and so does a job."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """Daemons and steps, which work in the cluster's folder, and jobs, which know its configuration."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                known = process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]
                if (known or process.cwd() == str(self.folder)) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _program(name: str) -> str | None:
    """Daemons lie where only root's PATH looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [taken.getsockname()[1] for taken in sockets]
