"""Writes parts of several runs into one Parquet file, itself a file that a store can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.errors import StoreError
from bench.store.columns import PART_COLUMN, column_list, connect, digest_of_query
from bench.store.layout import runs_folder
from bench.store.parquet import Footer, SealedPart, write_parquet
from bench.store.row import SCHEMA_VERSION, new_run_id
from bench.store.views import PARTS_VIEW, create_parts_view

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from bench.store.catalog import Catalog, Copy


def new_archive_path(store: Path) -> Path:
    """A name that no file of the store has or had."""
    return runs_folder(store) / f"archive.{new_run_id()}.parquet"


def write_archive(catalog: Catalog, copies: Sequence[Copy], target: Path, generation: int = 0) -> None:
    """Write the rows of some copies, and the records of their runs, in the present schema.

    Args:
        catalog: of the store that holds the copies.
        copies: of parts of runs, each part once.
        target: appears whole or not at all.
        generation: above that of all files that this one replaces.

    Raises:
        StoreError: it cannot be written, or a copy cannot be read.
        FileNotFoundError: another process has replaced a file meanwhile.
    """
    import duckdb

    try:
        _write(catalog, copies, target, generation)
    except duckdb.Error as error:
        text = " ".join(str(error).split())
        raise StoreError(f"cannot copy rows of {catalog.store} to {target}: {text}") from error


def _write(catalog: Catalog, copies: Sequence[Copy], target: Path, generation: int) -> None:
    with connect() as con:
        digests = create_parts_view(con, catalog, copies)
        for copy in copies:
            if isinstance(copy.part, SealedPart) and copy.schema_version == SCHEMA_VERSION:
                digests[copy.key] = copy.part.sha256
            elif copy.is_sealed:
                # Older columns become more, so the digest changes.
                digests[copy.key] = digest_of_part(con, copy)
        parts = tuple(
            SealedPart(copy.part.record, copy.part.number, copy.part.first_row, copy.part.rows, digests[copy.key])
            for copy in copies
        )
        rows = f"SELECT {PART_COLUMN}, {column_list()} FROM {PARTS_VIEW}"
        write_parquet(con, rows, Footer(SCHEMA_VERSION, generation, parts), target)


def digest_of_part(con: duckdb.DuckDBPyConnection, copy: Copy) -> str:
    """The digest of a part's rows in the present schema, where ``create_parts_view`` made the view of them."""
    query = f"SELECT {column_list()} FROM {PARTS_VIEW} WHERE run_id = $1 AND {PART_COLUMN} = $2 ORDER BY row_id"
    return digest_of_query(con, query, copy.key)
