"""What a store holds: each part of each run, every file that has a copy of it, and which copy counts."""

from __future__ import annotations

import errno
import itertools
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from bench.errors import UsageError
from bench.store.columns import connect
from bench.store.jsonl import JsonlPart, read_part
from bench.store.layout import list_files, unreadable
from bench.store.owner import is_alive
from bench.store.parquet import Footer, SealedPart, read_footers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from bench.store.row import RunRecord

State = Literal["open", "orphaned", "sealed"]
Key = tuple[str, int]
"""Run id and number of a part."""
T = TypeVar("T")

ATTEMPTS = 6
FIRST_PAUSE_S = 0.05
"""Doubled with each attempt: a network filesystem may show a folder's old state for a second or two."""


@dataclass(frozen=True)
class Copy:
    """A part of a run in one file.

    Attributes:
        path: of the file.
        part: what the file says of the part.
        generation: of a sealed file; -1 for JSON lines.
        schema_version: of the file's columns.
    """

    path: Path
    part: SealedPart | JsonlPart
    generation: int
    schema_version: int

    @property
    def key(self) -> Key:
        return self.part.key

    @property
    def is_sealed(self) -> bool:
        return isinstance(self.part, SealedPart)

    @property
    def rank(self) -> tuple[int, int, str]:
        """The highest of a part's copies counts. All readers agree on it, whatever else they see.

        Of two copies the shorter holds the longer's first rows; a file ranks above those that it
        replaces by its generation, so nothing is ever removed for the sake of what may vanish.
        """
        return self.part.rows, self.generation, self.path.name


@dataclass
class Catalog:
    """All parts of a store at one moment.

    Attributes:
        store: its path.
        files: the files of ``runs/`` when it was listed.
        copies: every copy of every part.
        headless: JSONL files whose header is not whole, so that no row was ever finished in them.
    """

    store: Path
    files: list[Path] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    headless: list[Path] = field(default_factory=list)

    @classmethod
    def read(cls, store: Path) -> Catalog:
        """List the store.

        Raises:
            StoreError: a file is damaged or of a newer version; the message names it.
            FileNotFoundError: another process has replaced a file meanwhile (see ``consistently``).
        """
        return cls.of_files(store, list_files(store))

    @classmethod
    def of_files(cls, store: Path, files: list[Path]) -> Catalog:
        """The same of some of the store's files."""
        catalog = cls(store, files)
        sealed = [path for path in files if path.suffix == ".parquet" and not path.name.startswith(".")]
        if sealed:
            with connect() as con:
                footers = read_footers(con, sealed)
            for path, footer in zip(sealed, footers, strict=True):
                catalog.copies += sealed_copies(path, footer)
        for path in files:
            if path.suffix == ".jsonl":
                part = read_part(path)
                if part is None:
                    catalog.headless.append(path)
                else:
                    catalog.copies.append(Copy(path, part, -1, part.record.schema_version))
        return catalog

    @cached_property
    def best(self) -> dict[Key, Copy]:
        """The copy of each part that counts, by run and part."""
        best: dict[Key, Copy] = {}
        for copy in sorted(self.copies, key=lambda copy: (copy.key, copy.rank)):
            best[copy.key] = copy
        return best

    @cached_property
    def runs(self) -> dict[str, list[Copy]]:
        """The parts that count of each run, in order; runs by start."""
        runs = defaultdict(list)
        for (run_id, _), copy in self.best.items():
            runs[run_id].append(copy)
        # Ids tell seconds only, records milliseconds.
        return dict(sorted(runs.items(), key=lambda run: (run[1][0].part.record.started_at, run[0])))

    @cached_property
    def by_file(self) -> dict[Path, list[Copy]]:
        """The copies in each file."""
        files = defaultdict(list)
        for copy in self.copies:
            files[copy.path].append(copy)
        return dict(files)

    def require(self, run_ids: Iterable[str]) -> None:
        """Refuse a run that is not there.

        Raises:
            UsageError: it names the store and its last run.
        """
        for run_id in run_ids:
            if run_id not in self.runs:
                there = f"the last is {list(self.runs)[-1]}, `bench db list` shows all" if self.runs else "it has none"
                raise UsageError(f"unknown run {run_id!r} in {self.store}; {there}")

    def record(self, run_id: str) -> RunRecord:
        """The record of a run, as its last writer left it."""
        return self.runs[run_id][-1].part.record

    def state(self, run_id: str) -> State:
        """Sealed; or not yet and orphaned (its writers were on this machine and are gone), or else open."""
        lines = [copy for copy in self.copies if copy.key[0] == run_id and not copy.is_sealed]
        alive = [is_alive(copy.part.record.writer) for copy in lines]
        if True not in alive and all(copy.is_sealed for copy in self.runs[run_id]):
            return "sealed"
        return "orphaned" if all(answer is False for answer in alive) else "open"

    def torn(self, run_ids: Iterable[str] | None = None) -> list[str]:
        """A line for each torn last line, of all runs or of some; a living writer's is just not finished."""
        wanted = None if run_ids is None else set(run_ids)
        return [
            f"{copy.path}: the last line is torn and was dropped; {copy.part.rows} whole row(s) before it are kept"
            for copy in self.best.values()
            if (wanted is None or copy.key[0] in wanted)
            and isinstance(copy.part, JsonlPart)
            and copy.part.torn
            and is_alive(copy.part.record.writer) is not True
        ]


def sealed_copies(path: Path, footer: Footer) -> list[Copy]:
    """The copies in a sealed file."""
    return [Copy(path, part, footer.generation, footer.schema_version) for part in footer.parts]


def consistently(store: Path, action: Callable[[Catalog], T]) -> T:
    """Do something with a store's catalog, again if files were replaced underneath by another process.

    Raises:
        StoreError: a file cannot be read, or files vanish as often as it is tried.
        Exception: whatever else ``action`` raises though all files are still there.
    """
    import duckdb

    for attempt in itertools.count(1):
        files = list_files(store)
        try:
            return action(Catalog.of_files(store, files))
        except Exception as error:
            vanished = _vanished(error, files)
            if attempt == ATTEMPTS or not vanished:
                if vanished or isinstance(error, duckdb.Error):
                    raise unreadable(store, error) from error
                raise
        time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("not reached")


def _vanished(error: BaseException, files: list[Path]) -> bool:
    """Whether the error comes from a file that was there when the store was listed and is not any more."""
    import duckdb

    cause = error.__cause__ or error
    if isinstance(cause, FileNotFoundError) or (isinstance(cause, OSError) and cause.errno == errno.ESTALE):
        return True
    return isinstance(cause, duckdb.Error) and not all(path.exists() for path in files)
