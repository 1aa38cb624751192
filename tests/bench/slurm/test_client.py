"""What Slurm's commands say is read as it is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import LaunchError, UsageError
from bench.slurm import client
from bench.slurm.client import FORGOTTEN, JobState, parse_accounting, parse_job, submission_environment
from bench.slurm.folder import Job

SHOWN = """\
JobId=7 JobName=JobState=COMPLETED
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:15
   RunTime=00:01:04 TimeLimit=00:01:00 TimeMin=N/A
   ReqNodeList=n9 ExcNodeList=n8
   NodeList=n[1-2]
   BatchHost=n1
   Command=/tmp/x JobState=COMPLETED
   WorkDir=/tmp/x ExitCode=0:0 NodeList=no
"""
JOB = Job("7", "", "run", Path("/nowhere"), Path("/nowhere"))


def test_what_scontrol_shows() -> None:
    assert parse_job(SHOWN) == JobState("TIMEOUT", "TimeLimit", "n[1-2]", 0, 15, 2, "00:01:00")


def test_a_waiting_job_has_no_nodes() -> None:
    shown = "JobId=1\n   JobState=PENDING Reason=None Dependency=(null)\n   NodeList=(null)\n"
    assert parse_job(shown) == JobState("PENDING")


def test_what_sacct_shows() -> None:
    lines = "NODE_FAIL|1:0|n1|05:00\nCANCELLED by 1000|0:15|n2|05:00\n"
    assert parse_accounting(lines) == JobState("CANCELLED", "", "n2", 0, 15, 1, "05:00")
    assert parse_accounting("OUT_OF_ME+|0:125|None assigned|05:00\n").state == "OUT_OF_ME"
    assert parse_accounting("").state == FORGOTTEN


def test_variables_of_an_allocation_and_of_launchers_stay_behind() -> None:
    kept = {"PATH": "/bin", "SLURM_CONF": "/x", "NCCL_DEBUG": "INFO", "HOME": "/root"}
    others = ("SLURM_JOB_ID", "SBATCH_PARTITION", "SRUN_CPUS_PER_TASK", "RANK", "WORLD_SIZE", "MASTER_PORT", "PMI_RANK")
    assert submission_environment({**kept, **dict.fromkeys(others, "1")}) == kept


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, **programs: str) -> None:
    for name, text in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin")


def test_a_forgotten_job_is_looked_up_in_the_accounting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forgotten = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    stand_in(monkeypatch, tmp_path, scontrol=forgotten)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert client.look(JOB).state == FORGOTTEN
    stand_in(monkeypatch, tmp_path, sacct="echo 'COMPLETED|0:0|n1|05:00'")
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert client.look(JOB).state == "COMPLETED"


def test_a_silent_controller_is_an_error_and_no_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(
        monkeypatch, tmp_path, scontrol="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    with pytest.raises(LaunchError, match="Slurm does not answer: slurm_load_jobs error: Unable to contact"):
        client.look(JOB)


def test_the_cluster_that_took_the_job_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    stand_in(monkeypatch, tmp_path, sbatch="echo '12;far'", scontrol='echo "   JobState=$1 Reason=None"')
    number, cluster = client.submit_script(script)
    assert (number, cluster) == ("12", "far")
    assert client.look(Job(number, cluster, "run", tmp_path, tmp_path)).state == "--clusters=far"


def test_an_answer_without_a_number_is_no_submission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, sbatch="true")
    with pytest.raises(LaunchError, match="Slurm refused the job: sbatch said nothing"):
        client.submit_script(tmp_path / "job.sbatch")


def test_missing_slurm_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"sbatch is not installed here \(Debian: slurm-client\)"):
        client.require_slurm()
