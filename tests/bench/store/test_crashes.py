"""SIGKILL between any two calls that change files: every row stays, and readers see it once."""

from __future__ import annotations

import functools
import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError
from bench.store.compact import compact
from bench.store.layout import runs_folder
from bench.store.merge import merge
from bench.store.reader import Store
from bench.store.verify import verify
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIGKILLED = -9


def _contents(store: Path) -> list[str]:
    return [row.to_json() for row in Store(store).rows()]


def _each_death(template: Path, action: Callable[[Path], Any], die: Any) -> list[Path]:
    """Copies of a store that were acted on by a process that died one call later each time."""
    stores = []
    for n in itertools.count():
        store = template.with_name(f"store-{n}")
        shutil.copytree(template, store)
        ended = die(n, functools.partial(action, store))
        if ended.status != SIGKILLED:
            assert ended.status == 0
            return stores
        stores.append(store)
    raise AssertionError("not reached")


def test_appending(store: Path, runs: Any, die_before_call: Any) -> None:
    rows = runs.rows(8)
    store.mkdir()

    def write(copy: Path) -> None:
        with RunWriter(copy, runs.record()) as writer:
            writer.append(rows[:4])
            writer.append(rows[4:])

    counts = [len(_contents(copy)) for copy in _each_death(store, write, die_before_call)]
    # Each row comes with the write before its flush; the kernel keeps what was written when a process dies.
    assert counts == sorted(counts)
    assert set(counts) == {0, 4, 8}


def test_sealing(store: Path, runs: Any, die_before_call: Any) -> None:
    run_id = runs.orphan(store, n=8)

    def resume(copy: Path) -> None:
        with RunWriter.reopen(copy, run_id) as writer:
            writer.append(runs.rows(4))
            writer.seal()

    copies = _each_death(store, resume, die_before_call)
    assert len(copies) > 8
    for copy in copies:
        contents = _contents(copy)
        assert contents[:8] == _contents(store)
        assert len(contents) in (8, 12)
        assert verify(copy).faults == []
        # Whatever was left, resuming and compacting bring it in order again.
        resume(copy)
        compact(copy)
        assert _contents(copy)[:-4] == contents
        report = verify(copy)
        assert (report.faults, [note for note in report.notes if "no header" not in note]) == ([], [])


def test_compacting(store: Path, runs: Any, die_before_call: Any) -> None:
    for seed in range(2):
        runs.write(store, n=4, seed=seed)
    compact(store)
    runs.write(store, n=4, seed=2)
    orphan, twin = runs.orphan(store, n=4, seed=3), runs.orphan(store, n=4, seed=4)
    _leave_twin(store, twin)
    with (runs_folder(store) / f"{orphan}.jsonl").open("a") as file:
        file.write('{"torn')
    before = _contents(store)
    assert len(before) == 20

    copies = _each_death(store, compact, die_before_call)
    assert len(copies) > 15
    for copy in copies:
        assert _contents(copy) == before
        assert verify(copy).faults == []
        compact(copy)
        assert _contents(copy) == before
        report = verify(copy)
        assert (report.files, report.faults, report.notes) == (1, [], [])


def test_merging(store: Path, tmp_path: Path, runs: Any, die_before_call: Any) -> None:
    other = tmp_path / "other"
    shared = runs.write(other, n=4)
    runs.orphan(other, n=4, seed=1)
    (other / "stacks").mkdir()
    (other / "stacks" / f"{shared}-1.txt").write_text("stack")
    runs.write(store, n=4, seed=2)
    theirs, ours = _contents(other), _contents(store)

    copies = _each_death(store, lambda copy: merge(copy, other), die_before_call)
    assert len(copies) > 4
    for copy in copies:
        assert sorted(_contents(copy)) in (ours, sorted(ours + theirs))
        merge(copy, other)
        assert sorted(_contents(copy)) == sorted(ours + theirs)
        assert verify(copy).faults == []
        assert (copy / "stacks" / f"{shared}-1.txt").read_text() == "stack"
        assert _contents(other) == theirs


def _leave_twin(store: Path, run_id: str) -> None:
    """As if its writer had died between putting the Parquet file in place and removing the lines."""
    from bench.store.seal import seal_part

    lines = runs_folder(store) / f"{run_id}.jsonl"
    text = lines.read_text()
    seal_part(lines)
    lines.write_text(text)


def test_lines_that_differ_from_their_sealed_twin_are_kept(store: Path, runs: Any) -> None:
    run_id = runs.orphan(store, n=4)
    _leave_twin(store, run_id)
    lines = runs_folder(store) / f"{run_id}.jsonl"
    lines.write_text(lines.read_text().replace('"seed":0,"started_at"', '"seed":7,"started_at"'))
    with pytest.raises(StoreError, match="holds other rows than"):
        compact(store)
    assert lines.exists()
    (fault,) = verify(store).faults
    assert "they differ first in row 0" in fault
