"""Rows and run records as text: exact, strict, and refusing what cannot be."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
import pytest

from bench.errors import StoreError
from bench.store.row import FLOAT_FIELDS, INT_FIELDS, SCHEMA_VERSION, Row, RunRecord, new_run_id


@pytest.fixture
def row(runs: Any) -> Row:
    (one,) = runs.rows(1)
    return one


def test_a_line_parses_back_to_the_row(row: Row) -> None:
    assert Row.from_dict(json.loads(row.to_json())) == row


def test_numbers_are_written_in_the_type_of_their_field(row: Row) -> None:
    row.value, row.samples, row.n, row.wrong = 3, [1, 2], np.int64(2), np.int64(0)
    row.params = {"flag": True, "n": 1, "x": 1.0}
    record = json.loads(row.to_json())
    assert [type(record[name]) for name in ("value", "n", "wrong")] == [float, int, int]
    assert [type(sample) for sample in record["samples"]] == [float, float]
    assert [type(value) for value in record["params"].values()] == [bool, int, float]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"samples": [float("nan")]}, "not JSON compliant"),
        ({"rank_max": float("inf")}, "not JSON compliant"),
        ({"value": float("nan")}, "an ok row needs a finite value"),
        ({"value": None}, "an ok row needs a finite value"),
        ({"status": "failed"}, "needs a reason"),
        ({"status": "lost"}, "unknown status 'lost'"),
        ({"seed": 2**63}, "more than 64 bits"),
        ({"n": 7, "rounds": [3, 3]}, "rounds of 6 samples in all, but n is 7"),
        ({"n": 2.5}, "cannot be interpreted as an integer"),
        ({"params": {"shape": np.zeros(2)}}, "not JSON serializable"),
    ],
)
def test_a_row_that_cannot_be_is_not_written(row: Row, changes: dict[str, Any], why: str) -> None:
    for name, value in changes.items():
        setattr(row, name, value)
    with pytest.raises(ValueError, match=f"collectives latency of .* cannot be stored: .*{why}"):
        row.to_json()


def test_half_a_surrogate_pair_becomes_a_question_mark_and_all_else_stays(row: Row) -> None:
    undecodable = b"caf\xe9".decode(errors="surrogateescape")
    failed = replace(row, status="failed", reason=f"{undecodable} \U0001f600 é \\udc00", value=None)
    assert json.loads(failed.to_json())["reason"] == "caf? \U0001f600 é \\udc00"


@pytest.mark.parametrize("change", [{"status": "lost"}, {"unknown": 1}, {"value": None}, {"value": "fast"}])
def test_a_line_that_is_no_row_is_refused(row: Row, change: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=f"not a row of schema {SCHEMA_VERSION}"):
        Row.from_dict(json.loads(row.to_json()) | change)


def test_every_number_field_is_converted() -> None:
    declared = {field.name: str(field.type) for field in fields(Row)}
    assert {name for name, kind in declared.items() if kind.startswith("int")} == set(INT_FIELDS)
    assert {name for name, kind in declared.items() if kind.startswith("float")} == set(FLOAT_FIELDS)


def test_fields_without_a_default_stay_those_of_schema_1() -> None:
    """A field that is added later needs a default, so that older files can be read."""
    assert _required(Row) == [
        *("run_id", "row_id", "suite", "method_version", "case", "params"),
        *("metric", "unit", "better", "definition"),
    ]
    assert _required(RunRecord) == ["run_id", "started_at", "command", "suites", "preset", "seed"]


def test_a_record_parses_back_without_what_it_does_not_know(runs: Any) -> None:
    record: RunRecord = runs.record()
    assert RunRecord.from_dict(record.to_dict() | {"more": 1}) == record


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({}, "not the header of a run"),
        ([], "not the header of a run"),
        ({"run_id": "a", "schema_version": 1}, "not the header of a run: .*started_at"),
        ({"run_id": "a", "schema_version": SCHEMA_VERSION + 1}, "is newer than this program's"),
    ],
)
def test_what_is_no_header_is_refused(header: Any, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        RunRecord.from_dict(header)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run_id": 5}, "run_id needs a text, not 5"),
        ({"started_at": None}, "started_at needs a text, not None"),
        ({"suites": [1]}, r"suites needs a list of texts, not \[1\]"),
        ({"command": "run"}, "command needs a list of texts, not 'run'"),
        ({"cases": "3"}, "cases needs a whole number, not '3'"),
        ({"cases": True}, "cases needs a whole number, not True"),
        ({"seed": 10**5000, "cases": [10**5000]}, "cases needs a whole number, not a number of thousands of digits"),
        ({"fingerprint": None}, "fingerprint needs an object, not None"),
        ({"fingerprint": {"identity": 3}}, "fingerprint.identity needs an object, not 3"),
        ({"fingerprint": {"volatile": []}}, "fingerprint.volatile needs an object"),
        ({"fingerprint": {"volatile": {"git": "main"}}}, "fingerprint.volatile.git needs an object, not 'main'"),
        ({"schema_version": True}, "not the header of a run"),
    ],
)
def test_a_field_of_another_kind_is_named(runs: Any, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(StoreError, match=why):
        RunRecord.from_dict(runs.record().to_dict() | changes)


@pytest.mark.parametrize("fingerprint", [{}, {"identity": None, "volatile": None}, {"volatile": {"git": None}}])
def test_a_machine_may_be_unknown(runs: Any, fingerprint: dict[str, Any]) -> None:
    assert RunRecord.from_dict(runs.record().to_dict() | {"fingerprint": fingerprint}).fingerprint == fingerprint


def test_a_record_that_cannot_be_json_is_refused(runs: Any) -> None:
    record: RunRecord = runs.record()
    for bad in (float("nan"), object()):
        record.fingerprint = {"volatile": {"load": bad}}
        with pytest.raises(StoreError, match=f"the record of run {record.run_id} cannot be stored"):
            record.to_json()


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert sorted(run_id[:18] for run_id in ids) == [run_id[:18] for run_id in ids]


def _required(kind: type) -> list[str]:
    return [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
