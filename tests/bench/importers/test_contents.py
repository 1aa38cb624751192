"""Numbers, parameters and dates of other tools as a row can hold them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.importers.contents import (
    Contents,
    as_int,
    as_number,
    line_ranges,
    plain_value,
    quoted,
    utc,
    utc_of_milliseconds,
)
from bench.importers.definitions import OTHER_VALUE


@pytest.mark.parametrize(
    ("value", "number"),
    [("1.5", 1.5), (2, 2.0), ("nan", None), ("inf", None), (True, None), (None, None), ("1_0x", None), ([], None)],
)
def test_numbers(value: object, number: float | None) -> None:
    assert as_number(value) == number


@pytest.mark.parametrize(
    ("value", "number"),
    [("9007199254740993", 9007199254740993), (7.0, 7), ("7.5", None), (2**63, None), (True, None), ("1e3", 1000)],
)
def test_whole_numbers(value: object, number: int | None) -> None:
    assert as_int(value) == number


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()))
def test_any_value_can_be_a_parameter_and_any_number_a_row(value: object) -> None:
    contents = Contents("tool")
    contents.add("metric", OTHER_VALUE, {"p": value}, value)
    (row,) = contents.rows
    row.to_json()
    assert (row.status == "ok") == (as_number(value) is not None)
    assert isinstance(plain_value(value), (bool, int, float, str))


def test_a_sample_that_is_no_number_fails_the_row() -> None:
    contents = Contents("tool")
    contents.add("metric", OTHER_VALUE, {}, 1.0, samples=[1.0, math.nan])
    assert contents.rows[0].status == "failed"


def test_dates() -> None:
    assert utc("2026-01-02 03:04:05") == "2026-01-02T03:04:05.000+00:00"
    assert utc("2026-01-02T03:04:05+02:00") == "2026-01-02T01:04:05.000+00:00"
    assert utc("soon") == utc(None) == utc_of_milliseconds("x") == utc_of_milliseconds(1e30) == ""
    assert utc_of_milliseconds(1367127519000) == "2013-04-28T05:38:39.000+00:00"


def test_quotes_are_short_and_act_on_no_terminal() -> None:
    assert quoted("\x1b[31m\u202ex") == "'\\x1b[31m\\u202ex'"
    assert len(quoted("x" * 1000)) < 70


def test_line_ranges() -> None:
    assert line_ranges([7]) == "line 7"
    assert line_ranges([3, 9, 10, 11]) == "line 3, 9-11"
    assert line_ranges([1, 3, 5, 7]) == "4 lines between 1 and 7"
