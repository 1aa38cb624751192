"""Writes and reads sealed files: Parquet with the records of its runs in the metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError
from bench.store.columns import PART_COLUMN, column_list, literal
from bench.store.layout import new_file, unwritable
from bench.store.row import SCHEMA_VERSION, RunRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

METADATA_KEY = "bench"
_ADVICE = "restore the file or move it out of the store"


@dataclass(frozen=True)
class SealedPart:
    """A part of a run as a sealed file's metadata describes it.

    Attributes:
        record: of the run.
        number: of the part, from 1.
        first_row, rows: the part's rows have the ids ``first_row`` to ``first_row + rows - 1``.
        sha256: digest of the rows as JSON lines (``bench.store.columns.digest``).
    """

    record: RunRecord
    number: int
    first_row: int
    rows: int
    sha256: str

    @property
    def key(self) -> tuple[str, int]:
        """Run id and number: what the rows of the part are marked with."""
        return self.record.run_id, self.number


@dataclass(frozen=True)
class Footer:
    """A sealed file's metadata.

    Attributes:
        schema_version: of the columns.
        generation: 0, or one more than the highest of the files that this one replaces.
        parts: what the file holds.
    """

    schema_version: int
    generation: int
    parts: tuple[SealedPart, ...]

    def to_json(self) -> str:
        parts = [
            {
                "run_id": part.record.run_id,
                "part": part.number,
                "first_row": part.first_row,
                "rows": part.rows,
                "sha256": part.sha256,
                "record": part.record.to_dict(),
            }
            for part in self.parts
        ]
        return json.dumps({"schema_version": self.schema_version, "generation": self.generation, "parts": parts})

    @classmethod
    def from_json(cls, text: str | bytes) -> Footer:
        """The metadata from its JSON text.

        Raises:
            StoreError: written by a newer version, or damaged.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            version = int(fields["schema_version"])
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"schema {version} is newer than this program's {SCHEMA_VERSION}; update it to read this file"
                )
            parts = tuple(
                SealedPart(
                    RunRecord.from_dict(part["record"]), part["part"], part["first_row"], part["rows"], part["sha256"]
                )
                for part in fields["parts"]
            )
            return cls(version, int(fields["generation"]), parts)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"damaged metadata: {error!r}; {_ADVICE}") from None


def write_parquet(con: duckdb.DuckDBPyConnection, rows: str, footer: Footer, target: Path) -> None:
    """Write a sealed file; it appears at ``target`` once it was read back and holds the same rows.

    Args:
        con: where ``rows`` can be run.
        rows: a query for the rows of all parts of ``footer``, with their part first, in order.

    Raises:
        StoreError: it cannot be written, or differs when read back; nothing is left at ``target``.
        duckdb.Error: the query failed.
    """
    import duckdb

    expected = sorted((*part.key, part.rows) for part in footer.parts if part.rows)
    metadata = f"{{{METADATA_KEY}: {literal(footer.to_json())}}}"
    try:
        with new_file(target) as path:
            file = literal(str(path))
            options = f"FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false, KV_METADATA {metadata}"
            con.execute(f"COPY ({rows}) TO {file} ({options})")
            written = content_hashes(con, f"SELECT * FROM read_parquet({file}, hive_partitioning = false)")
            if written != content_hashes(con, rows) or [key[:3] for key in written] != expected:
                raise StoreError(f"{target} read back differs from what was to be written; nothing was replaced")
    except (OSError, duckdb.IOException) as error:
        raise unwritable(target, error) from error


def content_hashes(con: duckdb.DuckDBPyConnection, rows: str) -> list[tuple[str, int, int, int]]:
    """``(run_id, part, rows, hash)`` of each part that a query yields, sorted.

    The hash does not depend on the order of rows. It is DuckDB's, so it means something only
    within one process.
    """
    return con.execute(
        f"SELECT run_id, {PART_COLUMN}, count(*), bit_xor(hash({column_list()}))"
        f" FROM ({rows}) GROUP BY ALL ORDER BY ALL"
    ).fetchall()


def read_footers(con: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> list[Footer]:
    """The metadata of each file.

    Raises:
        StoreError: a file is no sealed file, damaged, or of a newer version; the message names it.
        FileNotFoundError: another process has replaced a file meanwhile.
    """
    import duckdb

    if not paths:
        return []
    try:
        found = con.execute(
            "SELECT file_name, value FROM parquet_kv_metadata(?) WHERE key = ?",
            [[str(path) for path in paths], METADATA_KEY],
        ).fetchall()
    except duckdb.Error as error:
        if len(paths) > 1:
            return [footer for path in paths for footer in read_footers(con, [path])]
        # Opening it tells a file that is gone from one that is damaged.
        paths[0].open("rb").close()
        raise StoreError(f"{paths[0]}: {_first_line(error)}; {_ADVICE}") from None
    texts = dict(found)
    return [_footer(path, texts.get(str(path))) for path in paths]


def _footer(path: Path, text: bytes | None) -> Footer:
    if text is None:
        raise StoreError(f"{path}: not written by bench: its metadata has no key {METADATA_KEY!r}; {_ADVICE}")
    try:
        return Footer.from_json(text)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
