"""A task around a rank: exit codes, and the time that rank 0 needs to tell its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from bench.slurm.task import rank_environment
from tests.program import ROOT, environment

if TYPE_CHECKING:
    from pathlib import Path

RANK = """
import os, signal, sys
from pathlib import Path
word = sys.argv[1]
Path("rank-pid").write_text(str(os.getpid()))
if word == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if word == "wait":
    Path("blocked").write_text(str(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    Path("ready").touch()
    if Path("blocked").read_text() == "True":
        signal.sigwait([signal.SIGTERM])
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
        signal.pause()
    sys.exit(4)
sys.exit(int(word))
"""
"""Stands in for bench.cli in a package of the same name."""


def start(folder: Path, word: str, rank: str, world: str = "2") -> subprocess.Popen[str]:
    (folder / "bench" / "slurm").mkdir(parents=True)
    for path in ("__init__.py", "slurm/__init__.py"):
        (folder / "bench" / path).touch()
    (folder / "bench" / "cli.py").write_text(RANK)
    for path in ("slurm/task.py", "same_python.py"):
        shutil.copy(ROOT / "bench" / path, folder / "bench" / path)
    return subprocess.Popen(
        [sys.executable, "-m", "bench.slurm.task", "note", word],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder), SLURM_PROCID=rank, SLURM_NTASKS=world),
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 2, 4])
def test_rank_0_notes_its_exit_code(tmp_path: Path, code: int) -> None:
    assert start(tmp_path, str(code), "0").wait(20) == code
    assert (tmp_path / "note").read_text() == f"{code}\n"


def test_a_killed_rank_0_notes_nothing(tmp_path: Path) -> None:
    task = start(tmp_path, "die", "0")
    assert task.communicate(timeout=20)[1] == "rank 0 was killed by SIGKILL\n"
    assert task.returncode == 137
    assert not (tmp_path / "note").exists()


def test_another_rank_that_ends_well_ends_at_once(tmp_path: Path) -> None:
    assert start(tmp_path, "0", "1").wait(10) == 0
    assert not (tmp_path / "note").exists()


def test_another_rank_that_is_lost_waits_until_it_is_told_to_end(tmp_path: Path) -> None:
    task = start(tmp_path, "die", "1")
    assert task.stderr is not None
    assert task.stderr.readline() == "rank 1 was killed by SIGKILL\n"
    with pytest.raises(subprocess.TimeoutExpired):
        task.wait(0.5)
    task.terminate()
    assert task.wait(5) == 137


@pytest.mark.parametrize(("world", "blocked"), [("2", "True"), ("1", "False")])
def test_ending_signals_reach_the_rank(tmp_path: Path, world: str, blocked: str) -> None:
    task = start(tmp_path, "wait", "0", world)
    wait_for(tmp_path / "ready")
    assert (tmp_path / "blocked").read_text() == blocked
    if world == "1":
        time.sleep(0.2)  # it says that it is ready just before it is
    task.send_signal(signal.SIGTERM)
    assert task.wait(20) == 4
    assert (tmp_path / "note").read_text() == "4\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "rank-pid").read_text()), 0)


def test_one_rank_alone_is_no_group() -> None:
    variables = {"SLURM_PROCID": "0", "PMI_RANK": "0", "SLURM_JOB_ID": "1"}
    assert set(rank_environment({**variables, "SLURM_NTASKS": "1"})) & set(variables) == {"SLURM_JOB_ID"}
    assert set(rank_environment({**variables, "SLURM_NTASKS": "2"})) & set(variables) == set(variables)
