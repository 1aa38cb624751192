"""Numbers, parameters and spreads as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import LATENCY
from bench.report.formatting import counted, number, parameter, parameters, percent, quartiles, spread, unit_sign
from tests.bench.report.sample_rows import row

POSITIVE = st.floats(min_value=1e-9, max_value=1e12)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00012345, "1.23e-04"),
        (0.012345, "0.0123"),
        (1.5, "1.50"),
        (3.0, "3"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (16777217.0, "16,777,217"),
        (-2.5, "-2.50"),
        (math.inf, "inf"),
    ],
)
def test_number_has_three_digits_and_keeps_the_integer_part(value: float, text: str) -> None:
    assert number(value) == text


@given(POSITIVE)
def test_number_is_within_its_digits_of_the_value(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


def test_number_takes_more_digits() -> None:
    assert number(12.34567, digits=5) == "12.346"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 1 << 20, "1MiB"),
        ("working_set_bytes", 3000, "2.93KiB"),
        ("bytes_per_rank", 2048, "2KiB"),
        ("ranks", 1024, "1024"),
        ("alpha", 1.5, "1.5"),
        ("pinned", True, "true"),
        ("bytes", True, "true"),
        ("op", "all_reduce", "all_reduce"),
    ],
)
def test_parameter_shows_sizes_in_binary_units(name: str, value: int | float | str | bool, text: str) -> None:
    assert parameter(name, value) == text


def test_parameters_are_those_asked_for_and_present() -> None:
    params: dict[str, int | float | str | bool] = {"op": "all_reduce", "bytes": 2048, "ranks": 4}
    assert parameters(params) == "op=all_reduce bytes=2KiB ranks=4"
    assert parameters(params, ["ranks", "lab", "op"]) == "ranks=4 op=all_reduce"


@given(st.lists(POSITIVE, min_size=4, max_size=30))
def test_quartiles_enclose_the_middle_half(samples: list[float]) -> None:
    ends = quartiles(samples)
    assert ends is not None
    low, high = ends
    assert min(samples) <= low <= high <= max(samples)
    quarter = (len(samples) - 1) // 4
    assert sum(sample <= low for sample in samples) > quarter
    assert sum(sample >= high for sample in samples) > quarter


def test_quartiles_are_linear_between_samples() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 3.25)
    assert quartiles([1.0, 2.0, 3.0]) is None


def test_spread_is_half_the_interquartile_range_over_the_value() -> None:
    made = row({}, "latency", LATENCY, value=10.0)
    made.samples = [9.0, 9.0, 11.0, 11.0]
    assert spread(made) == pytest.approx(0.1)
    made.value = 0.0
    assert spread(made) is None
    assert spread(row({}, "latency", LATENCY, status="failed", reason="raised")) is None


def test_small_texts() -> None:
    assert [percent(share) for share in (0.004, 0.0994, 0.0996, 1.5)] == ["0.4%", "9.9%", "10%", "150%"]
    assert [counted(count, "case") for count in (0, 1, 1200)] == ["0 cases", "1 case", "1,200 cases"]
    assert counted(2, "entry", "entries") == "2 entries"
    assert [unit_sign(unit) for unit in ("us", "GB/s", "ratio")] == ["µs", "GB/s", ""]
