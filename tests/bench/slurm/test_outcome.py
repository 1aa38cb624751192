"""How a job ended becomes an exit code and one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.selftest import synthetic_record
from bench.slurm.client import FORGOTTEN, JobState
from bench.slurm.folder import EXIT_CODE, LOG, Job
from bench.slurm.outcome import judge_end
from bench.store.reader import RunSummary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / LOG).touch()
    return Job("7", "", "run", tmp_path, tmp_path)


def run_with(cases_with_rows: int) -> RunSummary:
    record = synthetic_record(0)
    record.cases = 3
    return RunSummary(record, "sealed", {}, cases_with_rows)


@pytest.mark.parametrize(
    ("state", "noted", "code", "words"),
    [
        (JobState("COMPLETED"), 0, 0, "job 7: completed"),
        (JobState(FORGOTTEN), 0, 0, "completed"),
        (JobState("FAILED", exit_status=1), 1, 1, "regressed"),
        (JobState("FAILED", exit_status=143), 2, 2, "the call was refused on the nodes"),
        (JobState("FAILED", exit_status=3), 3, 3, "inconclusive"),
        (JobState("FAILED", exit_status=4), 4, 4, "not all was measured; 2 of 3 case(s) have rows, the rest:"),
        (JobState("FAILED", exit_status=137), None, 4, "it was ended by SIGKILL; 2 of 3"),
        (JobState("FAILED", exit_status=7), 0, 4, "it failed with exit status 7"),
        (JobState("TIMEOUT", time_limit="00:05:00"), 4, 4, "its time limit (00:05:00) was reached; 2 of 3"),
        (JobState("NODE_FAIL"), None, 4, "a node failed, and it was not requeued; 2 of 3"),
        (JobState("OUT_OF_MEMORY"), None, 4, "its memory was used up; ask for more with mem="),
        (JobState("CANCELLED"), 0, 4, "it was cancelled"),
        (JobState("PREEMPTED"), None, 4, "another job took its place"),
        (JobState(FORGOTTEN), None, 4, "Slurm no longer knows how it ended"),
        (JobState("SOMETHING_NEW"), None, 4, "it ended as SOMETHING_NEW"),
    ],
)
def test_ends(job: Job, state: JobState, noted: int | None, code: int, words: str) -> None:
    if noted is not None:
        (job.folder / EXIT_CODE).write_text(f"{noted}\n")
    outcome = judge_end(job, state, run_with(2))
    assert outcome.exit_code == code
    assert words in outcome.message
    assert "\n" not in outcome.message


def test_the_rest_is_one_command_away(job: Job) -> None:
    run = run_with(2)
    message = judge_end(job, JobState("TIMEOUT"), run).message
    assert f"the rest: bench submit --slurm ... -- run --resume {run.run_id}" in message
    assert "the rest" not in judge_end(job, JobState("TIMEOUT"), run_with(3)).message


def test_a_job_without_a_run_measured_nothing(job: Job) -> None:
    outcome = judge_end(job, JobState("COMPLETED"), None)
    assert outcome.exit_code == 4
    assert "no run began; its log is" in outcome.message
    job.log.unlink()
    assert "is the store on a file system that the nodes share?" in judge_end(job, JobState("FAILED"), None).message


def test_a_refused_call_has_no_run_and_keeps_its_code(job: Job) -> None:
    (job.folder / EXIT_CODE).write_text("2\n")
    assert judge_end(job, JobState("FAILED", exit_status=2), None).exit_code == 2
