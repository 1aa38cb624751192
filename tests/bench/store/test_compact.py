"""Compacting: less files, the same rows, and nothing of a living writer touched."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import UsageError
from bench.store import compact as compact_module
from bench.store.compact import compact
from bench.store.layout import LEFTOVER_AGE_S, new_file, runs_folder
from bench.store.reader import Store
from bench.store.verify import verify
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from pathlib import Path


def _contents(store: Path) -> list[str]:
    return [row.to_json() for row in Store(store).rows()]


def _files(store: Path) -> list[str]:
    return sorted(os.listdir(runs_folder(store)))


def test_sealed_files_are_folded_into_one(store: Path, runs: Any) -> None:
    ids = [runs.write(store, n=4, seed=seed) for seed in range(3)]
    records = [Store(store).record(run_id) for run_id in ids]
    before, listed = _contents(store), Store(store).runs()
    report = compact(store)
    assert report.folded == [f"{run_id}.parquet" for run_id in sorted(ids)]
    assert _files(store) == [report.archive]
    assert (_contents(store), Store(store).runs()) == (before, listed)
    assert [Store(store).record(run_id) for run_id in ids] == records
    assert verify(store).faults == []


def test_folded_runs_can_be_resumed_and_folded_again(store: Path, runs: Any) -> None:
    run_id = runs.write(store, n=4)
    runs.write(store, n=4, seed=1)
    compact(store)
    with RunWriter.reopen(store, run_id) as writer:
        assert writer.next_row_id == 4
        writer.append(runs.rows(4, seed=2))
        writer.seal()
    assert len(compact(store).folded) == 2
    assert [row.row_id for row in Store(store).rows([run_id])] == list(range(8))
    assert (len(_files(store)), verify(store).faults) == (1, [])


def test_an_ordered_store_stays_as_it_is(store: Path, runs: Any) -> None:
    runs.write(store, n=4)
    files = _files(store)
    report = compact(store)
    assert (report.sealed, report.removed, report.folded, report.archive) == ([], [], [], None)
    assert _files(store) == files
    assert compact(store / "none").to_dict()["archive"] is None


def test_large_files_are_left_alone(store: Path, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    large = runs.write(store, n=400)
    for seed in (1, 2):
        runs.write(store, n=4, seed=seed)
    monkeypatch.setattr(compact_module, "SMALL_FILE_BYTES", 20_000)
    assert len(compact(store).folded) == 2
    assert f"{large}.parquet" in _files(store)


def test_orphans_are_sealed_and_living_runs_are_not(store: Path, runs: Any) -> None:
    orphan, foreign = runs.orphan(store, n=4), runs.foreign(store, n=4, seed=1)
    with (runs_folder(store) / f"{orphan}.jsonl").open("a") as file:
        file.write('{"torn')
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
        before = _contents(store)
        report = compact(store)
        assert report.sealed == [f"{orphan}.parquet"]
        assert report.left_open == sorted([foreign, writer.record.run_id])
        assert _contents(store) == before
        writer.append(runs.rows(4))
        writer.seal()
    assert len(Store(store).rows([writer.record.run_id])) == 8


def test_a_run_of_another_machine_is_sealed_if_the_user_knows_that_it_is_abandoned(store: Path, runs: Any) -> None:
    foreign = runs.foreign(store, n=4)
    assert compact(store, [foreign]).sealed == [f"{foreign}.parquet"]
    assert [run.state for run in Store(store).runs()] == ["sealed"]
    with pytest.raises(UsageError, match="unknown run 'nothing'"):
        compact(store, ["nothing"])
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
        with pytest.raises(UsageError, match="is not abandoned"):
            compact(store, [writer.record.run_id])


def test_what_dead_processes_left_is_removed(store: Path, runs: Any, fork: Any) -> None:
    runs.write(store, n=4)
    folder = runs_folder(store)

    def die() -> None:
        with new_file(folder / "a.parquet") as path:
            path.write_text("half")
            os._exit(3)

    fork(die).wait()
    headless = folder / "20250101T000000-00000000.jsonl"
    headless.write_text('{"run_id"')
    young = folder / "20250101T000000-00000001.jsonl"
    young.write_text("")
    os.utime(headless, (0, time.time() - LEFTOVER_AGE_S - 1))
    with new_file(folder / "b.parquet") as living:
        living.write_text("half")
        report = compact(store)
        assert len(report.removed) == 2
        assert living.exists()
        living.unlink()
        living.write_text("whole")
    (folder / "b.parquet").unlink()
    assert young.exists()
    assert not headless.exists()


def test_a_copy_that_another_file_outranks_is_removed(store: Path, runs: Any) -> None:
    for seed in range(2):
        runs.write(store, n=4, seed=seed)
    kept = {path: path.read_bytes() for path in runs_folder(store).iterdir()}
    before = _contents(store)
    archive = compact(store).archive
    for path, content in kept.items():  # as if the process had died before it removed them
        path.write_bytes(content)
    assert _contents(store) == before
    assert sorted(compact(store).removed) == sorted(path.name for path in kept)
    assert _files(store) == [archive]
