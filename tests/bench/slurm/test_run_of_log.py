"""The run of a job is the last one that its log names and the store has."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.console import ConsoleListener
from bench.selftest import synthetic_record, synthetic_rows
from bench.slurm.run_of_log import run_of_log
from bench.store.writer import RunWriter
from tests.program import environment

if TYPE_CHECKING:
    from pathlib import Path


def stored(store: Path, cases: int, rows: int = 0) -> str:
    record = synthetic_record(0)
    record.cases = cases
    with RunWriter(store, record) as writer:
        writer.append(list(synthetic_rows(rows, 0)))
        writer.seal()
    return record.run_id


def test_a_run_as_it_announces_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = stored(tmp_path, cases=3)
    ConsoleListener().started(run_id, [], 2)
    (tmp_path / "log").write_text(f"srun: noise\n{capsys.readouterr().err}more\n")
    found = run_of_log(tmp_path / "log", tmp_path)
    assert found is not None
    assert found.run_id == run_id


def test_names_that_the_store_does_not_have_are_passed_over(tmp_path: Path) -> None:
    run_id = stored(tmp_path, cases=3)
    log = tmp_path / "log"
    log.write_text(f"run ../../etc: 1 case(s)\nrun {run_id}: 3 case(s)\nrun other: 3 case(s)\nxrun {run_id}\n\xff")
    found = run_of_log(log, tmp_path)
    assert found is not None
    assert found.run_id == run_id


def test_no_log_no_run(tmp_path: Path) -> None:
    assert run_of_log(tmp_path / "log", tmp_path) is None
    (tmp_path / "log").write_text("slurmstepd: error\n")
    assert run_of_log(tmp_path / "log", tmp_path) is None


@pytest.mark.parametrize(("cases", "unfinished"), [(5, 0), (1, 1)])
def test_as_the_batch_script_calls_it(tmp_path: Path, cases: int, unfinished: int) -> None:
    run_id = stored(tmp_path, cases, rows=4)
    (tmp_path / "log").write_text(f"run {run_id}: {cases} case(s)\n")
    call = [sys.executable, "-m", "bench.slurm.run_of_log", str(tmp_path / "log"), str(tmp_path)]
    for more, code in ((), 0), (("--unfinished",), unfinished):
        done = subprocess.run([*call, *more], env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        assert done.stdout == ("" if code else f"{run_id}\n")
