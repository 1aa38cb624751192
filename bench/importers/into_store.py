"""Takes a file into a store as a run of its own, once: its content, not its name, tells whether it is there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.bounded_file import read_bounded, read_bounded_stream
from bench.errors import StoreError, UsageError
from bench.importers import importer
from bench.importers.contents import Source, quoted
from bench.importers.pooling import pool
from bench.importers.recognition import refusal
from bench.store.row import RunRecord, utc_now
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.definitions import Better
    from bench.importers.contents import Contents
    from bench.store.row import Row, Value

PRESET = "imported"
"""In the place of a run's preset, by which its record is known."""
PLAN_KEY = "imported"
STANDARD_INPUT = "-"
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}")
PATIENCE_S = 10.0
"""How long an import of the same file by another process is waited for."""
PAUSE_S = 0.05


@dataclass(frozen=True)
class Wishes:
    """What the user tells beside the files.

    Attributes:
        params: added to every row.
        better: the direction, by metric, of numbers whose files do not tell it.
        machine: a name for the machine that the files come from; empty for what the files tell.
        here: whether that is this machine; it is then fingerprinted.
        commit: of the code that was measured; empty for what the files tell.
    """

    params: Mapping[str, Value] = field(default_factory=dict)
    better: Mapping[str, Better] = field(default_factory=dict)
    machine: str = ""
    here: bool = False
    commit: str = ""

    def __post_init__(self) -> None:
        if self.machine and self.here:
            raise UsageError("--machine and --here both tell where the files come from; give one of them")
        if self.commit and not _COMMIT.fullmatch(self.commit):
            raise UsageError(f"--commit takes 7 to 40 hexadecimal digits, as git prints them, not {self.commit!r}")

    def key(self) -> str:
        """Text that differs where wishes change the rows or the series that they belong to; a commit does neither."""
        parts = [sorted(self.params.items()), sorted(self.better.items()), self.machine, self.here]
        return json.dumps(parts, default=str)


@dataclass
class Imported:
    """What became of a file.

    Attributes:
        source: the file.
        contents: what was found in it.
        rows: with run and number, whether they were stored now or before.
        run_id: of the run that has them; empty if there is none, for there was no row.
        added: whether rows were stored now.
    """

    source: Source
    contents: Contents
    rows: list[Row] = field(default_factory=list)
    run_id: str = ""
    added: bool = False

    @property
    def is_whole(self) -> bool:
        """False if something in the file could not be read, or was not measured."""
        bad = any(row.status in ("failed", "timeout", "invalid") for row in self.rows)
        return not bad and not self.contents.faults


def read_source(name: str, data: bytes, params: Mapping[str, Value]) -> Source:
    """The text of a file; UTF-16, which PowerShell writes, is told by its first bytes. Nothing else is refused."""
    path = None if name == STANDARD_INPUT else Path(name)
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return Source(name, data.decode(encoding, errors="replace"), path, params)


def import_file(
    tool: str, name: str, data: bytes, wishes: Wishes, store: Path, command: Sequence[str], known: dict[str, str]
) -> Imported:
    """Read a file, and store its rows if they are not there yet.

    Args:
        tool: whose output it is.
        name: of the file, or ``-``.
        data: its bytes.
        command: the arguments after ``bench``, for the run's record.
        known: run ids by digest, of the runs that were imported before (``imported_runs``); this one is added.

    Raises:
        UsageError: no such tool.
        StoreError: the store cannot be written.
    """
    source = read_source(name, data, wishes.params)
    contents, rows = read_rows(tool, source)
    key = _effective(tool, source, rows, wishes).key()
    for row in rows:
        _apply(wishes, row)
    result = Imported(source, contents, rows)
    if not rows:
        return result
    digest = hashlib.sha256(b"\0".join((tool.encode(), key.encode(), data))).hexdigest()
    if digest in known:
        result.run_id = known[digest]
        result.rows, result.added = _stored(store, result.run_id, rows)
        if wishes.commit:
            contents.note("--commit changes nothing of a run that is there")
        return result
    record = _record(tool, source, contents, wishes, digest, rows, command)
    result.run_id = record.run_id
    try:
        with RunWriter(store, record) as writer:
            result.added = True
            writer.append(rows)
            writer.seal()
    except StoreError:
        if result.added or not _written_by_another(store, digest):
            raise
        result.rows, result.added = _stored(store, result.run_id, rows)
    known[digest] = record.run_id
    return result


def read_rows(tool: str, source: Source) -> tuple[Contents, list[Row]]:
    """What a file holds, and its rows before the user's wishes; nothing of it if it is another tool's.

    Raises:
        UsageError: no such tool.
    """
    read = importer(tool)
    contents = refusal(tool, source) or read(source)
    return contents, pool(contents)


def _effective(tool: str, source: Source, rows: Sequence[Row], wishes: Wishes) -> Wishes:
    """The wishes without parameters and directions that change no row of the file."""
    cases = [row.params for row in rows]
    params = {}
    for name, value in wishes.params.items():
        adds = any(name not in case for case in cases)
        if not adds:
            # An importer may have taken it for what the file does not tell.
            others = {other: wishes.params[other] for other in wishes.params if other != name}
            adds = [row.params for row in read_rows(tool, replace(source, options=others))[1]] != cases
        if adds:
            params[name] = value
    undirected = {row.metric for row in rows if row.better == "unknown"}
    better = {metric: value for metric, value in wishes.better.items() if metric in undirected}
    return replace(wishes, params=params, better=better)


def _written_by_another(store: Path, digest: str) -> bool:
    """Whether another process imports the same file, or just did; waits until it is done, or gone."""
    from bench.store.reader import Store

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        states = [run.state for run in Store(store).runs() if _digest(run.record) == digest]
        if "open" not in states and states:
            return True
        time.sleep(PAUSE_S)
    return False


def imported_runs(store: Path) -> dict[str, str]:
    """The runs of a store that were imported, by the digest of what they were made from."""
    from bench.store.reader import Store

    records = [run.record for run in Store(store).runs() if run.record.preset == PRESET]
    return {digest: record.run_id for record in records if (digest := _digest(record))}


def _digest(record: RunRecord) -> str:
    told = record.plan.get(PLAN_KEY)
    return str(told.get("digest", "")) if isinstance(told, dict) else ""


def _stored(store: Path, run_id: str, rows: list[Row]) -> tuple[list[Row], bool]:
    """The rows of a run that was imported before, and whether it needed completing: an import may have died."""
    from bench.store.reader import Store

    reader = Store(store)
    there, record = reader.rows([run_id]), reader.record(run_id)
    if len(there) >= record.plan[PLAN_KEY]["rows"] or len(rows) != record.plan[PLAN_KEY]["rows"]:
        return there, False
    for row in rows:
        row.started_at = row.started_at or record.started_at
    with RunWriter.reopen(store, run_id) as writer:
        writer.append(rows[len(there) :])
        writer.seal()
    return reader.rows([run_id]), True


def _apply(wishes: Wishes, row: Row) -> None:
    """Give a row what the user tells. What the file has for a parameter stays, if the user names another."""
    from bench.suite import Case

    row.params = {**wishes.params, **row.params}
    row.case = Case(row.params).id
    if row.better == "unknown" and row.metric in wishes.better:
        row.better = wishes.better[row.metric]


def _record(
    tool: str,
    source: Source,
    contents: Contents,
    wishes: Wishes,
    digest: str,
    rows: list[Row],
    command: Sequence[str],
) -> RunRecord:
    started_at = contents.started_at or _changed_at(source.path)
    for row in rows:
        row.started_at = row.started_at or started_at
    moment = datetime.fromisoformat(started_at)
    return RunRecord(
        # Like any run's id it sorts by start; the digest makes two imports of one file at once collide.
        run_id=f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}-{digest[:8]}",
        started_at=started_at,
        command=list(command),
        suites=[tool],
        preset=PRESET,
        seed=0,
        fingerprint=_fingerprint(tool, contents, wishes, digest, started_at),
        plan={PLAN_KEY: {"tool": tool, "file": source.name, "digest": digest, "rows": len(rows)}},
        cases=len({row.case for row in rows}),
    )


def _changed_at(path: Path | None) -> str:
    """When the file was last changed; now for standard input."""
    try:
        changed = path.stat().st_mtime if path else None
    except OSError:
        changed = None
    return utc_now() if changed is None else datetime.fromtimestamp(changed, UTC).isoformat(timespec="milliseconds")


def _fingerprint(tool: str, contents: Contents, wishes: Wishes, digest: str, started_at: str) -> dict[str, Any]:
    """Where the file's numbers come from. A machine that nobody names is like no other, not even itself."""
    identity = {"source": tool, **contents.identity}
    volatile: dict[str, Any] = {"at": started_at, **contents.volatile, "git": None}
    if wishes.here:
        from bench.environment import fingerprint

        here = fingerprint()
        identity |= {"here": here["identity"]}
        volatile = {**here["volatile"], **volatile, "git": here["volatile"].get("git")}
    elif wishes.machine:
        identity["machine"] = wishes.machine
    elif not contents.tells_machine:
        identity["machine"] = f"unknown, file {digest[:12]}"
    told = contents.commit if _COMMIT.fullmatch(contents.commit) else ""
    if contents.commit and not told:
        contents.note(f"the file's commit is no commit's id and is left out: {quoted(contents.commit)}")
    if commit := wishes.commit or told:
        volatile["git"] = {"commit": commit, "dirty": contents.dirty and not wishes.commit}
    # Through JSON, so that a fingerprint equals itself after a visit to the store.
    plain: dict[str, Any] = json.loads(
        json.dumps({"identity": identity, "volatile": volatile}, default=str), parse_constant=str
    )
    return plain


def read_bytes(name: str) -> bytes:
    """The bytes of a file, or of standard input.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if name == STANDARD_INPUT:
            with os.fdopen(0, "rb", closefd=False) as stream:
                return read_bounded_stream(stream)
        return read_bounded(Path(name))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {ascii(name)[1:-1]}: {cause}") from None
