"""Several ranks' traces in one file, on rank 0's clock, for chrome://tracing and Perfetto."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError, UsageError
from bench.trace.kineto import MERGED_RANKS, read_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FLOW_PHASES = ("s", "t", "f")
SORT_STEP = 1000


@dataclass(frozen=True)
class RankClock:
    """How a rank's trace reads on rank 0's monotonic clock.

    Attributes:
        shift_us: what to add to the trace's times, microseconds.
        error_us: by how much that may be off: half the width of the tightest anchor, half of what the
            two ends of the trace disagree by, and the error of the offset between hosts.
    """

    shift_us: float
    error_us: float


@dataclass(frozen=True)
class RankTrace:
    """One rank's trace, and what is known of its clock.

    Attributes:
        rank: its number.
        path: the trace.
        anchors: of each anchoring event, the rank's monotonic clock before and after it began, ns.
        offset_ns: what to subtract from the rank's monotonic clock to read rank 0's.
        error_ns: by how much that may be off.
    """

    rank: int
    path: Path
    anchors: Mapping[str, tuple[int, int]]
    offset_ns: float = 0.0
    error_ns: float = 0.0


def merge_traces(ranks: Sequence[RankTrace], target: Path) -> dict[int, RankClock]:
    """Write one trace of all ranks; returns each rank's clock.

    Processes are renumbered and called ``rank 3: ...``; arrows between events stay within their rank.

    Raises:
        UsageError: a trace cannot be read, or has none of its anchors.
        StoreError: the merged one cannot be written.
    """
    documents = {rank.rank: read_document(rank.path) for rank in ranks}
    clocks = {rank.rank: rank_clock(rank, documents[rank.rank]["traceEvents"]) for rank in ranks}
    events: list[dict[str, Any]] = []
    processes: list[dict[str, Any]] = []
    for rank in ranks:
        found, pids = _renumbered(rank.rank, documents[rank.rank]["traceEvents"], _next_pid(processes))
        for event in found:
            if "ts" in event:
                event["ts"] = float(event["ts"]) + clocks[rank.rank].shift_us
        events += found
        processes.append({"rank": rank.rank, "pids": pids})
    zero = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - zero, 3)
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        MERGED_RANKS: processes,
        "benchClocks": {
            str(rank): {"shift_us": clock.shift_us - zero, "error_us": clock.error_us} for rank, clock in clocks.items()
        },
        "traceEvents": events,
    }
    try:
        with gzip.open(target, "wt", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror}; choose another folder with --output") from error
    return clocks


def rank_clock(rank: RankTrace, events: Sequence[Any]) -> RankClock:
    """Where a rank's clock stands in its trace, from the tightest anchor at either end.

    Raises:
        UsageError: the trace has none of the anchors.
    """
    readings = []
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X" and event.get("name") in rank.anchors:
            before, after = rank.anchors[event["name"]]
            started = float(event["ts"])
            readings.append((started, (before + after) / 2000 - started, (after - before) / 2000))
    if not readings:
        raise UsageError(f"{rank.path}: has none of the marks that tell where the rank's clock stands")
    readings.sort()
    middle = (readings[0][0] + readings[-1][0]) / 2
    ends = [[r for r in readings if r[0] <= middle], [r for r in readings if r[0] > middle]]
    best = [min(end, key=lambda reading: reading[2]) for end in ends if end]
    shifts = [shift for _, shift, _ in best]
    error_us = max(width for _, _, width in best) + (max(shifts) - min(shifts)) / 2 + rank.error_ns / 1000
    return RankClock(sum(shifts) / len(shifts) - rank.offset_ns / 1000, error_us)


def _next_pid(processes: Sequence[Mapping[str, Any]]) -> int:
    return max((pid for entry in processes for pid in entry["pids"]), default=-1) + 1


def _renumbered(rank: int, events: Sequence[Any], first: int) -> tuple[list[dict[str, Any]], list[int]]:
    """A rank's events with processes of its own, from number ``first`` on, and those numbers.

    Processes without events are left out: a trace of one GPU names all eight.
    """
    usable = [dict(event) for event in events if isinstance(event, dict)]
    alive = dict.fromkeys(_key(event.get("pid")) for event in usable if event.get("ph") != "M")
    pids = {key: first + place for place, key in enumerate(alive)}
    names: dict[int, str] = {}
    labels: dict[int, str] = {}
    kept = []
    for event in usable:
        key = _key(event.get("pid"))
        if key not in pids:
            continue
        event["pid"] = pids[key]
        if event.get("ph") in FLOW_PHASES:
            event["id"] = f"{rank}.{event.get('id')}"
        if event.get("ph") == "M" and event.get("name") in ("process_name", "process_labels", "process_sort_index"):
            args = event.get("args")
            text = str(next(iter(args.values()), "")) if isinstance(args, dict) else ""
            if event["name"] == "process_name":
                names[event["pid"]] = text
            elif event["name"] == "process_labels":
                labels[event["pid"]] = text
            continue
        kept.append(event)
    for place, (key, pid) in enumerate(pids.items()):
        what = " ".join(text for text in (labels.get(pid, ""), names.get(pid, "")) if text) or str(key[1])
        kept += [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {rank}: {what}"}},
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": rank * SORT_STEP + place}},
        ]
    return kept, list(pids.values())


def _key(pid: object) -> tuple[str, str]:
    """A process as the file names it: 0 and "0" are two."""
    return type(pid).__name__, str(pid)
