"""Merging: everything or nothing, and the same again changes nothing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError, UsageError
from bench.store.layout import runs_folder
from bench.store.merge import merge
from bench.store.reader import Store
from bench.store.verify import verify
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "other"


def _contents(store: Path) -> list[str]:
    return sorted(row.to_json() for row in Store(store).rows())


def _files(store: Path) -> list[str]:
    return sorted(os.listdir(runs_folder(store)))


def test_runs_that_are_missing_are_taken_once(store: Path, other: Path, runs: Any) -> None:
    mine, theirs = runs.write(store, n=4), [runs.write(other, n=4, seed=seed) for seed in (1, 2)]
    expected = sorted(_contents(store) + _contents(other))
    first = merge(store, other)
    assert (first.taken, first.present, first.unfinished) == (sorted(theirs), [], {})
    assert _contents(store) == expected
    files = _files(store)
    second = merge(store, other)
    assert (second.taken, second.present) == ([], theirs)
    assert _files(store) == files
    assert [run.run_id for run in Store(store).runs()] == [mine, *theirs]
    for run_id in theirs:
        assert Store(store).record(run_id) == Store(other).record(run_id)
    assert verify(store).faults == []


def test_into_a_store_that_is_not_there_yet(store: Path, other: Path, runs: Any) -> None:
    runs.write(other, n=4)
    merge(store, other)
    assert _contents(store) == _contents(other)


def test_there_and_back(store: Path, other: Path, runs: Any) -> None:
    runs.write(store, n=4)
    runs.write(other, n=4, seed=1)
    merge(store, other)
    merge(other, store)
    assert _contents(store) == _contents(other)
    assert (merge(store, other).taken, merge(other, store).taken) == ([], [])


def test_what_a_run_has_more_than_last_time_is_taken(store: Path, other: Path, runs: Any) -> None:
    orphan = runs.orphan(other, n=4)
    with (runs_folder(other) / f"{orphan}.jsonl").open("a") as file:
        file.write('{"torn')
    with RunWriter(other, runs.record(1)) as writer:
        writer.append(runs.rows(4, seed=1))
        report = merge(store, other)
        assert report.unfinished == {orphan: "orphaned", writer.record.run_id: "open"}
        assert len(report.torn) == 1
        assert _contents(store) == _contents(other)
        writer.append(runs.rows(4, seed=2))
        writer.seal()
    with RunWriter.reopen(other, orphan) as writer:
        writer.append(runs.rows(4, seed=3))
        writer.seal()
    assert len(merge(store, other).taken) == 2
    assert _contents(store) == _contents(other)
    assert len(_contents(store)) == 16
    assert verify(store).faults == []


def test_what_this_store_has_more_is_kept(store: Path, other: Path, runs: Any) -> None:
    run_id = runs.write(store, n=4)
    shutil.copytree(store, other)
    with RunWriter.reopen(store, run_id) as writer:
        writer.append(runs.rows(4))
        writer.seal()
    before = _contents(store)
    assert merge(store, other).taken == []
    assert _contents(store) == before


@pytest.mark.parametrize("seal", [True, False])
def test_a_run_that_differs_stops_the_whole_merge(store: Path, other: Path, runs: Any, seal: bool) -> None:
    same = runs.write(store, n=4)
    differing = runs.orphan(store, n=4, seed=1)
    shutil.copytree(store, other)
    runs.write(other, n=4, seed=2)
    lines = runs_folder(other) / f"{differing}.jsonl"
    lines.write_text(lines.read_text().replace('"warmup":3', '"warmup":5', 2).replace('"warmup":5', '"warmup":3', 1))
    if seal:
        with RunWriter.reopen(other, differing) as writer:
            writer.seal()
    before, files = _contents(store), _files(store)
    with pytest.raises(StoreError, match=rf"run {differing} differs .*first in row 1\); nothing was merged"):
        merge(store, other)
    assert (_contents(store), _files(store)) == (before, files)
    assert same not in differing


def test_a_record_that_differs_stops_the_whole_merge(store: Path, other: Path, runs: Any) -> None:
    run_id = runs.foreign(store, n=4)
    shutil.copytree(store, other)
    lines = runs_folder(other) / f"{run_id}.jsonl"
    lines.write_text(lines.read_text().replace('"preset": "quick"', '"preset": "full"'))
    with pytest.raises(StoreError, match=f"run {run_id} differs .*their records differ"):
        merge(store, other)


def test_a_folder_that_is_no_store_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a store"):
        merge(store, tmp_path)


def test_stacks_come_along(store: Path, other: Path, runs: Any) -> None:
    run_id = runs.write(other, n=4)
    (other / "stacks").mkdir()
    (other / "stacks" / f"{run_id}-1.txt").write_text("rank 0")
    (other / "stacks" / "another-1.txt").write_text("")
    merge(store, other)
    assert os.listdir(store / "stacks") == [f"{run_id}-1.txt"]
    assert (store / "stacks" / f"{run_id}-1.txt").read_text() == "rank 0"
