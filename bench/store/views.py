"""The tables that queries see: the rows of sealed files in place, and those of open runs."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from bench.store.columns import (
    PART_COLUMN,
    column_list,
    create_table,
    empty_rows,
    filled_column_list,
    literal,
    quoted,
)
from bench.store.jsonl import JsonlPart
from bench.store.row import SCHEMA_VERSION, STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import duckdb

    from bench.store.catalog import Catalog, Copy, Key

PARTS_VIEW = "rows_with_part"
_RUN_STRUCTURE = json.dumps(
    [
        {
            "run_id": "VARCHAR",
            "started_at": "VARCHAR",
            "state": "VARCHAR",
            "command": ["VARCHAR"],
            "suites": ["VARCHAR"],
            "preset": "VARCHAR",
            "seed": "BIGINT",
            "lab": "VARCHAR",
            "fingerprint": "JSON",
            "plan": "JSON",
            "schema_version": "INTEGER",
        }
    ]
)


def create_views(con: duckdb.DuckDBPyConnection, catalog: Catalog, run_ids: Iterable[str] | None = None) -> None:
    """Make the views ``rows`` (a row of the store each) and ``runs`` (a run each, with counts by status).

    Args:
        con: where to make them.
        catalog: of the store.
        run_ids: leave out all other runs.
    """
    wanted = catalog.runs if run_ids is None else {run_id: catalog.runs[run_id] for run_id in run_ids}
    create_parts_view(con, catalog, [copy for copies in wanted.values() for copy in copies])
    con.execute(f"CREATE TEMP VIEW rows AS SELECT {column_list()} FROM {PARTS_VIEW}")
    records = [catalog.record(run_id).to_dict() | {"state": catalog.state(run_id)} for run_id in wanted]
    con.execute(
        "CREATE TEMP TABLE run_records AS SELECT unnest(from_json(?, ?), max_depth := 2)",
        [json.dumps(records), _RUN_STRUCTURE],
    )
    counts = ", ".join(f"coalesce({quoted(name)}, 0) AS {quoted(name)}" for name in ("rows", *STATUSES))
    by_status = ", ".join(f"count(*) FILTER (status = {literal(name)}) AS {quoted(name)}" for name in STATUSES)
    con.execute(
        f"CREATE TEMP VIEW runs AS SELECT run_records.*, {counts} FROM run_records LEFT JOIN"
        f' (SELECT run_id, count(*) AS "rows", {by_status} FROM rows GROUP BY run_id) USING (run_id)'
    )


def create_parts_view(
    con: duckdb.DuckDBPyConnection, catalog: Catalog, copies: Iterable[Copy], name: str = PARTS_VIEW
) -> dict[Key, str]:
    """Make a view of the rows of some copies, with their part first, in the present schema.

    Returns:
        the digest of each part that is not sealed.

    Raises:
        StoreError: a line of an open run is broken.
        FileNotFoundError: another process has replaced a file meanwhile.
    """
    table = f"{name}_of_open_runs"
    create_table(con, table)
    digests: dict[Key, str] = {}
    by_file: dict[Path, list[Copy]] = defaultdict(list)
    for copy in copies:
        if isinstance(copy.part, JsonlPart):
            digests[copy.key] = copy.part.load(con, table)
        else:
            by_file[copy.path].append(copy)
    selects = [f"SELECT * FROM {table}"]
    whole: dict[int, list[Path]] = defaultdict(list)
    for path, chosen in by_file.items():
        version = chosen[0].schema_version
        if len(chosen) == len(catalog.by_file[path]):
            whole[version].append(path)
        else:
            selects.append(_select([path], version, [copy.key for copy in chosen]))
    selects += [_select(paths, version) for version, paths in sorted(whole.items())]
    con.execute(f"CREATE TEMP VIEW {name} AS {' UNION ALL '.join(selects)}")
    return digests


def _select(paths: Iterable[Path], version: int, keys: Iterable[Key] = ()) -> str:
    """A query for the rows in files of one schema version, of some parts or of all."""
    files = ", ".join(literal(str(path)) for path in paths)
    pairs = ", ".join(f"({literal(run_id)}, {part})" for run_id, part in keys)
    where = f" WHERE (run_id, {PART_COLUMN}) IN ({pairs})" if pairs else ""
    source = f"read_parquet([{files}], hive_partitioning = false"
    if version == SCHEMA_VERSION:
        return f"SELECT {PART_COLUMN}, {column_list()} FROM {source}){where}"
    older = f"(SELECT * FROM {source}, union_by_name = true) UNION ALL BY NAME {empty_rows()})"
    return f"SELECT {PART_COLUMN}, {filled_column_list()} FROM {older}{where}"
