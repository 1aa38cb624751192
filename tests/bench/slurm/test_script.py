"""The batch script: what it starts, with stand-ins for Slurm's commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.selftest import synthetic_record
from bench.slurm.folder import LOG, new_folder, write_script
from bench.slurm.measured import MeasuredCommand
from bench.slurm.options import JobOptions
from bench.slurm.script import batch_script
from bench.store.writer import RunWriter
from tests.program import ROOT

if TYPE_CHECKING:
    from pathlib import Path

ODD = ("a b", "it's", '"', "$HOME", "`id`", "$(id)", "\\", "two\nlines", "*", "", "{x}", "#SBATCH --nodes=9")
COMMAND = MeasuredCommand("run", ODD, ("--resume",))
SRUN = """#!{python}
import json, os, sys
calls = open({calls!r}, "a")
print(json.dumps([sys.argv[1:], os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]]), file=calls)
if "NOTE" in os.environ:
    open(sys.argv[sys.argv.index("bench.slurm.task") + 1], "w").write(os.environ["NOTE"])
sys.exit(int(os.environ.get("STATUS", "0")))
"""
SCONTROL = """#!/bin/sh
if [ "$2" = hostnames ]; then seq -f n%.0f 1 100000; else echo "   NodeAddr=10.0.0.1 NodeHostName=$3 Version=22"; fi
"""


class Job:
    """A script in a store whose path has a blank and a quote, run as a job would."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "it's here"
        self.store = self.folder / "store"
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        for path in (self.folder, self.bin):
            path.mkdir()
        monkeypatch.chdir(self.folder)
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            program = self.bin / name
            program.write_text(text.format(python=sys.executable, calls=str(self.calls)) if name == "srun" else text)
            program.chmod(0o755)
        self.job_folder = new_folder(self.store)
        options = JobOptions.parse(["nodes=2,ranks-per-node=2,cpus-per-rank=3,time=5"])
        self.script = write_script(self.job_folder, batch_script(options, COMMAND, self.job_folder, self.store))

    def run(self, **variables: str) -> list[list[object]]:
        """Run the script; the calls of srun: arguments, address and port."""
        environment = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NODELIST": "n[1-2]",
            **variables,
        }
        done = subprocess.run(["bash", str(self.script)], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == int(variables.get("STATUS", "0")), done.stderr
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def begin_a_run(self, cases: int) -> str:
        record = synthetic_record(0)
        record.cases = cases
        with RunWriter(self.store, record) as writer:
            writer.seal()
        (self.job_folder / LOG).write_text(f"noise\nrun {record.run_id}: {cases} case(s)\n")
        return record.run_id


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_arguments_and_meeting_point(job: Job) -> None:
    ((arguments, address, port),) = job.run()
    assert arguments == [
        "--kill-on-bad-exit=1",
        sys.executable,
        "-P",  # the folder that the job is submitted from is not where this process imports from
        "-m",
        "bench.slurm.task",
        str(job.job_folder / "exit-code"),
        "run",
        "--store",
        str(job.store),
        *ODD,
    ]
    assert (address, port) == ("10.0.0.1", str(20000 + 12 * 8 + 1))


def test_lines_for_slurm_come_first_and_hold_no_path(job: Job) -> None:
    lines = job.script.read_text().splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH ")]
    assert lines[2 : 2 + len(directives)] == directives
    assert {"#SBATCH --nodes=2", "#SBATCH --time=5", "#SBATCH --requeue", "#SBATCH --job-name=bench-run"} <= {
        *directives
    }
    assert not any("/" in directive for directive in directives)
    assert "export SRUN_CPUS_PER_TASK=3" in lines


def test_a_restart_goes_on_with_its_run(job: Job) -> None:
    run_id = job.begin_a_run(cases=0)
    ((arguments, *_),) = job.run(SLURM_RESTART_COUNT="1")
    assert arguments[-3:] == [str(job.store), "--resume", run_id]  # type: ignore[index]


def test_a_restart_before_the_run_began_begins_it(job: Job) -> None:
    ((arguments, *_),) = job.run(SLURM_RESTART_COUNT="1")
    assert arguments[-len(ODD) :] == list(ODD)  # type: ignore[index]


def test_a_lost_group_is_started_again_for_what_is_left(job: Job) -> None:
    run_id = job.begin_a_run(cases=2)
    first, *others = job.run(STATUS="4")
    assert first[0][-1] == ODD[-1]  # type: ignore[index]
    assert [arguments[-2:] for arguments, *_ in others] == [["--resume", run_id]] * 3  # type: ignore[index]
    assert len({port for _, _, port in (first, *others)}) == 4, "a port may be taken for a while after its use"


def test_a_failed_run_with_nothing_left_ends(job: Job) -> None:
    job.begin_a_run(cases=0)
    assert len(job.run(STATUS="4")) == 1


def test_a_refused_call_is_not_repeated(job: Job) -> None:
    job.begin_a_run(cases=2)
    assert len(job.run(STATUS="143", NOTE="2\n")) == 1
