"""The verb without a cluster: what it prints, and what it refuses in one line."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.bench.slurm.conftest import program
from tests.program import environment

if TYPE_CHECKING:
    from pathlib import Path

FAULTY = "tests.faulty_suite:FaultySuite"


def submit(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(*arguments),
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_help_has_an_example(tmp_path: Path) -> None:
    done = submit(tmp_path, "--help", COLUMNS="200")
    assert done.returncode == 0
    assert "Example: bench submit --slurm" in done.stdout


def test_a_dry_run_prints_the_script_and_needs_no_slurm(tmp_path: Path) -> None:
    slurm = ("--slurm", "nodes=2,ranks-per-node=4", "--slurm", "partition=gpu")
    done = submit(tmp_path, *slurm, "--dry-run", "--store", "here", "--", "run", FAULTY, PATH="/bin")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --partition=gpu\n" in done.stdout
    assert f"store={tmp_path}/here\n" in done.stdout
    assert f"measure {FAULTY}\n" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(tmp_path: Path) -> None:
    options = ("--slurm", "nodes=2", "--dry-run", "--json", "--store", "here", "--", "run", FAULTY)
    done = submit(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["verb"], found["store"]) == ("run", f"{tmp_path}/here")
    assert "#SBATCH --nodes=2\n" in found["script"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "run", FAULTY), "say what to ask Slurm for: --slurm nodes=2,ranks-per-node=4,time=0:30:00"),
        (("--slurm", "nodes=2"), "say what the job runs, after --: bench submit --slurm"),
        (("--slurm", "node=2", "--", "run", FAULTY), "unknown --slurm key 'node'; did you mean nodes"),
        (("--slurm", "time=1h", "--", "run", FAULTY), "--slurm time='1h' is no time; write minutes"),
        (("--slurm", "nodes=2", "--", "run", "memroy"), "unknown suite 'memroy'; did you mean memory?"),
        (("--slurm", "nodes=2", "--", "run", FAULTY, "--bogus"), "--bogus"),
        (("--status", "12"), "no job '12' was submitted into"),
        (("--cancel", "latest"), "no job was submitted into"),
        (("--status", "12", "--cancel", "12"), "--status JOB and --cancel JOB stand alone"),
        (("--status", "12", "--slurm", "nodes=2"), "--status JOB and --cancel JOB stand alone"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = submit(tmp_path, "--dry-run", *arguments) if "--" in arguments else submit(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("bench: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_the_package_is_named(tmp_path: Path) -> None:
    done = submit(tmp_path, "--slurm", "nodes=2", "--", "run", FAULTY, PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("bench: sbatch is not installed here (Debian: slurm-client)")
    assert len(done.stderr.splitlines()) == 1
