"""Tests of measured exchanges, read from rows, runs and profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.selftest import synthetic_record
from bench.store.compact import compact
from bench.store.row import Row
from bench.store.writer import RunWriter
from ciera_piper_core.simulate.measured_cells import Cell, cells_of_rows, read_cells

DATA = Path(__file__).resolve().parents[2] / "data"
PROFILE = DATA / "platform_profile_cpu.json"
LAB = "nodes=4,ranks-per-node=2,rate=400mbit"


def row(value: float | None = 1500.0, number: int = 0, **changes: Any) -> dict[str, Any]:
    """A latency row of the suite; what is no field of a row is a parameter."""
    params = {
        "op": "all_to_all",
        "algorithm": "halo_v1",
        "ranks": 8,
        "nodes": 4,
        "traffic": "uniform",
        "dtype": "bfloat16",
        "bytes": 1 << 20,
        "device": "cpu",
        "scope": "lab",
        "backend": "gloo",
        "lab": LAB,
    }
    fields = {
        "run_id": "r1",
        "row_id": number,
        "suite": "alltoall",
        "method_version": 1,
        "metric": "latency",
        "unit": "us",
        "better": "lower",
        "definition": "latency/slowest-rank-v1",
        "value": value,
        "status": "ok",
        "reason": "",
    }
    for name, change in changes.items():
        (fields if name in (*fields, "wrong") else params)[name] = change
    params = {name: each for name, each in params.items() if each is not None}
    return {**fields, "case": ",".join(f"{name}={each}" for name, each in sorted(params.items())), "params": params}


CELL = Cell("halo_v1", 8, 4, 1 << 20, 1.5e-3)


def test_a_row_is_a_cell_in_seconds() -> None:
    found = cells_of_rows([row()], "here")
    assert found.cells == (CELL,)
    assert found.lab == LAB
    assert found.place == {"device": "cpu", "backend": "gloo", "lab": LAB}
    assert found.skipped == {}


def test_parameters_may_be_text_as_a_store_keeps_them() -> None:
    text = row()
    text["params"] = json.dumps(text["params"])
    assert cells_of_rows([text], "here").cells == (CELL,)


def test_a_cell_that_was_measured_more_than_once_is_its_median() -> None:
    assert cells_of_rows([row(900), row(1500), row(9000)], "here").cells == (CELL,)


def test_the_seed_counts_for_skewed_traffic_alone() -> None:
    rows = [row(seed=1), row(seed=2), row(traffic="zipf", seed=1), row(traffic="zipf", seed=2)]
    assert [(cell.traffic, cell.seed) for cell in cells_of_rows(rows, "here").cells] == [
        ("uniform", 0),
        ("zipf", 1),
        ("zipf", 2),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "dedup"}, "the simulator does not know the algorithm dedup"),
        ({"algorithm": "auto"}, "the simulator does not know the algorithm auto"),
        ({"op": "dispatch", "algorithm": "flat"}, "the simulator does not know the operation dispatch"),
        ({"traffic": "rotating_hot_rank"}, "the matrix of rotating_hot_rank traffic is not known from its row"),
        ({"traffic": "replay:a.json"}, "the matrix of replay traffic is not known from its row"),
        ({"status": "timeout", "value": None}, "status timeout"),
        ({"wrong": 3}, "its data arrived wrong"),
        ({"scope": "simulated"}, "it was simulated"),
        ({"unit": "GB/s"}, "unit GB/s"),
        ({"nodes": None}, "it does not say its nodes"),
        ({"ranks": 1}, "nothing was exchanged"),
    ],
)
def test_other_rows_are_left_out_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    assert cells_of_rows([row(), row(**changes)], "here").skipped == {reason: 1}
    with pytest.raises(ValueError, match="here: no measured row of the suite alltoall"):
        cells_of_rows([row(**changes)], "here")


def test_other_suites_and_metrics_do_not_count() -> None:
    rows = [row(), row(suite="collectives"), row(metric="algbw")]
    assert cells_of_rows(rows, "here").skipped == {}


def test_rows_of_two_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of different places .*rate=1gbit.*give a run of one"):
        cells_of_rows([row(), row(lab="nodes=4,ranks-per-node=2,rate=1gbit")], "here")


def test_uneven_ranks_are_on_full_nodes_but_the_last() -> None:
    job = Cell("flat", 7, 3, 1 << 20, 1e-3).job()
    np.testing.assert_array_equal(job.ranks_of_node, [3, 3, 1])


@pytest.mark.parametrize(
    "values", [("flat", 1, 1, 1, 1.0), ("flat", 2, 3, 1, 1.0), ("flat", 2, 1, 0, 1.0), ("flat", 2, 1, 1, 0.0)]
)
def test_impossible_cells_are_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="a cell needs"):
        Cell(*values)


def test_a_file_of_rows_may_end_in_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(row()) + "\n\n" + json.dumps(row(number=1))[:50], encoding="utf-8")
    assert read_cells(str(file)).cells == (CELL,)


def test_a_file_that_is_torn_elsewhere_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text("{\n" + json.dumps(row()) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.json: line 1 is not JSON"):
        read_cells(str(file))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="cannot be read"):
        read_cells(str(file))


def stored(store: Path, seed: int, *, seal: bool) -> str:
    """A run of one row in the store; its id."""
    record = synthetic_record(seed)
    with RunWriter(store, record) as writer:
        writer.append([Row.from_dict({**row(1000.0 + seed), "run_id": record.run_id})])
        if seal:
            writer.seal()
    return record.run_id


@pytest.mark.parametrize("seal", [True, False])
def test_a_run_of_a_store_is_read_by_its_id_and_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seal: bool
) -> None:
    first, second = stored(tmp_path, 1, seal=seal), stored(tmp_path, 2, seal=seal)
    monkeypatch.setenv("BENCH_STORE", str(tmp_path))
    assert read_cells(first).cells[0].seconds == pytest.approx(1001e-6)
    assert read_cells(second).source == f"run {second}"
    assert read_cells("latest").source == f"run {max(first, second)}"
    (file,) = (each for each in (tmp_path / "runs").iterdir() if each.name.startswith(second))
    assert read_cells(str(file)).cells[0].seconds == pytest.approx(1002e-6)


def test_a_run_in_a_file_of_several_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = stored(tmp_path, 1, seal=True), stored(tmp_path, 2, seal=True)
    compact(tmp_path)
    monkeypatch.setenv("BENCH_STORE", str(tmp_path))
    assert [read_cells(each).cells[0].seconds for each in (first, second)] == pytest.approx([1001e-6, 1002e-6])


def test_a_run_that_is_not_there_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_STORE", str(tmp_path))
    for name in ("latest", "20200101T000000000-00000000"):
        with pytest.raises(ValueError, match=r"neither a file nor a run of the suite alltoall.*bench db list"):
            read_cells(name)


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"other\.parquet: cannot be read as a sealed run"):
        read_cells(str(file))


def test_a_profile_has_its_curves_as_cells(tmp_path: Path) -> None:
    record = json.loads(PROFILE.read_text(encoding="utf-8"))
    curves = [curve for curve in record["collectives"] if curve["suite"] == "alltoall"]
    even = [curve for curve in curves if curve["traffic"] == "uniform"]
    (tmp_path / "profile.json").write_text(PROFILE.read_text(encoding="utf-8"), encoding="utf-8")
    found = read_cells(str(tmp_path))
    expected = {(each["ranks"], point["bytes"]) for each in even for point in each["points"]}
    assert {(cell.ranks, cell.bytes) for cell in found.cells if cell.traffic == "uniform"} == expected
    cell = next(each for each in found.cells if each.traffic == "uniform")
    same = [
        point["latency_us"] * 1e-6
        for each in even
        for point in each["points"]
        if (each["ranks"], each["nodes"], point["bytes"]) == (cell.ranks, cell.nodes, cell.bytes)
    ]
    assert cell.seconds == pytest.approx(float(np.median(same)))


def test_json_that_is_neither_rows_nor_a_profile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"collectives": [{"suite": "alltoall"}]}', encoding="utf-8")
    with pytest.raises(ValueError, match="no profile of `bench characterize`"):
        read_cells(str(file))
