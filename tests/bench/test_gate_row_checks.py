"""What a file of rows may say: a wrong field is one line with its place, and never a traceback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import StoreError
from bench.gate_row_checks import check_row
from bench.gate_sources import read_rows_file
from bench.store.row import ROW_FIELDS, Row
from tests.bench.gate_rows import record, row

if TYPE_CHECKING:
    from pathlib import Path

GOOD = row([1.0, 2.0, 3.0], rounds=[1, 2]).to_dict()
HUGE = 10**400
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(HUGE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("samples", [HUGE, 1, 2], "samples[0] needs a finite number, not 1000"),
        ("samples", ["1", 2, 3], "samples[0] needs a finite number, not '1'"),
        ("samples", [True, 2, 3], "samples[0] needs a finite number, not True"),
        ("samples", [[1.0], 2, 3], "samples[0] needs a finite number, not [1.0]"),
        ("samples", [1, float("inf"), 3], "samples[1] needs a finite number, not inf"),
        ("samples", "123", "samples needs a list"),
        ("samples", None, "samples needs a list, not None"),
        ("params", {"a": {"b": 1}}, "params.a needs a text, a finite number, true or false, not {'b': 1}"),
        ("params", {"a": [1]}, "params.a needs a text"),
        ("params", {"a": None}, "params.a needs a text"),
        ("params", [], "params needs an object"),
        ("suite", 5, "suite needs a text, not 5"),
        ("metric", None, "metric needs a text, not None"),
        ("definition", None, "definition needs a text"),
        ("status", [], "status needs a text"),
        ("method_version", [1], "method_version needs a whole number of at most 64 bits, not [1]"),
        ("method_version", True, "method_version needs a whole number"),
        ("row_id", 2**63, "row_id needs a whole number"),
        ("value", HUGE, "value needs a finite number"),
        ("value", "1", "value needs a finite number"),
        ("n", 2, "n is 2, but there are 3 samples"),
        ("n", -1, "n needs a whole number from 0 on"),
        ("rounds", [-1, 4], "rounds[0] needs a whole number from 0 on, not -1"),
        ("rounds", [1, 1], "rounds add up to 2, but n is 3"),
        ("rounds", [1.5, 1.5], "rounds[0] needs a whole number"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(tmp_path: Path, field: str, value: Any, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    if value != [1, float("inf"), 3]:
        path.write_text(f"{json.dumps(GOOD)}\n{json.dumps({**GOOD, field: value})}\n")
    else:
        path.write_text(f"{json.dumps(GOOD)}\n{json.dumps({**GOOD, 'samples': [1, 0.5, 3]}).replace('0.5', '1e999')}\n")
    with pytest.raises(StoreError) as caught:
        read_rows_file(path)
    assert f"{path}:2: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_samples_may_be_left_out_whatever_n_is() -> None:
    check_row({**GOOD, "samples": [], "rounds": [], "n": 7})


@pytest.mark.parametrize("last", [True, False])
def test_deep_nesting_is_no_row_and_no_torn_line(tmp_path: Path, last: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + "[" * 200_000 + ("" if last else "\n"))
    with pytest.raises(StoreError, match=r"rows.jsonl:2: it is nested too deeply"):
        read_rows_file(path)


def test_a_whole_last_line_that_is_wrong_is_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, "suite": 5}))
    with pytest.raises(StoreError, match="suite needs a text"):
        read_rows_file(path)


def test_the_record_of_a_run_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**record().to_dict(), "fingerprint": {"identity": 3}}) + "\n")
    with pytest.raises(StoreError, match=r"rows.jsonl:1: fingerprint.identity needs an object, not 3"):
        read_rows_file(path)


@given(st.sampled_from(ROW_FIELDS), ANY)
def test_any_value_is_refused_or_makes_a_row_that_can_be_stored(field: str, value: Any) -> None:
    changed = {**GOOD, field: value}
    try:
        check_row(changed)
        made = Row.from_dict(changed)
    except StoreError:
        return
    hash((made.suite, made.metric, made.definition, made.unit, made.method_version, tuple(made.params.items())))
    assert Row.from_dict(json.loads(made.to_json())).samples == made.samples
