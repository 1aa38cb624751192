"""pytest-benchmark's JSON of 2.5 to 5.3, with and without the data."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("version", ["3.4.1", "5.3.1"])
def test_data_are_samples(read: Callable, version: str) -> None:
    found = read("pytest-benchmark", f"{version}_data.json")
    assert found.faults == []
    row = found.of("duration", benchmark="test_x.py::test_sum[10]")
    assert (row.n, len(row.samples), row.params["n"], row.unit, row.better) == (6, 6, 10, "s", "lower")
    assert row.value == median(row.samples)
    identity = found.contents.identity
    assert identity["harness"] == f"pytest-benchmark {version}"
    assert identity["cpu"]["model"] == "AMD EPYC"
    assert "host" not in str(identity)
    assert found.contents.volatile["host"] == "host"
    assert len(found.contents.commit) == 40
    assert found.contents.started_at.startswith("2026-11-30T18:04:")


def test_without_data_the_median_of_the_rounds(read: Callable) -> None:
    found = read("pytest-benchmark", "2.5.0_no_data.json")
    row = found.of("duration")
    assert (row.value, row.n, row.samples) == (2.2016643907464864e-07, 9987, [])
    assert found.contents.dirty
    assert any("--benchmark-save-data" in note for note in found.contents.notes)


def test_an_own_parameter_never_replaces_ours(read: Callable) -> None:
    text = '{"benchmarks": [{"name": "a", "params": {"benchmark": 3, "x": [1]}, "stats": {"median": 1, "rounds": 2}}]}'
    row = read("pytest-benchmark", text=text).of("duration")
    assert row.params == {"benchmark": "a", "param_benchmark": 3, "x": "[1]"}


@pytest.mark.parametrize(
    "stats", ["null", '{"median": null}', '{"median": NaN}', '{"median": Infinity}', '{"median": "x"}']
)
def test_a_benchmark_without_a_number_failed(read: Callable, stats: str) -> None:
    found = read("pytest-benchmark", text=f'{{"benchmarks": [{{"name": "a", "stats": {stats}}}]}}')
    assert [row.status for row in found.rows] == ["failed"]


@pytest.mark.parametrize("text", ["{}", '{"benchmarks": []}', '{"benchmarks": [3, {}]}'])
def test_files_without_a_benchmark(read: Callable, text: str) -> None:
    assert read("pytest-benchmark", text=text).faults


@pytest.mark.parametrize(
    ("data", "median", "status"),
    [([1.0, -1.0], 1.0, "failed"), ([1.0, None], 1.0, "failed"), ([None], 1.0, "ok"), ([None], 0.0, "failed")],
)
def test_impossible_samples_are_no_measurement(read: Callable, data: list[object], median: float, status: str) -> None:
    entry = {"name": "a", "stats": {"data": data, "median": median, "rounds": len(data)}}
    row = read("pytest-benchmark", text=json.dumps({"benchmarks": [entry]})).of("duration")
    assert (row.status, bool(row.reason)) == (status, status == "failed")
