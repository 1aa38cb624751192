"""Writes the rows of runs to one file, for other tools."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bench.store.archive import write_archive
from bench.store.catalog import consistently
from bench.store.columns import COLUMNS, column_list, connect, fetch_rows
from bench.store.layout import new_file, unwritable
from bench.store.views import create_views

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import BinaryIO, TextIO

    from bench.store.catalog import Catalog
    from bench.store.row import Row

Format = Literal["csv", "parquet", "json", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(store: Path, run_ids: Collection[str], form: Format, target: Path) -> list[str]:
    """Write all rows of some runs to a file, which appears whole or not at all.

    ``csv`` has params, samples and rounds as JSON; ``json`` is an array; ``jsonl`` has a row a line, as
    ``bench run --json -`` prints it; ``parquet`` is a file that any store's ``runs/`` can hold.

    Args:
        store: its path.
        run_ids: runs that the store has.
        form: of the file.
        target: the file; a pipe or a device is written to as it is.

    Returns:
        a line for each torn last line that was dropped.

    Raises:
        StoreError: a file cannot be read or written.
    """
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                return export_to_stream(store, run_ids, form, stream)
        target = target.resolve()
        return consistently(store, lambda catalog: _export(catalog, run_ids, form, target))
    except OSError as error:
        raise unwritable(target, error) from error


def export_to_stream(store: Path, run_ids: Collection[str], form: Format, stream: BinaryIO) -> list[str]:
    """The same to a stream, which gets nothing if reading fails."""
    with tempfile.TemporaryDirectory(prefix="bench-export-") as folder:
        file = Path(folder) / "rows"
        torn = export(store, run_ids, form, file)
        with file.open("rb") as exported:
            shutil.copyfileobj(exported, stream)
    stream.flush()
    return torn


def _export(catalog: Catalog, run_ids: Collection[str], form: Format, target: Path) -> list[str]:
    if form == "parquet":
        write_archive(catalog, [copy for run_id in run_ids for copy in catalog.runs[run_id]], target)
        return catalog.torn(run_ids)
    write = {"csv": _write_csv, "json": _write_json, "jsonl": _write_jsonl}[form]
    with connect() as con, new_file(target) as path, path.open("w", encoding="utf-8", newline="") as file:
        create_views(con, catalog, run_ids)
        write(fetch_rows(con, f"SELECT {column_list()} FROM rows ORDER BY run_id, row_id"), file)
    return catalog.torn(run_ids)


def _write_csv(rows: Iterable[Row], file: TextIO) -> None:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for row in rows:
        values = row.to_dict().values()
        writer.writerow(json.dumps(value) if isinstance(value, dict | list) else value for value in values)


def _write_json(rows: Iterable[Row], file: TextIO) -> None:
    separator = "[\n"
    for row in rows:
        file.write(separator + row.to_json())
        separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def _write_jsonl(rows: Iterable[Row], file: TextIO) -> None:
    file.writelines(f"{row.to_json()}\n" for row in rows)
