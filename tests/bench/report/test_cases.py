"""Rows gathered into cases: what belongs together, what varies, status, order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from bench.definitions import BUSBW, LATENCY
from bench.measure.sampling import StopReason
from bench.report.cases import count_by_status, gather, is_emulated, is_settled, value_order
from tests.bench.report.sample_rows import row, sample_rows

if TYPE_CHECKING:
    from bench.store.row import Status


def test_a_case_holds_all_of_its_metrics() -> None:
    params = {"bytes": 1024}
    [suite] = gather([row(params, "latency", LATENCY, value=2.0), row(params, "busbw", BUSBW, value=1.0)])
    [case] = suite.cases
    assert list(case.rows) == ["latency", "busbw"]
    assert [(metric.name, metric.unit, metric.better) for metric in suite.metrics] == [
        ("latency", "us", "lower"),
        ("busbw", "GB/s", "higher"),
    ]


def test_what_varies_is_told_from_what_all_share() -> None:
    rows = [
        row({"bytes": 1024, "dtype": "float32", "flag": True}, "latency", LATENCY, value=1.0),
        row({"bytes": 2048, "dtype": "float32", "flag": 1, "lab": "x"}, "latency", LATENCY, value=1.0),
    ]
    [suite] = gather(rows)
    assert suite.varying == ["bytes", "flag", "lab"]
    assert suite.fixed == {"dtype": "float32"}


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = sample_rows()
    shuffled = rows.copy()
    random.Random(3).shuffle(shuffled)
    for one in gather(rows):
        [other] = [suite for suite in gather(shuffled) if suite.name == one.name]
        assert [case.case for case in one.cases] == [case.case for case in other.cases]


def test_cases_are_sorted_by_value_not_text() -> None:
    [suite] = gather([row({"bytes": size}, "latency", LATENCY, value=1.0) for size in (4096, 65536, 1024)])
    assert [case.params["bytes"] for case in suite.cases] == [1024, 4096, 65536]
    assert sorted(["b", 3, None, 1.5, "a"], key=value_order) == [None, 1.5, 3, "a", "b"]


def test_runs_and_method_versions_become_parameters_only_where_they_tell_cases_apart() -> None:
    params = {"bytes": 1024}
    apart = [row({"bytes": size}, "latency", LATENCY, value=1.0, run_id=f"run{size}") for size in (1, 2)]
    assert gather(apart)[0].varying == ["bytes"]
    again = [row(params, "latency", LATENCY, value=1.0, run_id=run_id) for run_id in ("a", "b")]
    assert gather(again)[0].varying == ["run_id"]
    changed = [row(params, "latency", LATENCY, value=1.0, method_version=version) for version in (1, 2)]
    assert gather(changed)[0].varying == ["method_version"]
    assert "method_version" not in changed[0].params


def test_a_metric_that_comes_twice_starts_another_record() -> None:
    rows = [row({"bytes": 1}, "latency", LATENCY, value=value) for value in (1.0, 2.0)]
    assert [case.rows["latency"].value for case in gather(rows)[0].cases] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("ok", "ok"), "ok"),
        (("ok", "skipped"), "ok"),
        (("skipped", "skipped"), "skipped"),
        (("ok", "invalid"), "invalid"),
        (("timeout", "failed"), "failed"),
    ],
)
def test_status_of_a_case(statuses: tuple[Status, Status], expected: Status) -> None:
    rows = [
        row({}, name, LATENCY, value=1.0 if status == "ok" else None, status=status, reason=status)
        for name, status in zip(("first", "second"), statuses, strict=True)
    ]
    for made in rows:
        if made.status == "ok":
            made.reason = ""
    [case] = gather(rows)[0].cases
    assert case.status == expected
    assert case.reason == ("" if expected == "ok" else expected)
    assert count_by_status([case])[expected] == 1


@pytest.mark.parametrize("reason", [*StopReason, "", "iterations of another tool"])
def test_unsettled_is_what_ran_out(reason: str) -> None:
    made = row({}, "latency", LATENCY, value=1.0, stop_reason=str(reason))
    unsettled = (StopReason.MAX_TIME, StopReason.MAX_SAMPLES, StopReason.ROUNDS_DIFFER)
    assert is_settled(made) == (reason not in unsettled)
    [case] = gather([made])[0].cases
    assert case.settled == is_settled(made)


def test_wrong_elements_are_the_most_of_any_row() -> None:
    rows = [row({}, name, LATENCY, value=1.0) for name in ("a", "b", "c")]
    rows[0].wrong, rows[1].wrong, rows[2].wrong = None, 7, 0
    assert gather(rows)[0].cases[0].wrong == 7
    rows[1].wrong = rows[2].wrong = None
    assert gather(rows)[0].cases[0].wrong is None


def test_emulated_by_scope_or_by_shape() -> None:
    assert is_emulated({"scope": "lab"})
    assert is_emulated({"lab": "nodes=2"})
    assert not is_emulated({"scope": "node", "lab": ""})
