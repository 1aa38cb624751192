"""Runs from start to seal: failures in the middle, interruptions, resuming, and what the store keeps."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.launch.lab import unavailable_reason
from bench.store.reader import Store
from tests.faulty_suite import HANGS_NOW
from tests.program import bench, command, environment, json_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.store.row import Row

FAULTY = "tests.faulty_suite:FaultySuite"
SOLO = "tests.faulty_suite:SoloSuite"
FAST = ("--max-time", "0.05")


def stored(folder: Path) -> list[Row]:
    return Store(folder / "results" / "store").rows()


def by_number(folder: Path) -> dict[int, Row]:
    return {int(row.params["number"]): row for row in stored(folder)}


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_sweep_goes_on_after_a_rank_is_killed(tmp_path: Path, at: int) -> None:
    done = bench("run", FAULTY, *FAST, "--set", "fault=kill", "--set", f"at={at}", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    rows = by_number(tmp_path)
    assert {number: row.status for number, row in rows.items()} == {
        number: "failed" if number == at else "ok" for number in range(3)
    }
    assert "rank 1 was killed by SIGKILL" in rows[at].reason
    stacks = tmp_path / "results" / "store" / rows[at].reason.partition("stacks in ")[2]
    assert "== rank 0 ==" in stacks.read_text()
    assert "rank 1 was killed by SIGKILL" in done.stderr


def test_a_suite_in_one_process_is_supervised_too(tmp_path: Path) -> None:
    done = bench("run", SOLO, *FAST, "--set", "fault=kill", "--set", "victim=0", "--set", "at=1", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert [by_number(tmp_path)[number].status for number in range(3)] == ["ok", "failed", "ok"]


def test_each_round_has_processes_of_its_own(tmp_path: Path) -> None:
    rounds = ("--rounds", "3", "--set", "number=0,1")
    done = bench("run", FAULTY, *FAST, *rounds, "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json_lines(done.stdout)
    assert len(rows) == 2
    for row in rows:
        assert len(row["rounds"]) == 3
        assert sum(row["rounds"]) == row["n"] == len(row["samples"])
        assert row["stop_reason"] in ("rounds_agree", "rounds_differ")
    assert rows == [row.to_dict() for row in sorted(stored(tmp_path), key=lambda row: row.row_id)]


def test_a_rank_lost_in_a_later_round_is_named_and_the_sweep_goes_on(tmp_path: Path) -> None:
    # The group of the first round hangs in its third case, is started again, and so never has a third one more.
    fault = ("--set", "fault=hang_third", "--timeout", "3", "--rounds", "2", "--set", "number=0,1,2,3")
    done = bench("run", FAULTY, *FAST, *fault, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    rows = sorted(stored(tmp_path), key=lambda row: row.row_id)
    assert [row.status for row in rows] == ["ok", "ok", "timeout", "timeout"]
    assert all("rank 1 hangs in phase 'setup'" in row.reason for row in rows[2:])


def test_rows_on_standard_output_are_json_lines_and_nothing_else(tmp_path: Path) -> None:
    done = bench("run", FAULTY, *FAST, "--json", "-", "--ranks", "2,3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json_lines(done.stdout)
    assert sorted((row["params"]["ranks"], row["params"]["number"]) for row in rows) == [
        (ranks, number) for ranks in (2, 3) for number in range(3)
    ]
    assert all(row["status"] == "ok" and row["samples"] and row["wrong"] == 0 for row in rows)
    assert rows == [row.to_dict() for row in sorted(stored(tmp_path), key=lambda row: row.row_id)]


def test_rows_that_nobody_reads_any_more_do_not_end_the_run(tmp_path: Path) -> None:
    words = " ".join(command("run", SOLO, *FAST, "--set", "number=1:1024", "--json", "-"))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{words} | head -c 1"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("{", 0), done.stderr
    assert len(stored(tmp_path)) == 11
    assert "rows cannot be written any more (Broken pipe)" in done.stderr


def test_a_short_timeout_fails_no_sound_group(tmp_path: Path) -> None:
    done = bench("run", FAULTY, *FAST, "--timeout", "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_world_of_one_is_no_measurement(tmp_path: Path) -> None:
    done = bench("run", FAULTY, *FAST, "--ranks", "1", "--select", "number=0", cwd=tmp_path)
    assert done.returncode == 4
    (row,) = stored(tmp_path)
    assert (row.status, row.value) == ("invalid", None)
    assert "world of one" in row.reason


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that hangs in its third case; its first two are on disk."""
    process = subprocess.Popen(
        command("run", FAULTY, *FAST, "--set", "fault=hang_third", "--set", "number=0,1,2,3"),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / HANGS_NOW).exists():
        time.sleep(0.1)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_rows_and_is_finished_later(
    hanging: subprocess.Popen[str], tmp_path: Path, ending: signal.Signals
) -> None:
    workers = psutil.Process(hanging.pid).children(recursive=True)
    hanging.send_signal(ending)
    _, messages = hanging.communicate(timeout=30)
    assert hanging.returncode == 4
    assert "--resume" in messages
    assert psutil.wait_procs(workers, timeout=5)[1] == []
    before = {row.row_id: row for row in stored(tmp_path)}
    assert [row.status for row in before.values()] == ["ok", "ok"]
    done = bench("run", "--resume", "latest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 case(s), 2 measured before" in done.stderr
    rows = stored(tmp_path)
    assert sorted(row.params["number"] for row in rows) == [0, 1, 2, 3]
    assert len({row.run_id for row in rows}) == 1
    assert before.items() <= {row.row_id: row for row in rows}.items()


def test_a_supervisor_killed_in_the_middle_loses_no_finished_row_and_leaves_no_process(
    hanging: subprocess.Popen[str], tmp_path: Path
) -> None:
    workers = psutil.Process(hanging.pid).children(recursive=True)
    hanging.kill()
    hanging.wait()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    kept = stored(tmp_path)
    assert len(kept) == 2
    (path,) = (tmp_path / "results" / "store" / "runs").glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"run_id":"torn')
    store = Store(tmp_path / "results" / "store")
    assert store.rows() == kept
    assert len(store.torn) == 1
    assert path.name in store.torn[0]


def test_a_full_disk_ends_the_run_with_one_line_and_keeps_what_was_written(tmp_path: Path) -> None:
    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, resource.RLIM_INFINITY))

    done = subprocess.run(
        command("run", FAULTY, *FAST, "--set", f"number={','.join(map(str, range(100)))}"),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit_files,
    )
    assert done.returncode == 4
    assert os.strerror(errno.EFBIG) in done.stderr
    assert "Traceback" not in done.stderr
    rows = stored(tmp_path)
    assert rows
    assert all(row.status == "ok" for row in rows)


def test_a_store_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file in the way")
    done = bench("run", SOLO, cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1, done.stderr
    assert "results" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "unknown suite 'nosuch'"),
        ([SOLO, "--set", "colour=red"], "unknown parameter"),
        ([SOLO, "--set", "number=many"], "not a number"),
        ([FAULTY, "--ranks", "0"], "--ranks needs whole numbers from 1 up"),
        ([FAULTY, "--ranks", "few"], "--ranks needs whole numbers from 1 up"),
        ([FAULTY, "--ranks", "100000"], "at most"),
        ([FAULTY, "--ranks", "2", "--set", "ranks=4"], "say the same"),
        ([FAULTY, "--set", "ranks=-2"], "1"),
        ([FAULTY, "--ranks", "2", "--lab", "nodes=2,ranks-per-node=1,rate=1gbit"], "leave --ranks out"),
        ([SOLO, "--seed", str(2**64)], "64 bits"),
        ([SOLO, "--max-time", "1e300"], "--max-time needs seconds from"),
        ([SOLO, "--max-time", "nan"], "--max-time needs seconds from"),
        ([SOLO, "--timeout", "inf"], "--timeout needs seconds from"),
        ([SOLO, "--max-time", "1e-12"], "--max-time needs seconds from"),
        (["tests.faulty_suite:"], "not a reference"),
        ([":X"], "not a reference"),
        (["tests.no_such:X"], "cannot be loaded"),
        ([FAULTY, "--preset", "slow"], "unknown preset"),
        ([FAULTY, "--lab", "nodes=2"], "rate"),
        ([SOLO, "--device", "cuda"], "no CUDA device"),
        ([SOLO, "--device", "tpu"], "--device"),
        (["collectives", "--set", "bytes=1M"], "ambiguous"),
        ([SOLO, "--nonsense"], "nonsense"),
        ([], "name at least one suite"),
        (["--resume", "20200101"], "there is no run"),
        (["--resume", "latest", "--seed", "9"], "leave suites and other options out"),
        ([SOLO, "--resume", "latest"], "leave suites and other options out"),
        ([FAULTY, "--lab", "nodes=2,ranks-per-node=1,rate=1gbit", "--device", "cuda"], "leave --device cuda out"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = bench("run", *arguments, cwd=tmp_path)
    assert words in done.stderr
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.lab
@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
def test_rows_of_the_emulated_cluster_say_so_and_its_failures_are_named(tmp_path: Path) -> None:
    shape = "nodes=2,ranks-per-node=2,rate=1gbit"
    arguments = ("--lab", shape, "--set", "fault=kill", "--set", "at=1", "--set", "victim=3")
    done = bench("run", FAULTY, *FAST, *arguments, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    rows = by_number(tmp_path)
    assert [rows[number].status for number in range(3)] == ["ok", "failed", "ok"]
    assert "rank 3 was killed by SIGKILL" in rows[1].reason
    for row in rows.values():
        assert (row.params["ranks"], row.params["nodes"], row.params["scope"]) == (4, 2, "lab")
        assert row.params["lab"] == shape
