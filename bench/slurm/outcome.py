"""What became of a job: its exit code, and the line that says why."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import EXIT_INCONCLUSIVE, EXIT_NOT_MEASURED, EXIT_OK, EXIT_REGRESSION, EXIT_USAGE
from bench.slurm.client import FORGOTTEN, JobState

if TYPE_CHECKING:
    from bench.slurm.folder import Job
    from bench.store.reader import RunSummary

PASSED_ON = {
    EXIT_REGRESSION: "regressed",
    EXIT_USAGE: "the call was refused on the nodes",
    EXIT_INCONCLUSIVE: "inconclusive",
    EXIT_NOT_MEASURED: "not all was measured",
}
"""Exit codes of a run that become those of ``bench submit``, in words."""

_CAUSES = {
    "BOOT_FAIL": "its nodes did not boot",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "its deadline passed",
    "NODE_FAIL": "a node failed, and it was not requeued",
    "OUT_OF_MEMORY": "its memory was used up; ask for more with mem=",
    "PREEMPTED": "another job took its place",
    "REVOKED": "its cluster gave it up for another cluster",
    FORGOTTEN: "Slurm no longer knows how it ended",
}


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        exit_code: of the run, or 4 where the job did not come to its end.
        message: one line for the user.
    """

    exit_code: int
    message: str


def judge_end(job: Job, state: JobState, run: RunSummary | None) -> JobOutcome:
    """The outcome of an ended job from Slurm's last word, the exit code of rank 0, and the run's rows."""
    noted = job.noted_exit_code()
    name = f"job {job.number}"
    if run is None and noted != EXIT_USAGE:
        lost = "" if job.log.exists() else "; is the store on a file system that the nodes share?"
        return JobOutcome(EXIT_NOT_MEASURED, f"{name}: {_cause(state)}, and no run began; its log is {job.log}{lost}")
    if state.state == "COMPLETED" or (state.state == FORGOTTEN and noted == EXIT_OK):
        return JobOutcome(EXIT_OK, f"{name}: completed")
    cause = _cause(state)
    if state.state in ("FAILED", FORGOTTEN) and noted is not None and noted in PASSED_ON:
        if noted != EXIT_NOT_MEASURED:
            return JobOutcome(noted, f"{name}: {PASSED_ON[noted]}; its log is {job.log}")
        cause = PASSED_ON[noted]
    return JobOutcome(EXIT_NOT_MEASURED, f"{name}: {cause}{_left(job, run)}; its log is {job.log}")


def _cause(state: JobState) -> str:
    if state.state == "TIMEOUT":
        return f"its time limit ({state.time_limit}) was reached"
    if state.state == "FAILED":
        if state.exit_signal or state.exit_status > 128:
            return f"it was ended by {_signal_name(state.exit_signal or state.exit_status - 128)}"
        return f"it failed with exit status {state.exit_status}"
    if state.state == "COMPLETED":
        return "it completed"
    return _CAUSES.get(state.state, f"it ended as {state.state}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _left(job: Job, run: RunSummary | None) -> str:
    """How far the run got, and how to go on with it."""
    if run is None:
        return ""
    text = f"; {run.cases_with_rows} of {run.record.cases} case(s) have rows"
    if run.cases_with_rows < run.record.cases:
        text += f", the rest: bench submit --slurm ... -- {job.verb} --resume {run.run_id}"
    return text
