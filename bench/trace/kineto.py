"""Reads trace files of torch's profiler, and says in one line what is wrong with any other file."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

GZIP = b"\x1f\x8b"
MERGED_RANKS = "benchMergedRanks"
"""Key of a merged trace: for each rank its number and its processes (``bench.trace.merge``)."""
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """An event with a beginning and an end.

    Attributes:
        name, category: as in the file; the category in small letters.
        start, end: microseconds on the file's own clock, from its first event.
        pid, tid: process and thread, or device and stream.
        args: as in the file.
    """

    name: str
    category: str
    start: float
    end: float
    pid: object
    tid: object
    args: dict[str, Any]


@dataclass(frozen=True)
class TraceFile:
    """What one rank's trace holds.

    Attributes:
        source: the file.
        rank: from the file, else from its name; None if neither says.
        events: the complete events, by beginning.
        unreadable: complete events without a usable time, which are left out.
    """

    source: str
    rank: int | None
    events: list[Event]
    unreadable: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


def read_document(path: Path) -> dict[str, Any]:
    """The JSON of a trace file, plain or gzipped; a bare list of events becomes ``{"traceEvents": [...]}``.

    Raises:
        UsageError: no such file, cut short, or no trace; one line that names it and says what to do.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if data.startswith(GZIP):
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise UsageError(f"{path}: is cut short (its gzip data has no end); copy it again") from None
        except (OSError, zlib.error) as error:
            raise UsageError(f"{path}: its gzip data is damaged ({error}); copy it again") from None
    try:
        document = json.loads(data)
    except RecursionError:
        raise UsageError(f"{path}: no trace: its JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: no trace: neither JSON nor gzipped JSON; {_HINT}") from None
    except json.JSONDecodeError as error:
        raise UsageError(_json_error(path, data, error)) from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(f"{path}: no trace: JSON without a list traceEvents; {_HINT}")
    return document


_HINT = "give what torch.profiler's export_chrome_trace wrote, or `bench profile SUITE` writes"


def _json_error(path: Path, data: bytes, error: json.JSONDecodeError) -> str:
    if not data.strip():
        return f"{path}: is empty"
    text = error.doc if isinstance(error.doc, str) else ""
    if data.lstrip()[:1] in (b"{", b"[") and error.pos >= len(text.rstrip()) - 1:
        return f"{path}: is cut short (its JSON ends at character {error.pos:,}, in the middle); write or copy it again"
    if "Unterminated string" in error.msg and b'"traceEvents"' in data:
        return f"{path}: is cut short (its JSON ends inside a text); write or copy it again"
    return f"{path}: no trace: not JSON from line {error.lineno}, column {error.colno} on ({error.msg}); {_HINT}"


def read_traces(path: Path) -> list[TraceFile]:
    """The traces in a file: one, or in a merged one each rank's.

    Raises:
        UsageError: as ``read_document``.
    """
    document = read_document(path)
    events, unreadable = _events(document["traceEvents"])
    metadata = {name: value for name, value in document.items() if name != "traceEvents"}
    ranks = _merged_ranks(metadata.get(MERGED_RANKS))
    if ranks is None:
        return [TraceFile(str(path), _rank(metadata, path.name), events, unreadable, metadata)]
    by_rank: dict[int, list[Event]] = {rank: [] for rank in ranks.values()}
    for event in events:
        if isinstance(event.pid, int) and event.pid in ranks:
            by_rank[ranks[event.pid]].append(event)
    return [TraceFile(str(path), rank, found, unreadable, metadata) for rank, found in by_rank.items()]


def _merged_ranks(record: object) -> dict[int, int] | None:
    """Rank of each process of a merged trace, or None for any other file."""
    try:
        return {int(pid): int(entry["rank"]) for entry in record for pid in entry["pids"]}  # type: ignore[attr-defined]
    except (TypeError, KeyError, ValueError):
        return None


def _events(records: list[Any]) -> tuple[list[Event], int]:
    """Complete events by beginning, and how many have no usable time."""
    found: list[tuple[float, float, dict[str, Any]]] = []
    unreadable = 0
    for record in records:
        if not isinstance(record, dict):
            unreadable += 1
            continue
        if record.get("ph") != "X":
            continue
        start, duration = _number(record.get("ts")), _number(record.get("dur", 0))
        if start is None or duration is None or duration < 0:
            unreadable += 1
            continue
        found.append((start, duration, record))
    # From the first on, since microseconds since 1970 leave a float no digits for nanoseconds.
    zero = min((start for start, _, _ in found), default=0.0)
    events = [_event(record, start - zero, duration) for start, duration, record in found]
    events.sort(key=lambda event: event.start)
    return events, unreadable


def _event(record: dict[str, Any], start: float, duration: float) -> Event:
    args = record.get("args")
    return Event(
        str(record.get("name", "")),
        str(record.get("cat", "")).lower(),
        start,
        start + duration,
        _hashable(record.get("pid")),
        _hashable(record.get("tid")),
        args if isinstance(args, dict) else {},
    )


def _hashable(value: object) -> object:
    return value if isinstance(value, int | float | str) else repr(value)


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _rank(metadata: dict[str, Any], name: str) -> int | None:
    distributed = metadata.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None
