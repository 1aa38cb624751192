"""A run as it is written: every row that was acknowledged is there, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError, UsageError
from bench.store.layout import runs_folder
from bench.store.owner import this_process
from bench.store.reader import Store
from bench.store.seal import seal_part
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.store.row import Row, RunRecord


def test_rows_are_numbered_and_marked_with_the_run(store: Path, runs: Any) -> None:
    record = runs.record()
    with RunWriter(store, record) as writer:
        writer.append(runs.rows(4))
        writer.append(runs.rows(3))
        rows = Store(store).rows()
    assert [(row.run_id, row.row_id) for row in rows] == [(record.run_id, number) for number in range(7)]


def test_the_header_names_the_process_that_writes(store: Path, runs: Any) -> None:
    record = runs.record()
    with RunWriter(store, record) as writer:
        assert writer.record.writer == this_process()
        assert Store(store).record(record.run_id) == writer.record


def test_one_append_is_one_flush(store: Path, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file)))
    with RunWriter(store, runs.record()) as writer:
        before = len(synced)
        writer.append(runs.rows(4))
        assert len(synced) == before + 1


def test_sealing_leaves_only_parquet_with_the_same_rows(store: Path, runs: Any) -> None:
    rows = runs.rows(10)
    with RunWriter(store, runs.record()) as writer:
        writer.append(rows)
        sealed = writer.seal()
    assert os.listdir(runs_folder(store)) == [sealed.name]
    assert sealed.name == f"{writer.record.run_id}.parquet"
    assert Store(store).rows() == rows
    assert Store(store).record(writer.record.run_id) == writer.record


def test_a_run_without_rows_can_be_sealed(store: Path, runs: Any) -> None:
    run_id = runs.write(store, n=0)
    assert [(run.run_id, run.state, run.rows) for run in Store(store).runs()] == [(run_id, "sealed", 0)]


def test_leaving_the_context_keeps_the_run_unsealed(store: Path, runs: Any) -> None:
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
    assert len(Store(store).rows()) == 4
    with pytest.raises(StoreError, match="is closed; reopen it"):
        writer.append(runs.rows(4))


@pytest.mark.parametrize("run_id", ["", "a b", "a.b", "../a", "-a"])
def test_a_run_id_that_is_no_file_name_is_refused(store: Path, runs: Any, run_id: str) -> None:
    record: RunRecord = runs.record()
    record.run_id = run_id
    with pytest.raises(StoreError, match="cannot be a run id"):
        RunWriter(store, record)


def test_a_run_is_begun_once(store: Path, runs: Any) -> None:
    record = runs.record()
    with RunWriter(store, record) as writer:
        with pytest.raises(StoreError, match="written by another process"):
            RunWriter(store, record)
        writer.seal()
    with pytest.raises(StoreError, match="already"):
        RunWriter(store, record)


def test_a_row_that_cannot_be_stored_leaves_the_file_as_it_was(store: Path, runs: Any) -> None:
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
        bad = runs.rows(2)
        bad[1].samples = [float("nan")]
        with pytest.raises(ValueError, match=r"collectives algbw of .* cannot be stored"):
            writer.append(bad)
        writer.append(runs.rows(1))
        writer.seal()
    assert [row.row_id for row in Store(store).rows()] == [0, 1, 2, 3, 4]


def test_an_interrupted_append_counts_for_nothing(store: Path, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = runs.rows(8)
    with RunWriter(store, runs.record()) as writer:
        writer.append(rows[:4])

        def interrupted(_: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.append(rows[4:])
        writer.append(rows[4:])
        writer.seal()
    assert Store(store).rows() == rows


def test_a_removed_file_is_noticed(store: Path, runs: Any) -> None:
    with RunWriter(store, runs.record()) as writer:
        writer.path.unlink()
        with pytest.raises(StoreError, match="was removed by another process"):
            writer.append(runs.rows(4))
        with pytest.raises(StoreError, match="was removed by another process"):
            writer.seal()


# Killed, torn, resumed


def test_a_killed_writer_loses_no_acknowledged_row(store: Path, runs: Any, fork: Callable[..., Any]) -> None:
    rows = runs.rows(4000)
    read, write = os.pipe()

    def write_until_killed() -> None:
        with RunWriter(store, runs.record()) as writer:
            for start in range(0, len(rows), 4):
                writer.append(rows[start : start + 4])
                os.write(write, b".")
            os.read(read, 1)  # never reached before the kill: the test reads the rest

    child = fork(write_until_killed)
    acknowledged = sum(len(os.read(read, 1)) for _ in range(50))
    child.kill()
    assert child.wait().status == -9
    os.close(write)
    while more := os.read(read, 4096):
        acknowledged += len(more)
    os.close(read)

    reader = Store(store)
    stored = reader.rows()
    (run,) = reader.runs()
    for row in rows:
        row.run_id = run.run_id
    assert run.state == "orphaned"
    assert len(stored) >= 4 * acknowledged
    assert [row.to_json() for row in stored] == [row.to_json() for row in _numbered(rows, run.run_id)[: len(stored)]]

    with RunWriter.reopen(store, run.run_id) as writer:
        assert writer.next_row_id == len(stored)
        writer.append(rows[len(stored) : len(stored) + 4])
        writer.seal()
    assert [row.row_id for row in Store(store).rows()] == list(range(len(stored) + 4))


@pytest.mark.parametrize("tail", ['{"run_id":"2', "{}", '{"half": "line"}garbage\n', "\0" * 700])
def test_a_torn_last_line_is_reported_and_nothing_else_dropped(store: Path, runs: Any, tail: str) -> None:
    run_id = runs.orphan(store, n=8)
    path = runs_folder(store) / f"{run_id}.jsonl"
    with path.open("a") as file:
        file.write(tail)
    reader = Store(store)
    assert len(reader.rows()) == 8
    assert reader.torn == [f"{path}: the last line is torn and was dropped; 8 whole row(s) before it are kept"]
    with RunWriter.reopen(store, run_id) as writer:
        assert writer.torn == tuple(reader.torn)
        assert writer.next_row_id == 8
        writer.append(runs.rows(4))
        writer.seal()
    assert [row.row_id for row in reader.rows()] == list(range(12))
    assert reader.torn == []


def test_a_line_that_its_living_writer_has_not_finished_is_not_reported(store: Path, runs: Any) -> None:
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
        with writer.path.open("a") as file:
            file.write('{"run_id"')
        reader = Store(store)
        assert (len(reader.rows()), reader.torn) == (4, [])


def test_a_sealed_run_can_be_resumed_again_and_again(store: Path, runs: Any) -> None:
    run_id = runs.write(store, n=4)
    for part in (2, 3):
        with RunWriter.reopen(store, run_id) as writer:
            assert writer.next_row_id == 4 * (part - 1)
            writer.append(runs.rows(4, seed=part))
            assert Store(store).runs()[0].state == "open"
            assert writer.seal().name == f"{run_id}.{part}.parquet"
    (run,) = Store(store).runs()
    assert (run.state, run.rows) == ("sealed", 12)
    assert [row.row_id for row in Store(store).rows()] == list(range(12))


def test_a_resumed_run_keeps_its_record_but_for_the_writer(store: Path, runs: Any) -> None:
    record = runs.record()
    record.plan, record.fingerprint = {"cases": [1]}, {"identity": {"cpu": "x"}}
    RunWriter(store, record).close()
    path = runs_folder(store) / f"{record.run_id}.jsonl"
    path.write_text(path.read_text().replace(f'"pid":{os.getpid()}', '"pid":4194305'))
    with RunWriter.reopen(store, record.run_id) as writer:
        assert writer.record.writer["pid"] == os.getpid()
        writer.record.writer = record.writer
        assert writer.record == record


def test_sealing_a_resumed_run_seals_what_its_earlier_writer_left(store: Path, runs: Any) -> None:
    run_id = runs.orphan(store, n=4)
    with RunWriter.reopen(store, run_id) as writer:
        writer.append(runs.rows(4))
        writer.seal()
    assert sorted(os.listdir(runs_folder(store))) == [f"{run_id}.2.parquet", f"{run_id}.parquet"]
    assert len(Store(store).rows()) == 8


def test_a_run_of_another_machine_can_be_resumed(store: Path, runs: Any) -> None:
    run_id = runs.foreign(store, n=4)
    with RunWriter.reopen(store, run_id) as writer:
        writer.append(runs.rows(4))
        writer.seal()
    assert [(run.state, run.rows) for run in Store(store).runs()] == [("sealed", 8)]


def test_a_run_whose_writer_lives_is_not_resumed(store: Path, runs: Any) -> None:
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
        with pytest.raises(StoreError, match=f"still being written by process {os.getpid()}; stop it first"):
            RunWriter.reopen(store, writer.record.run_id)


def test_a_run_that_is_not_there_is_not_resumed(store: Path) -> None:
    with pytest.raises(UsageError, match="unknown run '20250101T000000-00000000' in"):
        RunWriter.reopen(store, "20250101T000000-00000000")


def test_a_part_whose_header_was_cut_off_does_not_block_resuming(store: Path, runs: Any) -> None:
    run_id = runs.write(store, n=4)
    (runs_folder(store) / f"{run_id}.2.jsonl").write_text('{"run_id":')
    with RunWriter.reopen(store, run_id) as writer:
        assert writer.path.name == f"{run_id}.3.jsonl"
        writer.append(runs.rows(4))
        writer.seal()
    assert [row.row_id for row in Store(store).rows()] == list(range(8))


# Disks that are full or cannot be written


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small filesystem: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(writer: RunWriter, make: Callable[[], list[Row]]) -> str:
    """Append until it fails; the error's message."""
    while True:
        try:
            writer.append(make())
        except StoreError as error:
            return str(error)


def test_a_full_disk_keeps_all_rows_and_takes_more_when_it_has_room(small_disk: Path, runs: Any) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    reader = Store(small_disk)
    with RunWriter(small_disk, runs.record()) as writer:
        message = _fill(writer, lambda: runs.rows(4))
        kept = reader.rows()
        assert len(kept) > 0
        assert message == (
            f"cannot write {writer.path}: No space left on device;"
            f" the {len(kept)} row(s) before are kept; free some space"
        )
        assert reader.torn == []
        with pytest.raises(StoreError, match="No space left on device"):
            writer.seal()
        assert reader.rows() == kept
        assert [path.name for path in runs_folder(small_disk).iterdir()] == [writer.path.name]
    ballast.unlink()
    assert seal_part(writer.path).exists()
    assert reader.rows() == kept


def test_appending_goes_on_once_there_is_room(small_disk: Path, runs: Any) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 220_000)
    with RunWriter(small_disk, runs.record()) as writer:
        assert "No space left" in _fill(writer, lambda: runs.rows(4))
        before = writer.next_row_id
        ballast.unlink()
        writer.append(runs.rows(4))
        writer.seal()
    assert [row.row_id for row in Store(small_disk).rows()] == list(range(before + 4))


def test_no_room_for_the_header_leaves_nothing(small_disk: Path, runs: Any) -> None:
    with suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(StoreError, match="No space left"):
        RunWriter(small_disk, runs.record())
    assert Store(small_disk).runs() == []
    assert list(runs_folder(small_disk).glob("*")) == []


def test_a_file_size_limit_keeps_all_rows(store: Path, runs: Any, fork: Callable[..., Any]) -> None:
    def write_up_to_the_limit() -> tuple[int, str]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        with RunWriter(store, runs.record()) as writer:
            message = _fill(writer, lambda: runs.rows(4))
            before = writer.next_row_id
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            writer.append(runs.rows(4))
            writer.seal()
            return before, message

    ended = fork(write_up_to_the_limit).wait()
    assert ended.status == 0
    before, message = ended.result
    assert "File too large" in message
    assert "ulimit -f" in message
    assert before > 0
    assert [row.row_id for row in Store(store).rows()] == list(range(before + 4))


def test_a_read_only_disk_is_one_clear_error(small_disk: Path, runs: Any) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"cannot write .*: Read-only file system; choose another place"):
        RunWriter(small_disk, runs.record())


def test_a_store_below_a_file_is_one_clear_error(tmp_path: Path, runs: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*: Not a directory; choose another place"):
        RunWriter(tmp_path / "file" / "store", runs.record())


def _numbered(rows: list[Row], run_id: str) -> list[Row]:
    for number, row in enumerate(rows):
        row.run_id, row.row_id = run_id, number
    return rows
