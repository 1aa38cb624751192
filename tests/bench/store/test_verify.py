"""Verifying: each kind of damage is found and named, and a good store has none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from bench.store.layout import new_file, runs_folder
from bench.store.reader import Store
from bench.store.verify import verify
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA_1 = Path(__file__).parents[2] / "data" / "store_schema_1"


def _rewrite(path: Path, select: str = "*", change: Callable[[dict[str, Any]], Any] = lambda metadata: None) -> None:
    """Write a sealed file again with other rows or metadata."""
    found = duckdb.execute("select value from parquet_kv_metadata(?) where key = 'bench'", [str(path)]).fetchone()
    assert found
    metadata = json.loads(found[0])
    change(metadata)
    text = json.dumps(metadata).replace("'", "''")
    rows = f"select {select} from read_parquet('{path}')"
    duckdb.execute(f"copy ({rows}) to '{path}.new' (format parquet, kv_metadata {{bench: '{text}'}})")
    Path(f"{path}.new").rename(path)


@pytest.fixture
def sealed(store: Path, runs: Any) -> Path:
    """A sealed file of 200 rows."""
    return runs_folder(store) / f"{runs.write(store, n=200)}.parquet"


def test_a_good_store_has_no_faults(store: Path, sealed: Path, runs: Any) -> None:
    with RunWriter(store, runs.record()) as writer:
        writer.append(runs.rows(4))
        report = verify(store)
    assert (report.files, report.rows, report.faults, report.notes) == (2, 204, [], [])


def test_a_store_that_is_not_there_has_no_faults(store: Path) -> None:
    assert verify(store).faults == []


def test_files_of_schema_1_have_no_faults() -> None:
    report = verify(SCHEMA_1)
    assert (report.files, report.rows, report.faults) == (3, 11, [])


def test_every_byte_that_is_cut_off_is_noticed(store: Path, sealed: Path) -> None:
    data = sealed.read_bytes()
    for size in (0, 3, len(data) // 2, len(data) - 1):
        sealed.write_bytes(data[:size])
        (fault,) = verify(store).faults
        assert fault.startswith(f"{sealed}: ")


def test_flipped_bytes_are_noticed(store: Path, sealed: Path) -> None:
    """Parquet's own pages carry no checksum here: the digest finds what still decodes."""
    data = sealed.read_bytes()
    pages = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for position in range(1000, pages, pages // 12):
        sealed.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        assert verify(store).faults, f"byte {position} of {len(data)}"


@pytest.mark.parametrize(
    ("select", "fault"),
    [
        ("* replace (value * 1.0000001 as value)", "differ from their digest"),
        ("* replace (list_reverse(samples) as samples)", "differ from their digest"),
        ("* replace ('lost' as status)", "200 row(s) with an unknown status"),
        ("* replace (null::double as value)", "198 row(s) with status ok without a finite value"),
        ("* replace ('' as reason)", "2 row(s) with no reason for a status other than ok, first row 99"),
        ("* replace ('[]'::json as params)", "200 row(s) with params that are no JSON object"),
        ("* replace (n + 1 as n)", "198 row(s) with samples that are not n in number"),
        ("* replace (row_id + 1 as row_id)", "has rows 1 to 200, its metadata says 0 onward"),
        ("* replace (row_id // 2 as row_id)", "has 100 row id(s) twice"),
        ("* replace ('other' as run_id)", "rows of run other part 1, which its metadata does not name"),
        ("* replace (value::float as value)", "columns are not those of a row: see value"),
        ("* exclude (seed)", "columns are not those of a row: see seed"),
        ("*, 1 as more", "columns are not those of a row: see more"),
    ],
)
def test_wrong_rows_are_noticed(store: Path, sealed: Path, select: str, fault: str) -> None:
    _rewrite(sealed, select)
    faults = verify(store).faults
    assert any(fault in line for line in faults), faults
    assert all(line.startswith(f"{sealed}: ") for line in faults)


def _one_row_more(metadata: dict[str, Any]) -> None:
    metadata["parts"][0]["rows"] += 1


def _newer(metadata: dict[str, Any]) -> None:
    metadata["schema_version"] += 1


def _no_parts(metadata: dict[str, Any]) -> None:
    del metadata["parts"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_one_row_more, "has 200 rows, its metadata says 201"),
        (_newer, "is newer than this program's"),
        (_no_parts, "damaged metadata"),
    ],
)
def test_wrong_metadata_is_noticed(
    store: Path, sealed: Path, change: Callable[[dict[str, Any]], Any], fault: str
) -> None:
    _rewrite(sealed, change=change)
    (found, *_) = verify(store).faults
    assert found.startswith(f"{sealed}: ")
    assert fault in found


def test_each_broken_line_is_a_fault(store: Path, runs: Any) -> None:
    path = runs_folder(store) / f"{runs.foreign(store, n=8)}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[2], lines[5] = "broken\n", lines[5].replace('"status":"ok"', '"status":"lost"')
    path.write_text("".join(lines))
    first, second = verify(store).faults
    assert first.startswith(f"{path}:3: broken line")
    assert second.startswith(f"{path}:6: broken line")


def test_parts_that_overlap_are_a_fault(store: Path, runs: Any) -> None:
    """As if a run had been resumed on two machines at once."""
    run_id = runs.write(store, n=4)
    second = RunWriter(store, Store(store).record(run_id), part=2, next_row_id=4)
    third = RunWriter(store, Store(store).record(run_id), part=3, next_row_id=4)
    for writer in (second, third):
        writer.append(runs.rows(4))
    second.seal()
    third.seal()
    (fault,) = verify(store).faults
    assert f"run {run_id} part 3 begins at row 4, where 8 was expected" in fault


def test_strange_files_are_faults(store: Path, sealed: Path) -> None:
    strange = sealed.with_name("notes.txt")
    strange.write_text("")
    assert verify(store).faults == [f"{strange}: not a file of a store"]


def test_leftovers_are_notes(store: Path, runs: Any, fork: Any) -> None:
    orphan = runs_folder(store) / f"{runs.orphan(store, n=4)}.jsonl"
    with orphan.open("a") as file:
        file.write("{")
    runs.write(store, n=4)
    headless = runs_folder(store) / "20250101T000000-00000000.jsonl"
    headless.write_text("{")

    def die() -> None:
        with new_file(runs_folder(store) / "a.parquet") as path:
            path.write_text("half")
            os._exit(3)

    fork(die).wait()
    report = verify(store)
    assert report.faults == []
    notes = "\n".join(report.notes)
    assert "its writer is gone" in notes
    assert "the last line is torn" in notes
    assert "no header yet" in notes
    assert "left by a process that died" in notes


def test_progress_is_told_of_every_file(store: Path, sealed: Path) -> None:
    told: list[Path] = []

    def progress(files: Any) -> Any:
        for file in files:
            yield file
            told.append(file)

    verify(store, progress)
    assert told == [sealed]
