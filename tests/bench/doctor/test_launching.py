"""Checks of launchers and stack dumps, with programs missing and system calls forbidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.doctor import launching

if TYPE_CHECKING:
    from collections.abc import Callable


def test_py_spy_reads_the_stack_of_a_child() -> None:
    check = launching.check_py_spy()
    assert check.status == "ok", check


def test_py_spy_that_may_not_trace_says_what_would_allow_it(
    tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]
) -> None:
    # The kernel lets nobody look into a process whose program its user may run but not read, unless
    # by capabilities; root gives up those.
    folder = tmp_path / "unreadable"
    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", str(folder)], check=True, timeout=120)
    for program in (folder / "bin").glob("python*"):
        program.chmod(0o111)
    drop = ["setpriv", "--bounding-set", "-sys_ptrace,-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    search = os.pathsep.join(path for path in sys.path if path)
    first = f"import sys; sys.path += {search!r}.split({os.pathsep!r})"
    # py-spy lies beside the Python that runs the tests, which need not be on PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python = str(folder / "bin/python")
    check = check_elsewhere("launching", "check_py_spy()", first=first, python=python, before=drop, PATH=path)
    assert check["status"] == "warn"
    assert "ermission denied" in check["found"]
    assert "backtrace" not in check["found"]
    assert "SYS_PTRACE" in check["fix"] or "ptrace_scope" in check["fix"]


def test_without_py_spy(bare_python: str, tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    check = check_elsewhere("launching", "check_py_spy()", python=bare_python, PATH=str(tmp_path))
    assert (check["status"], check["fix"], check["required"]) == ("missing", "pip install py-spy", False)


def test_launchers_that_are_not_here(
    bare_python: str, tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]
) -> None:
    for call in ("check_torchrun()", "check_mpirun()", "check_slurm()"):
        check = check_elsewhere("launching", call, python=bare_python, PATH=str(tmp_path))
        assert check["status"] == "n/a"


def test_launchers_answer_with_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srun, mpirun = tmp_path / "srun", tmp_path / "mpirun"
    srun.write_text("#!/bin/sh\necho slurm 24.05.2\n")
    mpirun.write_text("#!/bin/sh\nexit 3\n")
    for program in (srun, mpirun):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    assert launching.check_slurm().found == "slurm 24.05.2, outside of a job"
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert launching.check_slurm().found == "slurm 24.05.2, in a job of 4 node(s)"
    mute = launching.check_mpirun()
    assert (mute.status, mute.fix) == ("warn", f"see what `{mpirun} --version` says")
    srun.write_text("#!/bin/sh\necho 'srun: fatal: no configuration' >&2\nexit 1\n")
    mute = launching.check_slurm()
    assert mute.status == "warn"
    assert "SLURM_CONF" in mute.fix


def test_the_lab_needs_its_tools(tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    check = check_elsewhere("launching", "check_lab()", PATH=str(tmp_path))
    assert check["status"] == "missing"
    assert "needs the program" in check["found"]
    assert "apt install" in check["fix"]


@pytest.mark.lab
def test_a_lab_can_be_built_or_the_check_says_why_not() -> None:
    from bench.launch.lab import unavailable_reason

    reason, check = unavailable_reason(), launching.check_lab()
    assert check.status == ("missing" if reason else "ok")
    assert reason is None or reason == f"{check.found}; {check.fix}"
