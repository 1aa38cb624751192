"""The same verb under torchrun and mpirun: worlds, refusals, and ranks that are lost."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.store.reader import Store
from tests.program import environment

if TYPE_CHECKING:
    from pathlib import Path

    from bench.store.row import Row

FAULTY = "tests.faulty_suite:FaultySuite"
SOLO = "tests.faulty_suite:SoloSuite"
RUN = ("run", FAULTY, "--max-time", "0.05")
MPIRUN = shutil.which("mpirun")


def torchrun(ranks: int, *arguments: str, cwd: Path, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """Ranks under torchrun; ``--standalone`` picks a free port."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return _launch([*launcher, "-m", "bench.cli", *arguments], cwd, timeout)


def mpirun(ranks: int, *arguments: str, cwd: Path, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """Ranks under Open MPI, which wants to be told that root and two slots are meant."""
    launcher = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    return _launch([*launcher, sys.executable, "-m", "bench.cli", *arguments], cwd, timeout)


def _launch(argv: list[str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    marks = {"BENCH_TEST_MARK": str(cwd)}
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=environment(**marks),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    left = [process.pid for process in psutil.process_iter() if _has_mark(process, str(cwd))]
    assert left == []
    return done


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("BENCH_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def stored(folder: Path) -> list[Row]:
    return Store(folder / "results" / "store").rows()


@pytest.mark.parametrize("ranks", [2, 4])
def test_torchrun(tmp_path: Path, ranks: int) -> None:
    done = torchrun(ranks, *RUN, SOLO, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = stored(tmp_path)
    assert len({row.run_id for row in rows}) == 1
    assert sorted((row.suite, row.params["number"], row.status) for row in rows) == [
        (suite, number, "ok") for suite in ("faulty", "faulty_solo") for number in range(3)
    ]
    assert all(row.params["ranks"] == ranks for row in rows if row.suite == "faulty")


@pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed (Debian: openmpi-bin)")
def test_mpirun(tmp_path: Path) -> None:
    done = mpirun(2, *RUN, "--ranks", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row.status for row in stored(tmp_path)] == ["ok"] * 3


def test_a_world_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    done = torchrun(2, *RUN, "--ranks", "4", cwd=tmp_path)
    assert done.returncode != 0
    assert "--ranks 4 was asked for, but torchrun started a world of 2" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [("kill", "rank 1 died"), ("raise", "rank 1 raised ValueError: boom"), ("exit0", "rank 1 died")],
)
def test_a_lost_rank_is_named_and_the_run_can_be_finished(tmp_path: Path, fault: str, words: str) -> None:
    done = torchrun(2, *RUN, "--set", f"fault={fault}", "--set", "at=1", "--seed", "7", cwd=tmp_path)
    assert done.returncode != 0
    rows = stored(tmp_path)
    (failed,) = [row for row in rows if row.status != "ok"]
    assert (failed.status, failed.params["number"]) == ("failed", 1)
    assert words in failed.reason
    assert (tmp_path / "results" / "store" / failed.reason.partition("stacks in ")[2]).exists()
    done = torchrun(2, "run", "--resume", failed.run_id, cwd=tmp_path)
    assert done.returncode != 0, "the run still holds a failed case"
    assert "measured before" in done.stderr
    assert sorted((row.params["number"], row.seed) for row in stored(tmp_path)) == [(0, 7), (1, 7), (2, 7)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("stop", "rank 1 stopped answering for 4 s"), ("hang", "rank 1 hangs in iteration 3")],
)
def test_a_rank_that_hangs_is_named(tmp_path: Path, fault: str, words: str) -> None:
    done = torchrun(2, *RUN, "--timeout", "4", "--set", f"fault={fault}", "--set", "number=0", cwd=tmp_path)
    assert done.returncode != 0
    (row,) = stored(tmp_path)
    assert row.status == "timeout"
    assert words in row.reason


@pytest.mark.slow
def test_a_rank_0_that_stands_still_does_not_hold_the_others_for_ever(tmp_path: Path) -> None:
    arguments = ("--timeout", "4", "--set", "fault=stop", "--set", "victim=0", "--set", "number=0")
    # torchrun gives a rank that does not end by itself half a minute.
    done = torchrun(2, *RUN, *arguments, cwd=tmp_path, timeout=120)
    assert done.returncode != 0
    assert "rank 0 stopped answering for 4 s" in done.stderr


@pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed (Debian: openmpi-bin)")
def test_mpirun_ends_all_at_once_and_the_lost_rank_is_named_all_the_same(tmp_path: Path) -> None:
    done = mpirun(2, *RUN, "--set", "fault=kill", "--set", "at=1", cwd=tmp_path)
    assert done.returncode != 0
    (failed,) = [row for row in stored(tmp_path) if row.status != "ok"]
    assert "rank 1 died" in failed.reason


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "bench.cli", *RUN],
            cwd=tmp_path,
            env=environment(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 4
    lines = [line for line in done.stderr.splitlines() if line.startswith("bench: ")]
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]
    assert "MASTER_PORT" in lines[0]


def test_a_lab_under_a_launcher_is_refused(tmp_path: Path) -> None:
    done = torchrun(2, *RUN, "--lab", "nodes=2,ranks-per-node=1,rate=1gbit", cwd=tmp_path)
    assert done.returncode != 0
    assert "--lab starts its own ranks" in done.stderr


def test_a_suite_of_one_process_runs_on_rank_0_and_is_resumed_there(tmp_path: Path) -> None:
    done = torchrun(2, "run", SOLO, "--max-time", "0.05", "--set", "number=0,1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row.status for row in stored(tmp_path)] == ["ok", "ok"]
    done = torchrun(2, "run", "--resume", "latest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(stored(tmp_path)) == 2
