"""asv's result files of versions 1 and 2, with and without the description of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.importers.asv import method_version

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).resolve().parents[2] / "data" / "imports" / "asv"
NEW = "new/m1/2e7ab5b0-existing-py3.11.json"
OLD = "old/cheetah/fcf8c079-py2.7-Cython-numpy1.8.json"


def test_version_2_parameters_samples_and_kinds(read: Callable) -> None:
    found = read("asv", NEW)
    assert found.faults == []
    row = found.of("duration", benchmark="b.Sums.time_sum", n=10, kind="list")
    assert (row.n, len(row.samples), row.unit, row.better) == (6, 6, "s", "lower")
    assert row.value == pytest.approx(5.659998805640498e-07)
    assert found.of("duration", benchmark="b.Sums.time_sum", n=1000, kind="tuple").status == "skipped"
    assert found.of("duration", benchmark="b.time_fails").status == "failed"
    assert found.of("peak_memory", n=10, kind="list").unit == "B"
    assert found.of("memory").value == 2096
    tracked = found.of("value")
    assert (tracked.value, tracked.better, tracked.params["unit"]) == (42, "unknown", "MB")
    assert row.started_at > found.contents.started_at, "a run is dated by its commit, a row by its own start"


def test_machine_environment_and_commit(read: Callable) -> None:
    contents = read("asv", NEW).contents
    assert contents.commit == "2e7ab5b00d39ad5457c96b3c291ac3fdd85162d3"
    assert contents.identity["machine"] == "m1"
    assert contents.tells_machine


def test_another_version_of_a_benchmark_is_another_series() -> None:
    assert method_version("1") == 1
    assert method_version(None) == 1
    assert method_version("8a84") != method_version("8a85")
    assert 0 <= method_version("ffff" * 16) < 2**53
    assert method_version("²") != 2


def test_version_1_scalars_null_nan_and_products(read: Callable) -> None:
    found = read("asv", OLD)
    # Of a benchmark without a kind in its name only benchmarks.json could tell.
    assert [what for _, what in found.faults] == []
    assert found.of("duration", benchmark="time_AAA_failure").status == "failed"
    assert found.of("duration", benchmark="time_AAA_skip").status == "skipped"
    assert found.of("duration", benchmark="time_coordinates.time_latitude").status == "failed"
    assert found.of("duration", benchmark="time_quantity.time_quantity_init_array").value == 0.10822079181671143
    assert found.of("memory", benchmark="time_units.mem_unit").value == 344
    cases = [row for row in found.rows if row.params["benchmark"] == "time_other.time_parameterized"]
    assert [(row.value, row.status) for row in cases] == [(1, "ok"), (4, "ok"), (None, "failed")]
    assert found.of("duration", benchmark="time_with_version_mismatch_other").method_version == 2


def test_without_the_description_names_tell(read: Callable) -> None:
    found = read("asv", text=(DATA / NEW).read_text())
    assert found.of("duration", param1=10, param2="list").n == 6
    assert "unit" not in found.of("value").params


def test_files_beside_the_results_are_told_apart(read: Callable) -> None:
    for name in ("new/m1/machine.json", "new/benchmarks.json"):
        found = read("asv", name)
        assert (found.rows, found.faults) == ([], [])
        assert found.contents.notes


@pytest.mark.parametrize(
    ("results", "what"),
    [
        ({"time_x": [[1, 2], [["1"]]]}, "2 results for 1 cases"),
        ({"time_x": 3}, "is 3"),
        ({"x.what": [[1], []]}, "nothing says what"),
        ({}, "is empty"),
    ],
)
def test_what_cannot_be_read_is_reported(read: Callable, results: object, what: str) -> None:
    document = {"commit_hash": "a", "params": {}, "result_columns": ["result", "params"], "results": results}
    found = read("asv", text=json.dumps(document))
    assert what in found.faults[0][1]
    assert found.rows == []


def test_a_failure_before_the_parameters_fails_every_case(read: Callable) -> None:
    document = {"params": {}, "result_columns": ["result", "params"], "results": {"time_x": [None, [["1", "2"]]]}}
    assert [row.status for row in read("asv", text=json.dumps(document)).rows] == ["failed", "failed"]
