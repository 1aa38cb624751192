"""SIGKILL between any two calls that change files: every row stays, and readers see it once."""

from __future__ import annotations

import itertools
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

Die = Callable[[int, Callable[[], Any]], Any] if TYPE_CHECKING else Any
SIGKILLED = -9


def _contents(store: Path) -> list[str]:
    return [row.to_json() for row in Store(store).rows()]


def _each_death(tmp_path: Path, prepare: Callable[[Path], None], action: Callable[[Path], Any], die: Die) -> list[Path]:
    """Stores that were prepared and then acted on by a process that died one call later each time."""
    stores = []
    for n in itertools.count():
        store = tmp_path / f"store-{n}"
        prepare(store)
        ended = die(n, lambda store=store: action(store))
        if ended.status != SIGKILLED:
            assert ended.status == 0
            return stores
        stores.append(store)
    raise AssertionError("not reached")


def test_appending(tmp_path: Path, runs: Any, die_before_call: Die) -> None:
    rows = runs.rows(8)

    def write(store: Path) -> None:
        with RunWriter(store, runs.record()) as writer:
            writer.append(rows[:4])
            writer.append(rows[4:])

    stores = _each_death(tmp_path, lambda store: None, write, die_before_call)
    counts = [len(_contents(store)) for store in stores]
    # Each row comes with the write before its flush; the kernel keeps what was written when a process dies.
    assert counts == sorted(counts)
    assert set(counts) == {0, 4, 8}


def test_sealing(tmp_path: Path, runs: Any, die_before_call: Die) -> None:
    ids = {}

    def prepare(store: Path) -> None:
        ids[store] = runs.orphan(store, n=8)

    def seal(store: Path) -> None:
        with RunWriter.reopen(store, ids[store]) as writer:
            writer.append(runs.rows(4))
            writer.seal()

    stores = _each_death(tmp_path, prepare, seal, die_before_call)
    assert len(stores) > 8
    for store in stores:
        rows = Store(store).rows()
        assert [row.row_id for row in rows] in (list(range(8)), list(range(12)))
        assert verify(store).faults == []
        contents = _contents(store)
        # Whatever was left, resuming and compacting bring it in order again.
        with RunWriter.reopen(store, ids[store]) as writer:
            writer.append(runs.rows(4))
            writer.seal()
        compact(store)
        report = verify(store)
        assert (report.faults, [note for note in report.notes if "no header" not in note]) == ([], [])
        assert _contents(store)[:-4] == contents


def test_compacting(tmp_path: Path, runs: Any, die_before_call: Die) -> None:
    before = {}

    def prepare(store: Path) -> None:
        for seed in range(2):
            runs.write(store, n=4, seed=seed)
        compact(store)
        runs.write(store, n=4, seed=2)
        orphan = runs.orphan(store, n=4, seed=3)
        twin = runs.orphan(store, n=4, seed=4)
        _leave_twin(store, twin)
        (runs_folder(store) / f"{orphan}.jsonl").open("a").write('{"torn')
        before[store] = _contents(store)

    stores = _each_death(tmp_path, prepare, compact, die_before_call)
    assert len(stores) > 15
    for store in stores:
        assert _contents(store) == before[store]
        assert verify(store).faults == []
        compact(store)
        assert _contents(store) == before[store]
        report = verify(store)
        assert (report.files, report.faults, report.notes) == (1, [], [])


def test_merging(tmp_path: Path, runs: Any, die_before_call: Die) -> None:
    other = tmp_path / "other"
    shared = runs.write(other, n=4)
    runs.orphan(other, n=4, seed=1)
    (other / "stacks").mkdir()
    (other / "stacks" / f"{shared}-1.txt").write_text("stack")
    theirs = _contents(other)
    ours = {}

    def prepare(store: Path) -> None:
        runs.write(store, n=4, seed=2)
        ours[store] = _contents(store)

    stores = _each_death(tmp_path, prepare, lambda store: merge(store, other), die_before_call)
    assert len(stores) > 4
    for store in stores:
        assert _contents(store) in (ours[store], sorted(ours[store] + theirs))
        merge(store, other)
        assert sorted(_contents(store)) == sorted(ours[store] + theirs)
        assert verify(store).faults == []
        assert (store / "stacks" / f"{shared}-1.txt").read_text() == "stack"
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
