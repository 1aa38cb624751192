"""The runs of a store: list them, find one, read rows, and query all of them with SQL."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bench.asked_case import asked_case
from bench.errors import UsageError
from bench.store.catalog import Catalog, State, consistently
from bench.store.columns import column_list, connect, fetch_rows
from bench.store.row import STATUSES, Row, RunRecord, Status
from bench.store.views import create_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import duckdb
    import pandas as pd

T = TypeVar("T")
LATEST = "latest"


@dataclass(frozen=True)
class RunSummary:
    """A run in a line.

    Attributes:
        record: of the run.
        state: ``open`` (being written, perhaps on another machine), ``orphaned`` (its writer was on
            this machine and is gone) or ``sealed``.
        counts: number of rows by status, every status named.
        cases_with_rows: how many cases have a row, of the ``record.cases`` asked for.
    """

    record: RunRecord
    state: State
    counts: dict[Status, int]
    cases_with_rows: int

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def to_dict(self) -> dict[str, Any]:
        """As ``bench db list --json`` prints it."""
        return {
            "run_id": self.run_id,
            "started_at": self.record.started_at,
            "suites": self.record.suites,
            "preset": self.record.preset,
            "lab": self.record.lab,
            "state": self.state,
            "cases": self.record.cases,
            "cases_with_rows": self.cases_with_rows,
            "rows": self.rows,
            "counts": self.counts,
        }


class Store:
    """Reads a store. Every call sees the files as they are then; other processes may write meanwhile.

    Attributes:
        path: of the store; a folder that does not exist is a store without runs.
        torn: a line for each torn last line that the latest call met and dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn: list[str] = []

    def runs(self) -> list[RunSummary]:
        """All runs, by start.

        Raises:
            StoreError: a file is damaged; the message names it.
        """

        def summarize(con: duckdb.DuckDBPyConnection, catalog: Catalog) -> list[RunSummary]:
            found = con.execute("SELECT run_id, status, count(*) FROM rows GROUP BY ALL").fetchall()
            counts = {(run_id, status): count for run_id, status, count in found}
            of_rows = con.execute('SELECT DISTINCT run_id, suite, "case" FROM rows').fetchall()
            asked = {(run_id, suite, asked_case(suite, case)) for run_id, suite, case in of_rows}
            cases = Counter(run_id for run_id, _, _ in asked)
            return [
                RunSummary(
                    catalog.record(run_id),
                    catalog.state(run_id),
                    {status: counts.get((run_id, status), 0) for status in STATUSES},
                    cases[run_id],
                )
                for run_id in catalog.runs
            ]

        return self._read(summarize)

    def rows(
        self,
        run_ids: Iterable[str] | None = None,
        *,
        suite: str | None = None,
        metric: str | None = None,
        status: Status | None = None,
    ) -> list[Row]:
        """Rows in the order of runs and row ids, of some runs (None for all), suite, metric or status.

        Raises:
            UsageError: a run that is not there.
            StoreError: a file is damaged; the message names it.
        """
        wanted = None if run_ids is None else list(run_ids)
        conditions = {"suite": suite, "metric": metric, "status": status}
        given = {name: value for name, value in conditions.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "true"
        query = f"SELECT {column_list()} FROM rows WHERE {where} ORDER BY run_id, row_id"
        return self._read(lambda con, catalog: list(fetch_rows(con, query, given.values())), wanted)

    def query(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> pd.DataFrame:
        """The result of one SQL statement over the views ``rows`` and ``runs`` (DuckDB's dialect).

        Columns of ``rows`` are the fields of a row; ``params`` is JSON, read with
        ``params->>'$.bytes'``, and ``samples`` a list. ``runs`` has a run's record, state and
        number of rows by status.

        Raises:
            UsageError: the statement is wrong.
            StoreError: a file is damaged; the message names it.
        """

        import duckdb

        if not sql.strip():
            raise UsageError("the query is empty; write for example: select * from rows limit 10")

        def run(con: duckdb.DuckDBPyConnection, catalog: Catalog) -> pd.DataFrame:
            try:
                return con.execute(sql, parameters).df()
            except duckdb.IOException as error:
                # Of one of the store's files, or of what the statement itself wants to read, write or load.
                if any(str(file) in str(error) for file in catalog.files):
                    raise
                raise UsageError(f"the query failed: {_without_position(error)}") from error
            except duckdb.Error as error:
                raise UsageError(f"the query failed: {_without_position(error)}") from error

        return self._read(run)

    def record(self, run_id: str) -> RunRecord:
        """The record of a run.

        Raises:
            UsageError: no such run.
        """
        catalog = consistently(self.path, lambda catalog: catalog)
        catalog.require([run_id])
        return catalog.record(run_id)

    def resolve(self, text: str) -> str:
        """The id of the one run that begins with ``text``, or of the last for ``latest``.

        Raises:
            UsageError: none, or more than one.
        """
        catalog = consistently(self.path, lambda catalog: catalog)
        run_ids = list(catalog.runs)
        if not run_ids:
            raise UsageError(f"there is no run in {self.path}; `bench run` makes one, --store names another store")
        if text == LATEST:
            return run_ids[-1]
        matches = [run_id for run_id in run_ids if run_id.startswith(text)]
        if not matches or not text:
            catalog.require([text])
        if len(matches) > 1 and text not in matches:
            raise UsageError(
                f"{text!r} is the start of {len(matches)} runs: {', '.join(matches[:5])}; write more of it"
            )
        return text if text in matches else matches[0]

    def _read(
        self, action: Callable[[duckdb.DuckDBPyConnection, Catalog], T], run_ids: Sequence[str] | None = None
    ) -> T:
        """Run ``action`` where the views are, again if another process replaced files meanwhile."""

        def act(catalog: Catalog) -> T:
            catalog.require(run_ids or ())
            with connect() as con:
                create_views(con, catalog, run_ids)
                self.torn = catalog.torn(run_ids)
                return action(con, catalog)

        return consistently(self.path, act)


def _without_position(error: Exception) -> str:
    """DuckDB's message in one line, without the statement and the marks below it."""
    return " ".join(str(error).partition("\nLINE ")[0].split())
