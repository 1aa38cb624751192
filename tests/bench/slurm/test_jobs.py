"""Real jobs on a real cluster of two emulated nodes: rows, lost ranks, limits, cancelling, requeueing."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from bench.store.reader import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.store.row import Row
    from tests.bench.slurm.cluster import SlurmCluster
    from tests.bench.slurm.conftest import Submitter

FAULTY = "tests.faulty_suite:FaultySuite"
RUN = ("run", FAULTY, "--max-time", "0.05", "--timeout", "300")
HANGING = (*RUN, "--set", "fault=hang_third")
PAIR = ("--slurm", "nodes=2,ranks-per-node=1,time=10")
INHERITED = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "7",
    "SLURM_MEM_PER_CPU": "4000",
    "SLURM_MEM_PER_NODE": "4000",
    "SLURM_CPU_BIND": "nonsense",
    "SLURM_JOB_NODELIST": "elsewhere",
    "SBATCH_PARTITION": "nowhere",
    "SBATCH_TIMELIMIT": "0:0:0:0",
    "RANK": "3",
    "WORLD_SIZE": "7",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "PMI_RANK": "1",
}
"""What an allocation around the call, and launchers in it, would leave in its environment."""


class Started:
    """A submission that goes on, whose job hangs in its third case."""

    def __init__(self, submit: Submitter) -> None:
        self.submit = submit
        self.process = submit.start(*PAIR, "--", *HANGING)
        self.wait_for(lambda: (submit.folder / "hangs-now").exists(), "the third case")

    @property
    def job(self) -> str:
        (record,) = self.submit.store.glob("jobs/*/job.json")
        return str(json.loads(record.read_text())["number"])

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no {what}: {self.end()}")
            time.sleep(0.05)

    def end(self, timeout: float = 90) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def rows(submit: Submitter) -> list[Row]:
    return Store(submit.store).rows()


def numbers(found: list[Row]) -> list[tuple[Any, str]]:
    return sorted((row.params["number"], row.status) for row in found)


def records(submit: Submitter) -> list[Any]:
    return [run.record for run in Store(submit.store).runs()]


def last_line(text: str) -> str:
    return text.splitlines()[-1]


@pytest.fixture(scope="module")
def at_its_time_limit(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A job whose time is up; Slurm looks every half minute, so it is started before the other tests."""
    from tests.bench.slurm.conftest import Submitter

    started = Started(Submitter(tmp_path_factory.mktemp("limit"), slurm))
    try:
        slurm.call("scontrol", "update", f"JobId={started.job}", "EndTime=now+1seconds")
        yield started
    finally:
        started.process.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("at_its_time_limit")
def test_two_nodes_measure_and_arguments_arrive_as_typed(submit: Submitter) -> None:
    odd = 'fault=none,it\'s "two  blanks" $HOME $(touch here) `touch here` \\ \n#SBATCH --partition=nowhere;*'
    done = submit("--slurm", "nodes=2,ranks-per-node=2,time=5", "--", *RUN, "--select", odd, **INHERITED)
    assert done.returncode == 0, done.stderr
    assert numbers(rows(submit)) == [(0, "ok"), (1, "ok"), (2, "ok")]
    assert {row.params["ranks"] for row in rows(submit)} == {4}
    (record,) = records(submit)
    assert record.command == ["run", "--store", str(submit.store), *RUN[1:], "--select", odd]
    assert not (submit.folder / "here").exists()
    assert "All 3 cases measured" in done.stdout
    states = re.findall(r"^job \d+: ([A-Z]+)", done.stderr, re.MULTILINE)
    assert states[-2:] == ["RUNNING", "COMPLETED"]
    assert f"run {record.run_id}: 3 case(s)" in done.stderr, "the log is shown"
    (script,) = submit.store.glob("jobs/*/job.sbatch")
    assert str(script) in done.stderr


@pytest.mark.slow
def test_a_lost_rank_costs_its_case_alone(submit: Submitter) -> None:
    done = submit(*PAIR, "--json", "--", *RUN, "--set", "fault=kill", "--set", "at=1")
    assert done.returncode == 4
    found = rows(submit)
    assert numbers(found) == [(0, "ok"), (1, "failed"), (2, "ok")]
    (failed,) = [row for row in found if row.status == "failed"]
    assert "rank 1 died" in failed.reason
    stacks = submit.store / failed.reason.partition("stacks in ")[2]
    assert stacks.exists(), "rank 0 had the time to collect them"
    assert "rank 1 was killed by SIGKILL" in done.stderr
    described = json.loads(done.stdout)
    assert (described["exit_code"], described["state"]) == (4, "FAILED")
    assert described["run_id"] == failed.run_id
    again = submit("--status", described["job"])
    assert again.returncode == 4
    assert "2 of 3 cases measured" in again.stdout


def test_one_rank_is_supervised_as_on_a_laptop(submit: Submitter) -> None:
    solo = "tests.faulty_suite:SoloSuite"
    faults = ("--set", "fault=kill", "--set", "victim=0", "--set", "at=1")
    done = submit("--slurm", "nodes=1,time=5", "--no-wait", "--", "run", solo, "--max-time", "0.05", *faults)
    assert done.returncode == 0, done.stderr
    job = re.findall(r"^job: +(\d+)$", done.stdout, re.MULTILINE)[0]
    done = submit("--status", job, "--wait")
    assert done.returncode == 4, done.stderr
    assert numbers(rows(submit)) == [(0, "ok"), (1, "failed"), (2, "ok")]


def test_a_call_that_the_nodes_refuse_keeps_its_exit_code(submit: Submitter) -> None:
    done = submit(*PAIR, "--", *RUN, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stderr
    assert "bench: rank 0: --device cuda: no CUDA device is visible here" in done.stderr
    assert "the call was refused on the nodes" in last_line(done.stderr)


def test_ctrl_c_cancels_and_keeps_the_rows(submit: Submitter) -> None:
    started = Started(submit)
    started.process.send_signal(signal.SIGINT)
    code, out, err = started.end()
    assert code == 4
    assert [row.status for row in rows(submit)] == ["ok", "ok"]
    assert "JobState=CANCELLED" in submit.slurm.call("scontrol", "show", "job", started.job)
    assert "it was cancelled; 2 of 3 case(s) have rows" in last_line(err)
    assert "2 of 3 cases measured" in out
    (run,) = Store(submit.store).runs()
    assert f"-- run --resume {run.run_id}" in last_line(err)
    assert run.state == "sealed", "the ranks had the time to seal it"


@pytest.mark.slow
def test_a_requeued_job_measures_nothing_twice(submit: Submitter) -> None:
    started = Started(submit)
    before = rows(submit)
    assert len(before) == 2
    submit.slurm.call("scontrol", "requeue", started.job)
    code, _, err = started.end()
    assert code == 0, err
    after = rows(submit)
    assert numbers(after) == [(0, "ok"), (1, "ok"), (2, "ok")]
    assert after[:2] == before
    assert len({row.run_id for row in after}) == 1
    assert re.search(r"^job \d+: RUNNING on n\[1-2\], restart 1$", err, re.MULTILINE)
    assert f"run {after[0].run_id}: 1 case(s), 2 measured before" in err


def test_what_slurm_refuses_is_said_in_its_words(submit: Submitter) -> None:
    done = submit("--slurm", "nodes=2,partition=nowhere", "--", *RUN)
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "bench: Slurm refused the job: invalid partition specified: nowhere;"
        " Batch job submission failed: Invalid partition name specified"
    ]
    assert list(submit.store.glob("jobs/*")) == []


def test_a_waiting_job_can_be_looked_at_and_cancelled(submit: Submitter) -> None:
    done = submit("--slurm", "nodes=2,ranks-per-node=2,begin=now+1hour", "--no-wait", "--json", "--", *RUN)
    job = json.loads(done.stdout)["job"]
    shown = submit("--status", "latest")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, f"job {job}: PENDING (BeginTime)")
    done = submit("--cancel", job)
    assert done.returncode == 4
    assert "it was cancelled, and no run began" in last_line(done.stderr)


def test_the_time_limit_is_named(at_its_time_limit: Started) -> None:
    code, out, err = at_its_time_limit.end()
    assert code == 4
    assert "its time limit (" in last_line(err)
    assert "2 of 3 case(s) have rows, the rest: bench submit" in last_line(err)
    assert "2 of 3 cases measured" in out
