"""Checks a store to the last value: every file, every row, and that the files agree with each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError
from bench.store.catalog import Catalog, sealed_copies
from bench.store.columns import (
    COLUMNS,
    IMPOSSIBILITIES,
    PART_COLUMN,
    connect,
    digest_of_query,
    empty_rows,
    filled_column_list,
    literal,
    quoted,
)
from bench.store.compare import differing_parts
from bench.store.jsonl import JsonlPart
from bench.store.layout import left_over, list_files, part_of, temporary_files
from bench.store.owner import is_alive
from bench.store.parquet import Footer, SealedPart, read_footers
from bench.store.row import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import duckdb

    from bench.store.catalog import Copy


@dataclass
class VerifyReport:
    """The outcome of a check.

    Attributes:
        files, rows: how much was checked.
        faults: what is wrong, a line each.
        notes: what is not wrong but ``compact`` would tidy, a line each.
    """

    files: int = 0
    rows: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def verify(store: Path, progress: Callable[[Sequence[Path]], Iterable[Path]] = iter) -> VerifyReport:
    """Read and check everything. Meant for a store at rest; what living writers add meanwhile is left out.

    Args:
        store: its path.
        progress: wraps the files that are gone through, to show how far it is.

    Raises:
        StoreError: the folder itself cannot be read.
    """
    report = VerifyReport()
    temporary = temporary_files(store)
    files = [path for path in list_files(store) if path not in temporary]
    report.notes += [f"{path}: left by a process that died" for path in temporary if left_over(path)]
    whole = Catalog(store, files)
    for path in progress(files):
        report.files += 1
        try:
            copies = list(_check_file(store, path, report))
        except (StoreError, FileNotFoundError) as error:
            report.faults.append(str(error))
            continue
        whole.copies += copies
        report.rows += sum(copy.part.rows for copy in copies)
    _check_runs(whole, report)
    return report


def _check_file(store: Path, path: Path, report: VerifyReport) -> Iterator[Copy]:
    """The parts in a file, after their rows were checked."""
    if path.suffix == ".parquet":
        with connect() as con:
            footer = read_footers(con, [path])[0]
            report.faults += [f"{path}: {fault}" for fault in _sealed_faults(con, path, footer)]
        yield from sealed_copies(path, footer)
    elif path.suffix == ".jsonl" and part_of(path):
        catalog = Catalog.of_files(store, [path])
        report.notes += [f"{name}: no header yet; no row was finished in it" for name in catalog.headless]
        report.notes += catalog.torn()
        for copy in catalog.copies:
            if isinstance(copy.part, JsonlPart):
                report.faults += copy.part.faults()
            if is_alive(copy.part.record.writer) is False:
                report.notes.append(f"{path}: its writer is gone; `bench db compact` seals it")
            yield copy
    else:
        report.faults.append(f"{path}: not a file of a store")


def _sealed_faults(con: duckdb.DuckDBPyConnection, path: Path, footer: Footer) -> Iterator[str]:
    """What is wrong with a sealed file's columns and rows."""
    import duckdb

    source = f"read_parquet({literal(str(path))}, hive_partitioning = false)"
    try:
        columns = {name: kind for name, kind, *_ in con.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
        expected = {PART_COLUMN: "INTEGER", **COLUMNS}
        if footer.schema_version < SCHEMA_VERSION:
            expected = {name: kind for name, kind in expected.items() if name in columns}
        if columns != expected:
            odd = sorted({name for name, _ in columns.items() ^ expected.items()})
            yield f"columns are not those of a row: see {', '.join(odd)}"
            return
        whole = f"SELECT * FROM {source} UNION ALL BY NAME {empty_rows()}"
        rows = f"(SELECT {PART_COLUMN}, {filled_column_list()} FROM ({whole}))"
        yield from _row_faults(con, rows, footer.parts)
        names = ", ".join(quoted(name) for name in columns if name != PART_COLUMN)
        for part in footer.parts:
            query = f"SELECT {names} FROM {source} WHERE run_id = $1 AND {PART_COLUMN} = $2 ORDER BY row_id"
            if digest_of_query(con, query, part.key) != part.sha256:
                yield f"rows of run {part.record.run_id} part {part.number} differ from their digest"
    except (duckdb.Error, ValueError) as error:
        yield f"cannot be read: {' '.join(str(error).split())}"


def _row_faults(con: duckdb.DuckDBPyConnection, source: str, parts: Sequence[SealedPart]) -> Iterator[str]:
    """Rows of a source in the present schema that are missing, too many, twice, or impossible."""
    found = con.execute(
        f"SELECT run_id, {PART_COLUMN}, count(*), min(row_id), max(row_id), count(DISTINCT row_id)"
        f" FROM {source} GROUP BY ALL"
    ).fetchall()
    contents = {(run_id, part): tuple(ids) for run_id, part, *ids in found}
    for part in parts:
        count, least, most, distinct = contents.pop(part.key, (0, part.first_row, part.first_row - 1, 0))
        what = f"run {part.record.run_id} part {part.number}"
        if count != part.rows:
            yield f"{what} has {count} rows, its metadata says {part.rows}"
        elif distinct != count:
            yield f"{what} has {count - distinct} row id(s) twice"
        elif (least, most) != (part.first_row, part.first_row + part.rows - 1):
            yield f"{what} has rows {least} to {most}, its metadata says {part.first_row} onward"
    for run_id, number in sorted(contents):
        yield f"rows of run {run_id} part {number}, which its metadata does not name"
    for what, condition in IMPOSSIBILITIES.items():
        bad = con.execute(
            f"SELECT count(*), min_by(run_id, row_id), min(row_id) FROM {source} WHERE {condition}"
        ).fetchone()
        if bad and bad[0]:
            yield f"{bad[0]} row(s) with {what}, first row {bad[2]} of run {bad[1]}"


def _check_runs(catalog: Catalog, report: VerifyReport) -> None:
    """Parts of a run must follow each other, and copies of a part must agree."""
    for run_id, parts in catalog.runs.items():
        following = 0
        for copy in parts:
            part = copy.part
            if part.rows and part.first_row != following:
                report.faults.append(
                    f"{copy.path}: run {run_id} part {part.number} begins at row {part.first_row},"
                    f" where {following} was expected"
                )
            following = part.first_row + part.rows if part.rows else following
    for path, copies in catalog.by_file.items():
        outranked = [copy for copy in copies if catalog.best[copy.key] != copy]
        if not outranked:
            continue
        report.notes.append(
            f"{path}: {len(outranked)} part(s) of it are in other files too; `bench db compact` folds them"
        )
        try:
            best = [catalog.best[copy.key] for copy in outranked]
            for key, how in differing_parts(catalog, outranked, catalog, best).items():
                report.faults.append(f"{path}: run {key[0]} part {key[1]} is not as in {catalog.best[key].path}: {how}")
        except StoreError as error:
            if str(error) not in report.faults:
                report.faults.append(str(error))
