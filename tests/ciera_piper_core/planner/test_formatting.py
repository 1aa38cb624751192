"""Numbers for people: GB and GiB are what they say, digits are kept."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.planner.formatting import both, gb, gib, percent, seconds, significant


@given(st.integers(0, 10**14))
def test_units_are_never_mixed(count: int) -> None:
    decimal, binary = gb(count), gib(count)
    assert decimal.endswith(" GB")
    assert float(decimal.split()[0]) * 1e9 == pytest.approx(count, abs=0.0051e9)
    assert binary.endswith(" GiB")
    assert float(binary.split()[0]) * 2**30 == pytest.approx(count, abs=0.0051 * 2**30)
    assert both(count) == f"{decimal} ({binary})"


@given(st.floats(1e-7, 1e5))
def test_seconds_are_in_the_unit_that_shows_them(value: float) -> None:
    number, unit = seconds(value).replace(",", "").split()
    assert float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] == pytest.approx(value, rel=0.006)


def test_digits() -> None:
    assert significant(1234.5) == "1,234"
    assert significant(0.012345) == "0.0123"
    assert significant(0) == "0"
    assert percent(0.2451) == "24.5 %"
    assert re.fullmatch(r"87\.4 s", seconds(87.4047))
