"""Units, sizes, ranges and the bandwidth definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import (
    ALGBW,
    BUSBW,
    BUSBW_FACTORS,
    DEFINITIONS,
    LATENCY,
    SHARE_OF_BOUND,
    THROUGHPUT,
    Definition,
    Work,
    busbw_factor,
    define,
    format_bytes,
    parse_bit_rate,
    parse_bytes,
    parse_range,
)
from bench.errors import UsageError


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("1KiB", 1024), ("1kb", 1000), ("1MB", 10**6), ("1MiB", 2**20), ("1.5GiB", 3 << 29), (" 2 B ", 2)],
)
def test_sizes_are_read_as_they_are_written(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["1M", "64k", "2G", "1T"])
def test_a_bare_prefix_is_ambiguous_and_the_error_shows_both_readings(text: str) -> None:
    with pytest.raises(UsageError, match=r"ambiguous.*iB.*B"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "-1", "1XB", "1.3B", "0.0001KiB", "1e6", "MiB", "1 M iB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


@given(
    st.integers(0, 2**50) | st.builds(lambda n, shift: n << shift, st.integers(0, 4095), st.sampled_from([0, 10, 20]))
)
def test_shown_sizes_are_exact_or_marked_by_a_decimal_point(count: int) -> None:
    text = format_bytes(count)
    if "." in text:
        assert float(text[:-3]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[text[-3]] == pytest.approx(count, rel=0.01)
    else:
        assert parse_bytes(text) == count


def test_ranges_double_and_end_where_they_say() -> None:
    assert parse_range("2:16") == [2, 4, 8, 16]
    assert parse_range("3:16") == [3, 6, 12, 16]
    assert parse_range("7") == [7]
    assert parse_range("-1") == [-1]
    assert parse_range("64KiB:1MiB", parse_bytes) == [2**16, 2**17, 2**18, 2**19, 2**20]


@pytest.mark.parametrize("text", ["0:4", "8:2", "a:b", "", ":", "2:"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_range(text)


def test_link_rates_are_decimal_bits() -> None:
    assert parse_bit_rate("1gbit") == 10**9
    assert parse_bit_rate("2.5Gbit") == 2_500_000_000
    for text in ("1GB", "0mbit", "fast", "-1gbit"):
        with pytest.raises(UsageError):
            parse_bit_rate(text)


def test_busbw_is_that_of_nccl_tests() -> None:
    assert busbw_factor("all_reduce", 4) == 1.5
    assert busbw_factor("all_gather", 4) == busbw_factor("reduce_scatter", 4) == busbw_factor("all_to_all", 4) == 0.75
    assert busbw_factor("broadcast", 4) == busbw_factor("send_recv", 4) == 1
    with pytest.raises(UsageError, match="gather_all"):
        busbw_factor("gather_all", 2)


@given(st.sampled_from(sorted(BUSBW_FACTORS)), st.integers(2, 4096))
def test_a_bus_factor_never_exceeds_two(op: str, ranks: int) -> None:
    assert 0.5 <= busbw_factor(op, ranks) < 2 or op == "all_reduce"


def value(definition: Definition, seconds: float, work: Work) -> float:
    assert definition.value is not None
    return definition.value(seconds, work)


def test_values_follow_from_seconds_and_work() -> None:
    work = Work(bytes=10**9, flops=3e12, busbw_factor=0.5, bound_seconds=0.25)
    assert value(LATENCY, 0.5, work) == 500_000
    assert value(ALGBW, 0.5, work) == 2
    assert value(BUSBW, 0.5, work) == 1
    assert value(SHARE_OF_BOUND, 0.5, work) == 0.5
    assert value(THROUGHPUT, 0.5, work) == 6
    assert math.isnan(value(SHARE_OF_BOUND, 0.5, Work()))


def test_an_id_has_one_meaning() -> None:
    assert define(LATENCY) is LATENCY
    with pytest.raises(ValueError, match="already taken"):
        define(Definition(LATENCY.id, "s", "lower", "another meaning"))
    assert all(key == definition.id and definition.text for key, definition in DEFINITIONS.items())


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes": -1},
        {"flops": math.nan},
        {"flops": math.inf},
        {"busbw_factor": -0.5},
        {"bound_seconds": -1e-9},
        {"predicted_seconds": math.nan},
        {"predicted_baseline_seconds": -1.0},
    ],
    ids=str,
)
def test_work_that_cannot_be_is_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} of an iteration's work"):
        Work(**wrong)  # type: ignore[arg-type]


def test_a_metric_follows_from_the_duration_or_from_a_comparison_not_both() -> None:
    with pytest.raises(ValueError, match="speedup/x"):
        Definition("speedup/x", "ratio", "higher", "", lambda s, work: s, lambda s, baseline, work: s / baseline)
