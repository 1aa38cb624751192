"""Writes a run while it is measured: a case's rows are on disk for good before the next case begins."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from bench.errors import StoreError
from bench.store.catalog import consistently
from bench.store.layout import list_files, part_of, part_path, sync_folder, unwritable
from bench.store.owner import is_alive, this_process
from bench.store.row import SCHEMA_VERSION
from bench.store.seal import seal_part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from bench.store.row import Row, RunRecord


class RunWriter:
    """Appends rows to a part of a run, in a file that no other process writes. Not for several threads at once.

    Leaving the context closes the file; a run that was not sealed can be resumed.

    Attributes:
        record: of the run, with this process as its writer.
        path: the JSONL file.
        torn: what was dropped of the run's earlier parts, a line each.
        next_row_id: of the next row.
    """

    def __init__(
        self, store: Path, record: RunRecord, *, part: int = 1, next_row_id: int = 0, torn: Sequence[str] = ()
    ) -> None:
        """Begin a run (or, for ``reopen``, a further part of it).

        Raises:
            StoreError: the store cannot be written, or has the run already.
        """
        self.record = replace(record, writer=this_process(), schema_version=SCHEMA_VERSION)
        self.path = part_path(store, record.run_id, part, ".jsonl")
        self.torn = tuple(torn)
        self.next_row_id = next_row_id
        self._store = store
        self._part = part
        self._file: int | None = None
        self._size = 0
        self._create()

    @classmethod
    def reopen(cls, store: Path, run_id: str) -> RunWriter:
        """Go on with a run that was sealed or whose writer is gone; rows are numbered on from its last.

        Its earlier parts stay as they are. A writer on another machine is taken for gone: only
        whoever resumes the run can know.

        Raises:
            UsageError: no such run.
            StoreError: its writer still lives, or the store cannot be written.
        """
        catalog = consistently(store, lambda catalog: catalog)
        catalog.require([run_id])
        for copy in catalog.copies:
            writer = copy.part.record.writer
            if copy.key[0] == run_id and not copy.is_sealed and is_alive(writer):
                raise StoreError(f"run {run_id} is still being written by process {writer['pid']}; stop it first")
        parts = catalog.runs[run_id]
        named = [part_of(path) for path in catalog.files]
        taken = [key[1] for key in (*named, *(copy.key for copy in parts)) if key and key[0] == run_id]
        return cls(
            store,
            catalog.record(run_id),
            part=max(taken) + 1,
            next_row_id=max(copy.part.first_row + copy.part.rows for copy in parts),
            torn=catalog.torn([run_id]),
        )

    def append(self, rows: Sequence[Row]) -> None:
        """Number the rows, and return once they are on disk for good: all the rows of a case, or none.

        Raises:
            StoreError: disk full, or the like. Earlier rows are kept, and these can be appended again.
            ValueError: a row cannot be stored (``Row.to_json``).
        """
        for row_id, row in enumerate(rows, self.next_row_id):
            row.run_id, row.row_id = self.record.run_id, row_id
        self._write("".join(f"{row.to_json()}\n" for row in rows))
        self.next_row_id += len(rows)

    def seal(self) -> Path:
        """Close, and turn this part and earlier ones left as JSON lines into Parquet; this part's new path.

        Raises:
            StoreError: Parquet cannot be written; all rows stay in the JSONL file, and are sealed by
                ``bench db compact`` later.
        """
        self.close()
        for path in list_files(self._store):
            part = part_of(path)
            if path.suffix == ".jsonl" and part and part[0] == self.record.run_id and part[1] < self._part:
                with suppress(FileNotFoundError):  # headless, or sealed by another process
                    seal_part(path)
        try:
            return seal_part(self.path)
        except FileNotFoundError:
            raise StoreError(f"{self.path} was removed by another process before it was sealed") from None
        except StoreError as error:
            raise StoreError(f"{error}; all rows are kept in {self.path.name}: `bench db compact` seals it") from error

    def close(self) -> None:
        """Close the file; the run can be resumed."""
        if self._file is not None:
            with suppress(OSError):
                self._drop_unfinished()
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self) -> None:
        if self.path.with_suffix(".parquet").exists():
            raise StoreError(f"{self._store} has part {self._part} of run {self.record.run_id} already")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            sync_folder(self.path.parent)
        except FileExistsError:
            raise StoreError(f"part {self._part} of run {self.record.run_id} is written by another process") from None
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            self._write(self.record.to_json() + "\n")
        except BaseException:
            self.close()
            with suppress(OSError):
                self.path.unlink()
            raise

    def _write(self, text: str) -> None:
        """Append text with one flush to disk, or leave the file as it was."""
        if self._file is None:
            raise StoreError(f"run {self.record.run_id} is closed; reopen it to add rows")
        data = text.encode()
        try:
            if os.fstat(self._file).st_nlink == 0:
                raise StoreError(f"{self.path} was removed by another process; its rows are lost, start a new run")
            self._drop_unfinished()
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # tried again before the next write; readers drop a torn last line
                self._drop_unfinished()
            raise unwritable(self.path, error, f"the {self.next_row_id} row(s) before are kept") from error
        self._size += len(data)

    def _drop_unfinished(self) -> None:
        """Cut off what an append left that failed, or was interrupted."""
        if self._file is not None and os.fstat(self._file).st_size != self._size:
            os.ftruncate(self._file, self._size)
