"""What a word of the command line stands for: runs, refs, files and folders, whole or half written."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError, UsageError
from bench.gate_sources import load_source, read_rows_file, resolve_commit
from bench.store.layout import runs_folder
from bench.store.reader import Store
from tests.bench.gate_rows import row, samples_of, store_run

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = samples_of(100.0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits; the first is tagged v1."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    git(folder, "tag", "v1")
    git(folder, "commit", "-q", "--allow-empty", "-m", "two")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def rows_file(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{found.to_json()}\n" for found in rows))
    return path


def test_a_run_by_id_prefix_or_latest(store: Path) -> None:
    first = store_run(store, [row(SAMPLES)])
    second = store_run(store, [row(SAMPLES), row(SAMPLES, metric="algbw")])
    assert load_source(first, store).run_ids == (first,)
    assert load_source("latest", store).run_ids == (second,)
    assert load_source(f"run:{second[:-1]}", store).run_ids == (second,)
    both = load_source(f"{first}, latest,{first}", store)
    assert both.run_ids == (first, second)
    assert len(both.rows) == 3, "each row once"
    assert both.identity(first) == both.identity(second) != None  # noqa: E711


def test_a_ref_stands_for_its_clean_runs(store: Path, repository: Path) -> None:
    commit = resolve_commit("v1", repository)
    runs = [store_run(store, [row(SAMPLES)], commit=commit) for _ in range(2)]
    store_run(store, [row(SAMPLES)], commit=commit, dirty=True)
    assert load_source("v1", store, repository).run_ids == tuple(runs)
    assert load_source(f"ref:{commit}", store, repository).run_ids == tuple(runs)
    with pytest.raises(UsageError, match=r"no run of main .* measure it with `bench run`"):
        load_source("main", store, repository)


def test_a_ref_does_not_stand_for_the_other_sides_runs(store: Path, repository: Path) -> None:
    """The same commit was measured twice, to see that nothing changes."""
    one, other = (store_run(store, [row(SAMPLES)], commit=resolve_commit("v1", repository)) for _ in range(2))
    assert load_source("v1", store, repository, without=frozenset({other})).run_ids == (one,)
    with pytest.raises(UsageError, match="no other run of v1"):
        load_source("v1", store, repository, without=frozenset({one, other}))


def test_runs_of_a_changed_tree_do_not_count_and_are_said(store: Path, repository: Path) -> None:
    store_run(store, [row(SAMPLES)], commit=resolve_commit("v1", repository), dirty=True)
    with pytest.raises(UsageError, match=r"1 run\(s\) of a changed working tree at it do not count"):
        load_source("v1", store, repository)


@pytest.mark.parametrize("ref", ["--help", "-x", "$(touch pwned)", "a b", "\x00", "ünknown", "HEAD:file"])
def test_hostile_refs_are_refused(store: Path, repository: Path, ref: str) -> None:
    store_run(store, [row(SAMPLES)])
    with pytest.raises(UsageError, match="is neither a file, nor a run"):
        load_source(ref, store, repository)


def test_the_start_of_several_runs_is_said(store: Path) -> None:
    for _ in range(2):
        store_run(store, [row(SAMPLES)])
    with pytest.raises(UsageError, match="'20' is the start of 2 runs"):
        load_source("20", store)


@pytest.mark.parametrize("text", ["", ",", "latest,,latest"])
def test_no_word_is_refused(store: Path, text: str) -> None:
    with pytest.raises(UsageError, match="names no run, ref or file"):
        load_source(text, store)


def test_a_file_of_rows_is_on_the_machine_that_the_store_knows(store: Path, tmp_path: Path) -> None:
    run_id = store_run(store, [row(SAMPLES)])
    path = rows_file(tmp_path / "rows.jsonl", Store(store).rows())
    assert load_source(str(path), store).identity(run_id)
    assert load_source(str(path), tmp_path / "elsewhere").identity(run_id) is None


def test_a_runs_own_file_tells_its_machine(store: Path, tmp_path: Path) -> None:
    run_id = store_run(store, [row(SAMPLES)], seal=False)
    (path,) = runs_folder(store).iterdir()
    assert load_source(str(path), tmp_path / "elsewhere").identity(run_id)


def test_a_torn_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "rows.jsonl", [row(SAMPLES)])
    with path.open("a") as file:
        file.write(row(SAMPLES).to_json()[:50])
    rows, _, notes = read_rows_file(path)
    assert len(rows) == 1
    assert notes == [f"{path}: the last line is torn and was dropped; 1 whole row(s) before it"]


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", "{}", '{"run_id": 1}', '{"value": NaN}', "\xff", '{"schema_version": 99, "run_id": "x"}']
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n" + row(SAMPLES).to_json().encode() + b"\n")
    with pytest.raises(StoreError, match=r"rows.jsonl:1: "):
        read_rows_file(path)


def test_rows_of_an_older_schema_are_read(tmp_path: Path) -> None:
    record = row(SAMPLES).to_dict()
    del record["rounds"]
    path = tmp_path / "rows.jsonl"
    path.write_text(__import__("json").dumps(record) + "\n")
    assert read_rows_file(path)[0] == [row(SAMPLES)]


def test_an_empty_file_was_not_measured(tmp_path: Path, store: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(StoreError, match="holds no row"):
        load_source(str(tmp_path / "rows.jsonl"), store)


def test_a_store_folder_stands_for_its_latest_run(store: Path, tmp_path: Path) -> None:
    store_run(store, [row(SAMPLES)])
    last = store_run(store, [row(SAMPLES)])
    found = load_source(str(store), tmp_path / "other")
    assert found.run_ids == (last,)
    assert found.notes == (f"store {store}: of its 2 runs the latest was taken, {last}",)


def test_a_folder_that_is_no_store_is_not_meant(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch may have the name of a folder."""
    (tmp_path / "main").mkdir()
    monkeypatch.chdir(tmp_path)
    store_run(store, [row(SAMPLES)])
    with pytest.raises(UsageError, match="'main' is neither"):
        load_source("main", store)


def test_a_half_written_run_is_used_as_far_as_it_goes_and_said(store: Path) -> None:
    run_id = store_run(
        store,
        [row(SAMPLES)],
        seal=False,
        cases=5,
    )
    (path,) = runs_folder(store).iterdir()
    with path.open("a") as file:
        file.write('{"run_id": "torn')
    found = load_source("latest", store)
    assert len(found.rows) == 1
    assert f"run {run_id} has 1 of 5 cases: interrupted, or still running" in found.notes
