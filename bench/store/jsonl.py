"""Reads a part that is still JSON lines: a header, a row a line, and perhaps a torn last line."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError
from bench.store.columns import IMPOSSIBLE, PART_COLUMN, column_list, digest, digest_of_query, load_lines
from bench.store.layout import part_of, unreadable
from bench.store.row import SCHEMA_VERSION, Row, RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb


@dataclass(frozen=True)
class JsonlPart:
    """A part of a run as its writer left it, or as it is while the writer goes on.

    Attributes:
        path: of the file.
        record: its header.
        number: of the part, from 1.
        first_row: id of the first row; rows have consecutive ids.
        rows: number of whole lines after the header.
        size: bytes of the header and of these lines.
        torn: whether a broken last line follows them.
    """

    path: Path
    record: RunRecord
    number: int
    first_row: int
    rows: int
    size: int
    torn: bool

    def lines(self) -> Iterator[str]:
        """The rows' lines, in the present schema, without newlines.

        Raises:
            StoreError: a line is not text, or of an older schema and broken.
            FileNotFoundError: another process has sealed the part meanwhile.
        """
        with self.path.open("rb") as file:
            for number, line in enumerate(itertools.islice(file, 1, 1 + self.rows), 2):
                try:
                    text = line.decode().rstrip("\n")
                except UnicodeDecodeError as error:
                    raise StoreError(f"{self.path}:{number}: broken line: {error}") from None
                if self.record.schema_version < SCHEMA_VERSION:
                    text = self._row(number, text).to_json()
                yield text

    def faults(self) -> Iterator[str]:
        """Everything that is wrong with the rows: ``PATH:LINE: what``."""
        numbered = enumerate(self.lines(), 2)
        expected = self.first_row
        while True:
            try:
                number, line = next(numbered)
                row = self._row(number, line)
            except StopIteration:
                return
            except StoreError as error:
                yield str(error)
                expected += 1
                continue
            if (row.run_id, row.row_id) != (self.record.run_id, expected):
                yield (
                    f"{self.path}:{number}: row {row.row_id} of run {row.run_id},"
                    f" where row {expected} of run {self.record.run_id} was expected"
                )
            expected = row.row_id + 1

    def load(self, con: duckdb.DuckDBPyConnection, table: str) -> str:
        """Insert the rows into a table made by ``create_table``, and see that they are there as written.

        Returns:
            the digest of the rows.

        Raises:
            StoreError: a line is broken; the message names file and line.
            FileNotFoundError: another process has sealed the part meanwhile.
        """
        import duckdb

        here = f"FROM {table} WHERE run_id = $1 AND {PART_COLUMN} = $2"
        content = digest(self.lines())
        try:
            load_lines(con, table, self.number, self.lines())
            ids = con.execute(f"SELECT min(row_id), max(row_id), count(DISTINCT row_id) {here}", self.key).fetchone()
            impossible = con.execute(f"SELECT count(*) {here} AND ({IMPOSSIBLE})", self.key).fetchone()
            # DuckDB reads more as JSON than we write: NaN, fields left out or too many.
            read_back = digest_of_query(con, f"SELECT {column_list()} {here} ORDER BY row_id", self.key)
        except (duckdb.Error, ValueError, TypeError) as error:
            raise self._broken(" ".join(str(error).split())) from None
        if self.rows and ids != (self.first_row, self.first_row + self.rows - 1, self.rows):
            raise self._broken("its rows are not numbered one after the other")
        if impossible != (0,) or read_back != content:
            raise self._broken("its rows read back differ from what was written")
        return content

    @property
    def key(self) -> tuple[str, int]:
        """Run id and number: what the rows of the part are marked with."""
        return self.record.run_id, self.number

    def _broken(self, why: str) -> StoreError:
        """The error that names the first broken line; ``why`` if each line by itself is well."""
        return StoreError(next(self.faults(), f"{self.path}: {why}"))

    def _row(self, number: int, line: str) -> Row:
        try:
            return Row.from_dict(_parse(line))
        except (StoreError, ValueError) as error:
            raise StoreError(f"{self.path}:{number}: broken line: {error}") from None


def read_part(path: Path) -> JsonlPart | None:
    """What a JSONL file holds; None if its writer died, or has yet to come, before the header was whole.

    Raises:
        StoreError: it cannot be read, or is not the file of a run.
        FileNotFoundError: another process has sealed it meanwhile.
    """
    name = part_of(path)
    if name is None:
        raise StoreError(f"{path}: not the name of a part of a run")
    try:
        with path.open("rb") as file:
            header = file.readline()
            first = last = b""
            lines, size = 0, len(header)
            for line in file:
                lines += 1
                size += len(line)
                first, last = first or line, line
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    if not header.endswith(b"\n"):
        return None
    torn = bool(lines) and not _is_whole(last)
    if torn:
        lines, size = lines - 1, size - len(last)
    try:
        record = RunRecord.from_dict(_parse(header))
        if record.run_id != name[0]:
            raise StoreError(f"the header is of run {record.run_id}")
    except (StoreError, ValueError) as error:
        raise StoreError(f"{path}:1: {error}") from None
    return JsonlPart(path, record, name[1], _row_id(path, first) if lines else 0, lines, size, torn)


def _is_whole(line: bytes) -> bool:
    """Whether a last line was written to its end: power loss can leave zeros behind a newline's place."""
    if not line.endswith(b"\n"):
        return False
    try:
        _parse(line)
    except ValueError:
        return False
    return True


def _row_id(path: Path, line: bytes) -> int:
    try:
        return int(_parse(line)["row_id"])
    except (ValueError, TypeError, KeyError):
        raise StoreError(f"{path}:2: broken line: no row with an id") from None


def _parse(text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")
