"""Which copy of a part counts, and reading while other processes replace files."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError
from bench.store.archive import write_archive
from bench.store.catalog import Catalog, consistently
from bench.store.compact import compact
from bench.store.layout import runs_folder
from bench.store.reader import Store
from bench.store.verify import verify
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from pathlib import Path


def _archive(store: Path, name: str, generation: int, *, but: str = "") -> Path:
    catalog = Catalog.read(store)
    target = runs_folder(store) / name
    write_archive(catalog, [copy for copy in catalog.best.values() if copy.key[0] != but], target, generation)
    return target


def test_of_equal_copies_the_highest_generation_counts(store: Path, runs: Any) -> None:
    run_id = runs.write(store, n=4)
    archive = _archive(store, "archive.a.parquet", generation=1)
    (best,) = Catalog.read(store).best.values()
    assert (best.path, best.key) == (archive, (run_id, 1))
    assert len(Store(store).rows()) == 4


def test_of_equal_generations_every_reader_takes_the_same(store: Path, runs: Any) -> None:
    runs.write(store, n=4)
    runs.write(store, n=4, seed=1)
    first, second = (_archive(store, f"archive.{letter}.parquet", generation=1) for letter in "ab")
    assert {copy.path for copy in Catalog.read(store).best.values()} == {second}
    catalog = Catalog.of_files(store, [second, first])
    assert {copy.path for copy in catalog.best.values()} == {second}


def test_the_longer_copy_counts(store: Path, runs: Any) -> None:
    run_id = runs.orphan(store, n=8)
    lines = runs_folder(store) / f"{run_id}.jsonl"
    whole = lines.read_text()
    lines.write_text("".join(whole.splitlines(keepends=True)[:6]))
    _archive(store, "archive.a.parquet", generation=3)
    assert len(Store(store).rows()) == 5
    lines.write_text(whole)
    assert len(Store(store).rows()) == 8
    assert Catalog.read(store).best[run_id, 1].path == lines


def test_only_the_parts_that_count_are_read_of_a_file(store: Path, runs: Any) -> None:
    first, second = runs.write(store, n=4), runs.write(store, n=4, seed=1)
    _archive(store, "archive.a.parquet", generation=1)
    (runs_folder(store) / f"{second}.parquet").unlink()
    _archive(store, "archive.b.parquet", generation=2, but=second)
    assert {copy.path.name for copy in Catalog.read(store).best.values()} == {"archive.a.parquet", "archive.b.parquet"}
    assert [row.run_id for row in Store(store).rows()] == sorted([first] * 4 + [second] * 4)


def test_a_sealed_run_with_a_living_writer_is_open(store: Path, runs: Any) -> None:
    run_id = runs.write(store, n=4)
    with RunWriter.reopen(store, run_id):
        assert Catalog.read(store).state(run_id) == "open"
    assert Catalog.read(store).state(run_id) == "open"  # this process still lives, and might go on


def test_a_listing_that_was_overtaken_is_done_again(store: Path, runs: Any) -> None:
    runs.write(store, n=4)
    runs.write(store, n=4, seed=1)
    seen = []

    def overtaken(catalog: Catalog) -> int:
        if not seen:
            compact(store)
        seen.append(catalog.files)
        return sum(1 for copy in catalog.copies if copy.path.open("rb").read(4))

    assert consistently(store, overtaken) == 2
    assert [len(files) for files in seen] == [2, 1]


def test_files_that_keep_vanishing_are_one_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanished(_: Catalog) -> None:
        raise FileNotFoundError(2, "No such file or directory", "x.parquet")

    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(StoreError, match=f"cannot read {store}"):
        consistently(store, vanished)


def test_other_errors_are_not_tried_again(store: Path, runs: Any) -> None:
    calls = []

    def fails(catalog: Catalog) -> None:
        calls.append(catalog)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        consistently(store, fails)
    assert len(calls) == 1


# Several processes at once


def test_runs_that_are_written_at_once_lose_nothing(store: Path, runs: Any, fork: Any) -> None:
    def write(seed: int) -> str:
        rows = runs.rows(80, seed)
        with RunWriter(store, runs.record(seed)) as writer:
            for start in range(0, len(rows), 4):
                writer.append(rows[start : start + 4])
            if seed % 2:
                writer.seal()
        return writer.record.run_id

    children = [fork(lambda seed=seed: write(seed)) for seed in range(4)]
    reader = Store(store)
    while reader.query("select count(*) as n from rows").n[0] < 320:
        for run in reader.runs():
            assert run.rows % 4 == 0
    ids = [child.wait().result for child in children]
    for seed, run_id in enumerate(ids):
        expected = runs.rows(80, seed)
        for row in expected:
            row.run_id = run_id
        assert reader.rows([run_id]) == expected
    assert verify(store).faults == []


def test_readers_see_every_row_once_while_others_seal_resume_and_compact(store: Path, runs: Any, fork: Any) -> None:
    run_id = runs.write(store, n=4)
    runs.write(store, n=4, seed=1)

    def go_on() -> None:
        for part in range(12):
            with RunWriter.reopen(store, run_id) as writer:
                writer.append(runs.rows(4, seed=part))
                writer.seal()
            if part % 2:
                compact(store)

    def tidy() -> None:
        for _ in range(8):
            compact(store)

    children = [fork(go_on), fork(tidy), fork(tidy)]
    reader, seen = Store(store), 0
    while seen < 52:
        ids = [row.row_id for row in reader.rows([run_id])]
        assert ids == list(range(len(ids)))
        assert len(ids) >= seen
        seen = len(ids)
    assert [child.wait().status for child in children] == [0, 0, 0]
    compact(store)
    report = verify(store)
    assert (report.rows, report.faults, report.notes) == (56, [], [])
    assert len(reader.rows()) == 56


def test_a_store_is_merged_by_copying_its_files(store: Path, tmp_path: Path, runs: Any) -> None:
    other = tmp_path / "other"
    runs.write(store, n=4)
    runs.write(other, n=4, seed=1)
    runs.orphan(other, n=4, seed=2)
    for path in runs_folder(other).iterdir():
        shutil.copy(path, runs_folder(store))
    assert len(Store(store).rows()) == 12
    assert verify(store).faults == []
