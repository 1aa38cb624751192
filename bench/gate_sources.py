"""One side of a comparison: the rows that a run, a git ref, a file of rows or a store folder stands for.

A word is, in this order: a path that exists, a run of the store (its id, the start of one, or
``latest``), a git ref whose runs are in the store. ``file:``, ``run:`` and ``ref:`` before it say
which of them is meant.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.bounded_file import read_bounded
from bench.environment import identity_differences, identity_digest
from bench.errors import StoreError, UsageError
from bench.gate_row_checks import check_row
from bench.store.layout import runs_folder
from bench.store.reader import LATEST, Store
from bench.store.row import Row, RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KINDS = ("file", "run", "ref")
GIT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Source:
    """Measurements of one side.

    Attributes:
        label: what the user wrote, and what it was taken for.
        rows: of all runs, each once.
        records: of the runs whose record is at hand, by run id.
        notes: what the user should know of them, a line each.
        machine: stands for the machine of every row; empty where the runs' records tell.
    """

    label: str
    rows: tuple[Row, ...]
    records: Mapping[str, RunRecord] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: str = ""

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs, in the order in which the rows have them."""
        return tuple(dict.fromkeys(row.run_id for row in self.rows))

    def identity(self, run_id: str) -> str | None:
        """The digest of the machine that a run was measured on; None where nothing tells."""
        if self.machine:
            return self.machine
        record = self.records.get(run_id)
        return identity_digest(record.fingerprint) if record and record.fingerprint.get("identity") else None

    def of_suites(self, suites: Sequence[str]) -> Source:
        """The rows of some suites; of all if none is named."""
        return replace(self, rows=tuple(row for row in self.rows if row.suite in suites)) if suites else self


def load_source(
    text: str, store: Path, repository: Path | None = None, without: frozenset[str] = frozenset()
) -> Source:
    """The measurements that a text stands for: a word, or several with commas between.

    Args:
        text: see the module's first lines.
        store: where runs and refs are looked for.
        repository: folder of the git repository of refs; None for the working directory.
        without: runs that a ref does not stand for: those of the other side, measured at the same commit.

    Raises:
        UsageError: a word stands for nothing; the message says what was tried.
        StoreError: a file cannot be read or has no row.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{text!r} names no run, ref or file; write for example latest, main or rows.jsonl")
    parts = [_load_word(word, store, repository, without) for word in words]
    rows: dict[tuple[str, int], Row] = {}
    for part in parts:
        rows |= {(row.run_id, row.row_id): row for row in part.rows}
    records = {run_id: record for part in parts for run_id, record in part.records.items()}
    notes = [note for part in parts for note in part.notes]
    return Source(", ".join(part.label for part in parts), tuple(rows.values()), records, tuple(dict.fromkeys(notes)))


def resolve_commit(ref: str, repository: Path | None = None) -> str | None:
    """The commit that a git ref stands for; None if there is no repository or no such ref."""
    return git_line(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"], repository)


def git_line(arguments: Sequence[str], repository: Path | None = None) -> str | None:
    """What git prints, without the newline at its end; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=repository, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def identity_changes(baseline: Source, candidate: Source) -> list[str]:
    """Where the machines of the two sides differ, a text each; empty where either is unknown or all are equal."""
    ours = [record.fingerprint for record in candidate.records.values() if record.fingerprint.get("identity")]
    theirs = [record.fingerprint for record in baseline.records.values() if record.fingerprint.get("identity")]
    return identity_differences(theirs[-1], ours[-1]) if ours and theirs else []


def read_rows_file(path: Path) -> tuple[list[Row], RunRecord | None, list[str]]:
    """Rows of a JSON-lines file, as ``bench run --json`` writes it or as it lies in a store.

    Returns:
        the rows, the run's record if the file begins with one, and notes: a torn last line is dropped.

    Raises:
        StoreError: a line is broken; the message names it.
    """
    try:
        lines = read_bounded(path).split(b"\n")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    rows: list[Row] = []
    record: RunRecord | None = None
    notes: list[str] = []
    # What follows the last newline is empty, or a line that was never finished.
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            try:
                parsed = json.loads(line, parse_constant=_refuse_constant)
            except ValueError:
                if number < len(lines):
                    raise
                notes.append(f"{path}: the last line is torn and was dropped; {len(rows)} whole row(s) before it")
                break
            if number == 1 and isinstance(parsed, dict) and "schema_version" in parsed:
                record = RunRecord.from_dict(parsed)
            else:
                rows.append(_row(parsed))
        except (StoreError, ValueError, RecursionError) as error:
            what = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise StoreError(f"{path}:{number}: {what}; `bench run --json FILE` writes files of rows") from None
    return rows, record, notes


def _row(parsed: object) -> Row:
    if not isinstance(parsed, dict):
        raise StoreError("not a row")
    check_row(parsed)
    return Row.from_dict(parsed)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _load_word(word: str, store: Path, repository: Path | None, without: frozenset[str]) -> Source:
    kind, colon, rest = word.partition(":")
    if not (colon and kind in KINDS):
        kind, rest = "", word
    found = _of_path(rest, store) if kind in ("", "file") else None
    found = found or (_of_run(rest, store) if kind in ("", "run") else None)
    found = found or (_of_ref(rest, store, repository, without) if kind in ("", "ref") else None)
    if found is None:
        if kind in ("", "run") and rest and any(run.run_id.startswith(rest) for run in Store(store).runs()):
            Store(store).resolve(rest)  # raises: the start of several runs
        raise UsageError(
            f"{word!r} is neither a file, nor a run of {store}, nor a git ref with runs there;"
            " `bench db list` shows the runs"
        )
    return found


def _of_path(text: str, store: Path) -> Source | None:
    path = Path(text)
    try:
        if not path.exists():
            return None
    except (OSError, ValueError):
        return None
    if path.is_dir():
        # Only a store is meant by a folder: another of the same name as a branch is not.
        return _of_folder(path) if runs_folder(path).is_dir() else None
    rows, record, notes = read_rows_file(path)
    if not rows:
        raise StoreError(f"{path} holds no row: nothing was measured into it")
    records = {record.run_id: record} if record else _known_records(store, {row.run_id for row in rows})
    return Source(f"file {path}", tuple(rows), records, tuple(notes))


def _of_folder(path: Path) -> Source:
    reader = Store(path)
    runs = reader.runs()
    source = _of_runs(reader, [reader.resolve(LATEST)], f"store {path}")
    if len(runs) > 1:
        note = f"store {path}: of its {len(runs)} runs the latest was taken, {source.run_ids[-1]}"
        source = replace(source, notes=(*source.notes, note))
    return source


def _of_run(text: str, store: Path) -> Source | None:
    reader = Store(store)
    try:
        run_id = reader.resolve(text)
    except UsageError:
        if text == LATEST:
            raise
        return None
    return _of_runs(reader, [run_id], f"run {run_id}")


def _of_ref(text: str, store: Path, repository: Path | None, without: frozenset[str]) -> Source | None:
    commit = resolve_commit(text, repository)
    if commit is None:
        return None
    reader = Store(store)
    of_commit = [(run.run_id, git) for run in reader.runs() for git in [git_of(run.record)] if git["commit"] == commit]
    clean = [run_id for run_id, git in of_commit if not git["dirty"] and run_id not in without]
    if not clean:
        changed = sum(git["dirty"] for _, git in of_commit)
        dirty = f"; {changed} run(s) of a changed working tree at it do not count" if changed else ""
        which = "no other run" if len(of_commit) > changed else "no run"
        raise UsageError(
            f"{which} of {text} (commit {commit[:12]}) is in {store}{dirty}; measure it with `bench run` in a clean"
            " checkout of it, or compare with --interleave"
        )
    return _of_runs(reader, clean, f"{text} (commit {commit[:12]})")


def git_of(record: RunRecord) -> dict[str, Any]:
    """Commit and whether the tree was changed, as a run's record has it; empty and True where it has none."""
    git = (record.fingerprint.get("volatile") or {}).get("git") or {}
    return {"commit": str(git.get("commit", "")), "dirty": bool(git.get("dirty", True))}


def _of_runs(reader: Store, run_ids: Sequence[str], label: str) -> Source:
    rows = reader.rows(run_ids=run_ids)
    notes = list(reader.torn)
    records = {run_id: reader.record(run_id) for run_id in run_ids}
    for run_id, record in records.items():
        measured = len({(row.suite, row.case) for row in rows if row.run_id == run_id})
        if measured < record.cases:
            notes.append(f"run {run_id} has {measured} of {record.cases} cases: interrupted, or still running")
    if not rows:
        raise StoreError(f"{label} has no row: nothing was measured")
    return Source(label, tuple(rows), records, tuple(notes))


def _known_records(store: Path, run_ids: Iterable[str]) -> dict[str, RunRecord]:
    """The records of those of the runs that the store has too: rows alone do not tell their machine."""
    if not runs_folder(store).is_dir():
        return {}
    known = {run.run_id: run.record for run in Store(store).runs()}
    return {run_id: known[run_id] for run_id in run_ids if run_id in known}
