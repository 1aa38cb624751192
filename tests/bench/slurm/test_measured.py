"""What a job may run is checked before it waits in a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.errors import UsageError
from bench.selftest import synthetic_record
from bench.slurm.measured import MeasuredCommand
from bench.slurm.options import JobOptions
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from pathlib import Path

FAULTY, SOLO = "tests.faulty_suite:FaultySuite", "tests.faulty_suite:SoloSuite"
ONE, FOUR = JobOptions(), JobOptions(nodes=2, ranks_per_node=2)


def test_a_run_and_its_restart(tmp_path: Path) -> None:
    command = MeasuredCommand.parse(["run", FAULTY, "--set", "number=1"], FOUR, tmp_path)
    assert command == MeasuredCommand("run", (FAULTY, "--set", "number=1"), ("--resume",))


def test_a_restarted_characterize_keeps_its_folder(tmp_path: Path) -> None:
    command = MeasuredCommand.parse(["characterize", "-o", "out"], FOUR, tmp_path)
    assert command == MeasuredCommand("characterize", ("-o", "out"), ("--output", "out", "--resume"))


def test_a_resumed_run_is_named_by_its_whole_id(tmp_path: Path) -> None:
    record = synthetic_record(0)
    with RunWriter(tmp_path, record) as writer:
        writer.seal()
    command = MeasuredCommand.parse(["run", "--resume", "latest"], FOUR, tmp_path)
    assert command.first == ("--resume", record.run_id)


def test_one_rank_may_start_others_itself(tmp_path: Path) -> None:
    assert MeasuredCommand.parse(["run", FAULTY, "--ranks", "4"], ONE, tmp_path).first[-1] == "4"
    lab = "nodes=2,ranks-per-node=1,rate=1gbit"
    assert MeasuredCommand.parse(["run", FAULTY, "--lab", lab], ONE, tmp_path).first[-1] == lab


def test_the_store_of_the_environment_is_not_one_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_STORE", str(tmp_path))
    assert MeasuredCommand.parse(["run", FAULTY], FOUR, tmp_path).verb == "run"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([], ONE, "say what the job runs, after --: bench submit --slurm"),
        (["doctor"], ONE, "unknown verb for a job 'doctor'; known: characterize, run"),
        (["rnu", FAULTY], ONE, "unknown verb for a job 'rnu'; did you mean run?"),
        (["run"], ONE, "name at least one suite"),
        (["run", "nothing"], ONE, "unknown suite 'nothing'"),
        (["run", FAULTY, "--preset", "slow"], ONE, "unknown preset 'slow'"),
        (["run", FAULTY, "--set", "numbr=1"], FOUR, "numbr"),
        (["run", FAULTY, "--store", "x"], FOUR, "give --store before the --"),
        (["run", FAULTY, "--json", "-"], FOUR, "leave --json FILE out"),
        (["run", FAULTY, "--ranks", "2"], FOUR, "nodes=2,ranks-per-node=2 is a world of 4; leave --ranks out"),
        (["run", FAULTY, "--lab", "nodes=2,ranks-per-node=1,rate=1gbit"], FOUR, "--lab starts its own ranks"),
        (["run", SOLO], FOUR, "runs in one process, but nodes=2,ranks-per-node=2 is a world of 4"),
        (["run", "--resume", "x", "--seed", "3"], FOUR, "--resume goes on with what the run was asked for"),
        (["run", "--resume", "x"], FOUR, "there is no run in"),
    ],
)
def test_what_could_not_run_is_refused(tmp_path: Path, arguments: list[str], options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        MeasuredCommand.parse(arguments, options, tmp_path)
    assert message in str(caught.value)
