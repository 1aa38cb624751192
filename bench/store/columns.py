"""The columns of stored rows in SQL: their types, their defaults, and rows loaded from JSON lines."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import secrets
import tempfile
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.store.row import Row, encode_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb

COLUMNS: dict[str, str] = {
    "run_id": "VARCHAR",
    "row_id": "BIGINT",
    "suite": "VARCHAR",
    "method_version": "BIGINT",
    "case": "VARCHAR",
    "params": "JSON",
    "metric": "VARCHAR",
    "unit": "VARCHAR",
    "better": "VARCHAR",
    "definition": "VARCHAR",
    "value": "DOUBLE",
    "n": "BIGINT",
    "samples": "DOUBLE[]",
    "rank_min": "DOUBLE",
    "rank_median": "DOUBLE",
    "rank_max": "DOUBLE",
    "slowest_rank": "BIGINT",
    "entry_skew": "DOUBLE",
    "warmup": "BIGINT",
    "stop_reason": "VARCHAR",
    "wrong": "BIGINT",
    "status": "VARCHAR",
    "reason": "VARCHAR",
    "seed": "BIGINT",
    "started_at": "VARCHAR",
    "rounds": "BIGINT[]",
}
"""The fields of a row, in order, and the SQL type of each.

Parameters stay JSON text: each keeps its type, and a query takes one with ``params->>'$.bytes'``.
A later schema may only add fields, with a default: then older files are read with that default.
"""

PART_COLUMN = "part"
"""A file's column beside those of the row: the part of the run that the row belongs to."""

LINES_AT_ONCE = 1000
_JSON_STRUCTURE = json.dumps({name: [kind[:-2]] if kind.endswith("[]") else kind for name, kind in COLUMNS.items()})
IMPOSSIBILITIES = {
    "an unknown status": "status NOT IN ('ok', 'failed', 'timeout', 'invalid', 'skipped')",
    "status ok without a finite value": "status = 'ok' AND (value IS NULL OR NOT isfinite(value))",
    "no reason for a status other than ok": "status <> 'ok' AND reason = ''",
    "params that are no JSON object": "json_type(params) IS DISTINCT FROM 'OBJECT'",
    "samples that are not n in number": "len(samples) NOT IN (0, n)",
    "rounds that do not add up to n": "len(rounds) > 0 AND list_sum(rounds) <> n",
}
"""What no row may be, as SQL."""

IMPOSSIBLE = " OR ".join(f"({condition})" for condition in IMPOSSIBILITIES.values())


def connect() -> duckdb.DuckDBPyConnection:
    """A connection to this process's DuckDB in memory, for temporary tables and views only.

    It never installs anything, and spills outside the working directory.
    """
    return _database(os.getpid()).cursor()


@functools.cache
def _database(process_id: int) -> duckdb.DuckDBPyConnection:
    """Opened once, as that takes 20 ms; but a fork must not use what lacks its parent's threads."""
    import duckdb

    # DuckDB makes the folder when memory is short, and removes it.
    spill = Path(tempfile.gettempdir()) / f"bench-duckdb-{process_id}-{secrets.token_hex(4)}"
    return duckdb.connect(config={"autoinstall_known_extensions": "false", "temp_directory": str(spill)})


def quoted(name: str) -> str:
    """``name`` as an SQL identifier."""
    return f'"{name}"'


def column_list() -> str:
    """The fields of a row, in order, for a SELECT."""
    return ", ".join(map(quoted, COLUMNS))


def literal(text: str) -> str:
    """``text`` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def filled_column_list() -> str:
    """The row's columns of an older file, with the default for what it has no value of."""
    return ", ".join(_filled(name) for name in COLUMNS)


def empty_rows() -> str:
    """A query with all columns and no row, to be united by name with older files."""
    columns = ", ".join(f"NULL::{kind} AS {quoted(name)}" for name, kind in COLUMNS.items())
    return f"SELECT {columns} WHERE false"


def create_table(con: duckdb.DuckDBPyConnection, table: str) -> None:
    """An empty temporary table of rows with their part."""
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in COLUMNS.items())
    con.execute(f"CREATE TEMP TABLE {table} ({PART_COLUMN} INTEGER, {columns})")


def load_lines(con: duckdb.DuckDBPyConnection, table: str, part: int, lines: Iterable[str]) -> None:
    """Insert rows that are written as JSON lines.

    Raises:
        duckdb.Error: a line is not JSON.
    """
    # One text of many lines: a list of texts, or one JSON array, takes DuckDB three times as long.
    insert = (
        f"INSERT INTO {table} SELECT {part}, unnest(from_json(line, ?))"
        " FROM (SELECT unnest(string_split(?, chr(10))) AS line)"
    )
    remaining = iter(lines)
    while batch := list(itertools.islice(remaining, LINES_AT_ONCE)):
        con.execute(insert, [_JSON_STRUCTURE, "\n".join(batch)])


def fetch_rows(con: duckdb.DuckDBPyConnection, query: str, parameters: Iterable[Any] = ()) -> Iterator[Row]:
    """The rows of a query that selects ``column_list()``.

    Raises:
        StoreError: a row is impossible, in a file that another program wrote.
    """
    for record in fetch_records(con, query, parameters):
        yield Row.from_dict(record)


def fetch_records(
    con: duckdb.DuckDBPyConnection, query: str, parameters: Iterable[Any] = ()
) -> Iterator[dict[str, Any]]:
    """Each row of a query as a dict, its params decoded."""
    cursor = con.execute(query, list(parameters))
    names = [column[0] for column in cursor.description or []]
    while batch := cursor.fetchmany(LINES_AT_ONCE):
        for values in batch:
            record = dict(zip(names, values, strict=True))
            record["params"] = json.loads(record["params"])
            yield record


def digest(lines: Iterable[str]) -> str:
    """SHA-256 of rows as JSON lines in order: what a part's content is known by."""
    sha = hashlib.sha256()
    for line in lines:
        sha.update(line.encode())
        sha.update(b"\n")
    return sha.hexdigest()


def digest_of_query(con: duckdb.DuckDBPyConnection, query: str, parameters: Iterable[Any] = ()) -> str:
    """The same of rows that a query yields in order."""
    return digest(map(encode_row, fetch_records(con, query, parameters)))


def _filled(name: str) -> str:
    field = next(field for field in fields(Row) if field.name == name)
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    if default is MISSING or default is None:
        return quoted(name)
    value = literal(default) if isinstance(default, str) else str(default)
    return f"coalesce({quoted(name)}, {value}::{COLUMNS[name]}) AS {quoted(name)}"
