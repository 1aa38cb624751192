"""Exports: every format holds the rows, and files appear whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError
from bench.store.export import FORMATS, Format, export, export_to_stream
from bench.store.layout import runs_folder
from bench.store.reader import Store
from bench.store.row import ROW_FIELDS, Row
from bench.store.verify import verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run_ids(store: Path, runs: Any) -> list[str]:
    """A sealed run, an orphan with a torn line, and (not named) one that is not exported."""
    ids = [runs.write(store, n=104), runs.orphan(store, n=4, seed=1)]
    with (runs_folder(store) / f"{ids[1]}.jsonl").open("a") as file:
        file.write("{")
    runs.write(store, n=4, seed=2)
    return ids


def _read(form: Format, text: str) -> list[Row]:
    if form == "json":
        return [Row.from_dict(record) for record in json.loads(text)]
    if form == "jsonl":
        return [Row.from_dict(json.loads(line)) for line in text.splitlines()]
    header, *records = csv.reader(io.StringIO(text, newline=""))
    assert tuple(header) == ROW_FIELDS
    read = []
    for record in records:
        fields: dict[str, Any] = dict(zip(header, record, strict=True))
        for name, value in fields.items():
            if name in ("params", "samples", "rounds", "value", "row_id", "n") or name in (
                "method_version",
                "warmup",
                "wrong",
                "seed",
            ):
                fields[name] = json.loads(value) if value else None
            if name.startswith("rank_") or name in ("slowest_rank", "entry_skew"):
                fields[name] = json.loads(value) if value else None
        read.append(Row.from_dict(fields))
    return read


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_text_formats_hold_the_rows(store: Path, tmp_path: Path, run_ids: list[str], form: Format) -> None:
    torn = export(store, run_ids, form, tmp_path / "rows")
    assert len(torn) == 1
    assert _read(form, (tmp_path / "rows").read_text()) == Store(store).rows(run_ids)


def test_parquet_is_a_file_that_a_store_can_hold(store: Path, tmp_path: Path, run_ids: list[str]) -> None:
    other = tmp_path / "other"
    runs_folder(other).mkdir(parents=True)
    export(store, run_ids, "parquet", runs_folder(other) / "exported.parquet")
    assert Store(other).rows() == Store(store).rows(run_ids)
    assert Store(other).record(run_ids[0]) == Store(store).record(run_ids[0])
    assert verify(other).faults == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_gets_what_a_file_gets(store: Path, tmp_path: Path, run_ids: list[str], form: Format) -> None:
    stream = io.BytesIO()
    export_to_stream(store, run_ids, form, stream)
    export(store, run_ids, form, tmp_path / "rows")
    if form != "parquet":
        assert stream.getvalue() == (tmp_path / "rows").read_bytes()
    assert len(stream.getvalue()) == (tmp_path / "rows").stat().st_size


def test_no_runs_make_an_empty_export(store: Path, tmp_path: Path) -> None:
    for form in FORMATS:
        export(store, [], form, tmp_path / form)
    assert json.loads((tmp_path / "json").read_text()) == []
    assert (tmp_path / "jsonl").read_text() == ""
    assert (tmp_path / "csv").read_text().strip() == ",".join(ROW_FIELDS)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_cannot_be_written_is_one_clear_error(
    store: Path, tmp_path: Path, run_ids: list[str], form: Format
) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*none.rows: No such file or directory"):
        export(store, run_ids, form, tmp_path / "none" / "rows")
    with pytest.raises(StoreError, match=r"cannot write .*: Is a directory"):
        export(store, run_ids, form, tmp_path)


def test_an_export_that_fails_keeps_the_file_that_was_there(store: Path, tmp_path: Path, run_ids: list[str]) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("before")
    path = runs_folder(store) / f"{run_ids[0]}.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=str(path)):
        export(store, run_ids, "csv", target)
    assert target.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["rows.csv", "store"]


def test_a_pipe_is_written_and_stays_a_pipe(store: Path, tmp_path: Path, run_ids: list[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    export(store, run_ids, "jsonl", pipe)
    reader.join()
    assert len(read[0].splitlines()) == 108
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_is_followed(store: Path, tmp_path: Path, run_ids: list[str]) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("")
    link.symlink_to(target)
    export(store, run_ids, "jsonl", link)
    assert link.is_symlink()
    assert len(target.read_text().splitlines()) == 108
