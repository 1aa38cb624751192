"""Checks of what starts and supervises ranks: stack dumps, the emulated cluster, outside launchers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.doctor.check import Check, install_command
from bench.hardware.kernelfs import ROOT, read_int
from bench.launch.stacks import dump_stack, py_spy_path

VERSION_TIMEOUT_S = 20.0

_TRACED_CHILD = """
import sys
from bench.launch.stacks import allow_tracing
allow_tracing()
print("ready", flush=True)
sys.stdin.read()
"""


def check_py_spy() -> Check:
    """Whether py-spy can read the stack of a process that this one starts, as it must for a rank that hangs."""
    if py_spy_path() is None:
        found = "not installed; ranks that hang are named, but without their stacks"
        return Check("py-spy", "missing", found, "pip install py-spy")
    child = subprocess.Popen(
        [sys.executable, "-c", _TRACED_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        stack = dump_stack(child.pid)
    # The child ends by itself now that its standard input is closed.
    if "<module>" in stack:
        return Check("py-spy", "ok", f"{py_spy_path()} reads the stacks of ranks")
    cause = stack.partition(" Stack backtrace:")[0]
    return Check("py-spy", "warn", f"cannot read the stacks of ranks: {cause}", _allow_tracing_advice())


def check_lab() -> Check:
    """The emulated cluster: network namespaces with shaped links."""
    from bench.launch.lab import unavailable_reason

    reason = unavailable_reason()
    if reason is None:
        return Check("lab", "ok", "network namespaces with shaped links can be made (--lab)")
    # The reason ends with what would change it, after a semicolon.
    found, _, fix = reason.rpartition("; ")
    return Check("lab", "missing", found or reason, fix if found else "")


def check_torchrun() -> Check:
    """torch's launcher, beside this Python or on PATH."""
    beside = Path(sys.executable).with_name("torchrun")
    program = str(beside) if beside.exists() else shutil.which("torchrun")
    if program is None:
        return Check("torchrun", "n/a", "not installed; python -m torch.distributed.run does the same")
    return Check("torchrun", "ok", program)


def check_mpirun() -> Check:
    """A site's MPI launcher."""
    program = shutil.which("mpirun")
    if program is None:
        return Check("mpirun", "n/a", f"not installed; only for sites that start ranks with it ({_openmpi()})")
    version = _first_line(program, "--version")
    if not version:
        return Check("mpirun", "warn", f"{program} does not answer --version", f"see what `{program} --version` says")
    return Check("mpirun", "ok", version)


def check_slurm() -> Check:
    """Slurm's commands, and the job that this process is in."""
    program = shutil.which("srun")
    if program is None:
        return Check("slurm", "n/a", "no srun here; bench run starts ranks on this host by itself")
    version = _first_line(program, "--version")
    if not version:
        advice = f"only for jobs: see what `{program} --version` says; SLURM_CONF names the site's slurm.conf"
        return Check("slurm", "warn", f"{program} does not answer --version", advice)
    nodes = os.environ.get("SLURM_JOB_NUM_NODES")
    return Check("slurm", "ok", f"{version}, in a job of {nodes} node(s)" if nodes else f"{version}, outside of a job")


def _openmpi() -> str:
    return install_command("openmpi-bin")


def _allow_tracing_advice() -> str:
    """What lets py-spy attach here, by who forbids it: Yama, or the rights of a container."""
    scope = read_int(ROOT / "proc/sys/kernel/yama/ptrace_scope")
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3: only a reboot with another value allows it"
    if scope == 2:
        return "sudo sysctl kernel.yama.ptrace_scope=1"
    return "run as root; in a container, start it with --cap-add SYS_PTRACE"


def _first_line(*command: str) -> str:
    """The first line that a command prints, or nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
