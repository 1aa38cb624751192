"""Traces of several ranks become one: clocks, processes, arrows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError, UsageError
from bench.trace.breakdown import break_down_files
from bench.trace.kineto import read_document
from bench.trace.merge import RankTrace, merge_traces
from tests.bench.trace.made_up import KNOWN, event, kernel, write

if TYPE_CHECKING:
    from pathlib import Path

ANCHORS = 6


def trace_of_rank(
    folder: Path, rank: int, trace_zero_us: float, clock_zero_ns: float, error_ns: float = 0.0, drift_us: float = 0.0
) -> RankTrace:
    """A rank that has a GPU kernel at 500 us of true time, whose trace and clock began at other times.

    The trace reads true time plus ``trace_zero_us`` (and the drift at its end), the rank's clock true
    time plus ``clock_zero_ns``. Anchors are at the beginning and the end, some of them wide.
    """
    rng = random.Random(rank)
    events: list[dict[str, Any]] = [
        kernel("ncclDevKernel_AllGather(x)", 500 + trace_zero_us, 50, correlation=5),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 0, "tid": 7, "ts": 500 + trace_zero_us},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "a GPU without events"}},
    ]
    anchors = {}
    for number in range(ANCHORS):
        at_us = number if number < ANCHORS / 2 else 1000 + number
        width_ns = 2000 if number % 3 == 1 else rng.randrange(20_000, 90_000)
        started = at_us + trace_zero_us + (drift_us if at_us >= 1000 else 0.0)
        events.append(event("user_annotation", f"anchor{number}", started, 1, 1))
        middle = at_us * 1000 + clock_zero_ns
        anchors[f"anchor{number}"] = (round(middle - width_ns / 2), round(middle + width_ns / 2))
    path = write(folder / f"rank{rank}.json.gz", events, rank)
    return RankTrace(rank, path, anchors, clock_zero_ns, error_ns)


def kernels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in document["traceEvents"] if each.get("cat") == "kernel"]


def test_ranks_meet_on_one_clock(tmp_path: Path) -> None:
    ranks = [
        trace_of_rank(tmp_path, 0, trace_zero_us=5e12, clock_zero_ns=0),
        trace_of_rank(tmp_path, 1, trace_zero_us=-7e6, clock_zero_ns=3e12),
        trace_of_rank(tmp_path, 2, trace_zero_us=123.25, clock_zero_ns=-8e14, error_ns=4000),
    ]
    clocks = merge_traces(ranks, tmp_path / "merged.json.gz")
    document = read_document(tmp_path / "merged.json.gz")
    starts = [each["ts"] for each in kernels(document)]
    assert max(starts) - min(starts) <= sum(clock.error_us for clock in clocks.values())
    assert max(starts) - min(starts) < 1.0
    assert [round(clocks[rank].error_us, 1) for rank in range(3)] == [1.0, 1.0, 5.0]
    assert min(each["ts"] for each in document["traceEvents"] if "ts" in each) == 0


def test_drift_between_the_ends_of_a_trace_counts_as_error(tmp_path: Path) -> None:
    ranks = [trace_of_rank(tmp_path, 0, 0, 0), trace_of_rank(tmp_path, 1, 0, 0, drift_us=30)]
    clocks = merge_traces(ranks, tmp_path / "merged.json.gz")
    assert clocks[0].error_us == pytest.approx(1, abs=0.1)
    assert clocks[1].error_us == pytest.approx(16, abs=0.1)


def test_processes_and_arrows_stay_apart_and_are_named(tmp_path: Path) -> None:
    merge_traces([trace_of_rank(tmp_path, rank, 0, 0) for rank in (0, 1)], tmp_path / "merged.json.gz")
    document = read_document(tmp_path / "merged.json.gz")
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "rank 0: GPU 0 python", 1: "rank 1: GPU 0 python"}
    assert [e["id"] for e in document["traceEvents"] if e["ph"] == "s"] == ["0.5", "1.5"]


def test_a_merged_trace_is_broken_down_by_rank(tmp_path: Path) -> None:
    anchor = event("user_annotation", "anchor", 900, 1, 1)
    ranks = [
        RankTrace(rank, write(tmp_path / f"{rank}.json", [anchor, *KNOWN], rank), {"anchor": (0, 10)})
        for rank in (0, 1)
    ]
    merge_traces(ranks, tmp_path / "merged.json.gz")
    found = break_down_files([tmp_path / "merged.json.gz"])
    assert [(rank.rank, rank.steps[0].compute_us, rank.steps[0].exposed_us) for rank in found] == [
        (0, pytest.approx(40), pytest.approx(25)),
        (1, pytest.approx(40), pytest.approx(25)),
    ]


def test_what_cannot_be_merged_is_said(tmp_path: Path) -> None:
    without = RankTrace(0, write(tmp_path / "a.json", KNOWN), {"anchor": (0, 1)})
    with pytest.raises(UsageError, match="none of the marks"):
        merge_traces([without], tmp_path / "merged.json.gz")
    with pytest.raises(StoreError, match="cannot write"):
        merge_traces([trace_of_rank(tmp_path, 0, 0, 0)], tmp_path / "none" / "merged.json.gz")
