"""A file becomes a run, once; its record says where the numbers come from."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from bench.environment import identity_digest
from bench.errors import UsageError
from bench.importers import IMPORTERS, importer
from bench.importers.into_store import Imported, Wishes, import_file, imported_runs, read_source
from bench.store.layout import runs_folder
from bench.store.reader import Store
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from pathlib import Path


def hyperfine(*medians: float) -> bytes:
    results = [{"command": f"c{n}", "median": value, "times": [value]} for n, value in enumerate(medians)]
    return json.dumps({"results": results}).encode()


def take(store: Path, data: bytes, tool: str = "hyperfine", name: str = "-", **wishes: Any) -> Imported:
    return import_file(tool, name, data, Wishes(**wishes), store, ["import"], imported_runs(store))


def test_rows_are_stored_under_a_run_that_names_the_file(tmp_path: Path) -> None:
    result = take(tmp_path, hyperfine(1.0, 2.0), commit="abcdef1")
    reader = Store(tmp_path)
    assert result.added
    assert [row.to_dict() for row in reader.rows()] == [row.to_dict() for row in result.rows]
    record = reader.record(result.run_id)
    assert (record.preset, record.suites, record.cases) == ("imported", ["hyperfine"], 2)
    assert record.plan["imported"]["tool"] == "hyperfine"
    assert record.fingerprint["volatile"]["git"] == {"commit": "abcdef1", "dirty": False}
    assert [run.state for run in reader.runs()] == ["sealed"]


def test_a_second_import_adds_nothing_whatever_the_file_is_called(tmp_path: Path) -> None:
    first = take(tmp_path, hyperfine(1.0))
    again = take(tmp_path, hyperfine(1.0), name="elsewhere.json")
    assert not again.added
    assert again.run_id == first.run_id
    assert [row.to_json() for row in again.rows] == [row.to_json() for row in first.rows]
    assert len(Store(tmp_path).rows()) == 1
    assert take(tmp_path, hyperfine(1.5)).added


def test_two_imports_of_one_file_at_once_make_one_run(tmp_path: Path) -> None:
    """Both found the store without it; the file's own date makes their run ids collide."""
    entry = {"name": "a", "stats": {"median": 1.0, "rounds": 3}}
    data = json.dumps({"datetime": "2026-05-06T07:08:09", "benchmarks": [entry]}).encode()
    with ThreadPoolExecutor() as pool:
        stale = [
            pool.submit(import_file, "pytest-benchmark", "-", data, Wishes(), tmp_path, ["import"], {})
            for _ in range(2)
        ]
        results = [future.result() for future in stale]
    assert sorted(result.added for result in results) == [False, True]
    assert len(Store(tmp_path).rows()) == 1
    assert [row.to_json() for row in results[0].rows] == [row.to_json() for row in results[1].rows]


def test_the_same_file_with_other_wishes_is_another_run(tmp_path: Path) -> None:
    take(tmp_path, hyperfine(1.0))
    assert take(tmp_path, hyperfine(1.0), params={"host": "x"}).added
    assert len(Store(tmp_path).runs()) == 2


def test_what_changes_no_row_makes_no_second_run(tmp_path: Path) -> None:
    first = take(tmp_path, hyperfine(1.0))
    for wishes in (
        {"commit": "abcdef1"},
        {"better": {"nosuch": "higher"}},
        {"better": {"duration": "higher"}},
        {"params": {"command": "mine"}},
    ):
        again = take(tmp_path, hyperfine(1.0), **wishes)
        assert (again.added, again.run_id) == (False, first.run_id)
    assert len(Store(tmp_path).rows()) == 1
    assert take(tmp_path, hyperfine(1.0), machine="a").added


def test_a_parameter_that_an_importer_needs_changes_rows(tmp_path: Path) -> None:
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    units = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
    data = (
        f"{head}{units}     1048576        262144     float     sum      -1    100.0   10.49   10.49      0\n".encode()
    )
    runs = {take(tmp_path, data, "nccl-tests", params={"op": op}).run_id for op in ("all_reduce", "broadcast")}
    assert len(runs) == 2


@pytest.mark.parametrize("commit", ["zz;rm", "abc", "a" * 41, "abcdef1\n", "0x12345", "$(reboot)"])
def test_a_commit_is_hexadecimal(commit: str) -> None:
    with pytest.raises(UsageError, match="7 to 40 hexadecimal"):
        Wishes(commit=commit)
    assert Wishes(commit="1a2B3c4").commit == "1a2B3c4"


def test_a_commit_in_a_file_that_is_none_is_left_out(tmp_path: Path) -> None:
    entry = {"name": "a", "stats": {"median": 1.0, "rounds": 3}}
    data = json.dumps({"commit_info": {"id": "zz;rm"}, "benchmarks": [entry]}).encode()
    result = take(tmp_path, data, "pytest-benchmark")
    assert Store(tmp_path).record(result.run_id).fingerprint["volatile"]["git"] is None
    assert any("no commit's id" in note for note in result.contents.notes)


def test_an_import_that_died_is_completed(tmp_path: Path) -> None:
    whole = take(tmp_path / "whole", hyperfine(1.0, 2.0))
    record = Store(tmp_path / "whole").record(whole.run_id)
    with RunWriter(tmp_path / "died", record) as writer:
        writer.append(Store(tmp_path / "whole").rows()[:1])
        writer.seal()
    assert take(tmp_path / "died", hyperfine(1.0, 2.0)).added
    assert [r.to_json() for r in Store(tmp_path / "died").rows()] == [r.to_json() for r in whole.rows]


def test_a_machine_that_nobody_names_is_like_no_other(tmp_path: Path) -> None:
    def digest(data: bytes, **wishes: Any) -> str:
        return identity_digest(Store(tmp_path).record(take(tmp_path, data, **wishes).run_id).fingerprint)

    assert digest(hyperfine(1.0)) != digest(hyperfine(2.0))
    assert digest(hyperfine(1.0), machine="a") == digest(hyperfine(2.0), machine="a")
    assert digest(hyperfine(1.0), machine="a") != digest(hyperfine(1.0), machine="b")
    assert digest(hyperfine(1.0), here=True) == digest(hyperfine(2.0), here=True)
    with pytest.raises(UsageError, match="give one of them"):
        Wishes(machine="a", here=True)


def test_what_the_user_tells_joins_the_rows_and_never_replaces_the_file(tmp_path: Path) -> None:
    rows = take(tmp_path, hyperfine(1.0), params={"ranks": 4, "command": "mine"}).rows
    assert rows[0].params == {"ranks": 4, "command": "c0"}
    assert rows[0].case == "command=c0,ranks=4"


def test_a_direction_is_told_for_a_counter_only(tmp_path: Path) -> None:
    entry = {"name": "B", "real_time": 1, "cpu_time": 1, "time_unit": "ns", "hits": 3}
    data = json.dumps({"benchmarks": [entry]}).encode()
    rows = take(tmp_path, data, "google-benchmark", better={"hits": "higher", "real_time": "higher"}).rows
    assert {row.metric: row.better for row in rows} == {"real_time": "lower", "cpu_time": "lower", "hits": "higher"}


def test_a_run_sorts_by_the_time_in_its_file(tmp_path: Path) -> None:
    entry = {"name": "a", "stats": {"median": 1.0, "rounds": 3}}
    for year in (2024, 2020):
        document = {"datetime": f"{year}-05-06T07:08:09.123", "version": "5", "benchmarks": [entry]}
        take(tmp_path, json.dumps(document).encode(), "pytest-benchmark")
    runs = Store(tmp_path).runs()
    assert [run.run_id[:18] for run in runs] == ["20200506T070809123", "20240506T070809123"]


def test_nothing_to_store_makes_no_run(tmp_path: Path) -> None:
    result = take(tmp_path, b"nothing")
    assert (result.rows, result.run_id, result.is_whole) == ([], "", False)
    assert not runs_folder(tmp_path).exists()


@pytest.mark.parametrize("data", [b"\xff\xfe" + "hello".encode("utf-16-le"), b"hello", b"hell\xf3"])
def test_any_bytes_are_text(data: bytes) -> None:
    assert read_source("-", data, {}).text.startswith("hell")


def test_every_tool_has_an_importer() -> None:
    assert all(callable(importer(tool)) for tool in IMPORTERS)
    with pytest.raises(UsageError, match="did you mean hyperfine"):
        importer("hyperfin")
