"""OSU's tables: every kind of them, versions, launchers, and what is no table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.importers.contents import Source
from bench.importers.osu import read as read_log

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE = "# OSU MPI Allreduce Latency Test v7.5\n# Datatype: MPI_INT.\n"


def test_several_tables_in_one_log(read: Callable) -> None:
    found = read("osu", "5.6.3_several.txt", ranks="2")
    assert found.faults == []
    bandwidth = found.of("bandwidth", bytes=4194304)
    assert (bandwidth.unit, bandwidth.better) == ("GB/s", "higher")
    assert bandwidth.value == pytest.approx(9.32606), "MB/s of OSU are 1e6 bytes a second"
    assert bandwidth.params["window_size"] == 64
    assert found.of("message_rate", bytes=1).value == 8346864.13
    overlap = found.of("overlap", bytes=1)
    assert (overlap.unit, overlap.better) == ("ratio", "higher")
    assert overlap.value == pytest.approx(0.0346)
    assert found.of("communication_time", bytes=1048576).value == 3894.26
    assert found.of("overall_time", bytes=1048576).value == 8597.34
    assert any("compute(us) is left out" in note for note in found.contents.notes)
    assert not found.contents.tells_machine


def test_average_minimum_and_maximum_behind_rank_prefixes(read: Callable) -> None:
    found = read("osu", "5.3_full_tagged.txt")
    assert found.faults == []
    row = found.of("latency", bytes=8)
    assert (row.value, row.rank_min, row.rank_max, row.definition) == (1.1, 0.33, 1.86, "latency/osu-mean-v1")


def test_barriers_have_no_size(read: Callable) -> None:
    found = read("osu", "5.3_barriers.txt")
    assert found.faults == []
    assert found.of("latency", test="Barrier Latency").value == 2.58
    assert found.of("overall_time", test="Non-blocking Barrier Latency").value == 2.69
    assert "bytes" not in found.rows[0].params


def test_validation_memory_and_datatype(read: Callable) -> None:
    found = read("osu", "7.5_validation.txt")
    assert found.faults == []
    assert found.of("latency", bytes=1).params == {
        "test": "All-to-All Personalized Exchange Latency",
        "runtime": "MPI",
        "memory": "cuda",
        "dtype": "MPI_CHAR",
        "bytes": 1,
    }
    text = TITLE + "# Size       Avg Latency(us)        Validation\n4  1.0  Fail\n8  1.0  Pass\n"
    failed = read("osu", text=text)
    assert [(row.params["bytes"], row.status) for row in failed.rows] == [(4, "failed"), (8, "ok")]
    assert "validation" in failed.rows[0].reason


def test_a_crash_is_named(read: Callable) -> None:
    found = read("osu", "7.5_crashed.txt")
    assert found.rows == []
    assert [line for line, _ in found.faults] == [3]
    assert "Process received signal" in found.faults[0][1]


def test_bandwidth_of_two_ranks(read: Callable) -> None:
    assert read("osu", "7.5_bandwidth.txt").of("bandwidth").value == pytest.approx(12.25416)


def test_percentiles_are_a_parameter(read: Callable) -> None:
    text = TITLE + "# Size       Avg Latency(us)  P50 Tail Lat(us)  P99 Tail Lat(us)\n4  1.0  0.9  3.5\n"
    found = read("osu", text=text)
    assert found.faults == []
    assert found.of("latency_percentile", percentile=99).value == 3.5


def test_the_same_test_again_is_another_start(read: Callable) -> None:
    table = TITLE + "# Size       Avg Latency(us)\n4  {}\n"
    found = read("osu", text=table.format("1.0") + table.format("3.0"))
    row = found.of("latency")
    assert (row.value, row.samples, row.rounds) == (2.0, [1.0, 3.0], [1, 1])


@pytest.mark.parametrize(
    ("body", "line", "what"),
    [
        ("# Size       Avg Latency(us)\n4  1.0  7\n", 4, "3 columns where the headings have 2"),
        ("# Size       Avg Latency(us)        Furlongs\n4  1.0  7\n", 3, "unknown column 'furlongs'"),
        ("# Size       Avg Latency(us)\n4.5  1.0\n", 4, "no size in bytes"),
        ("# Size       Avg Latency(us)\n", 1, "has no line of numbers"),
    ],
)
def test_what_cannot_be_read_is_reported_by_line(read: Callable, body: str, line: int, what: str) -> None:
    found = read("osu", text=TITLE + body)
    assert any(number == line and what in text for number, text in found.faults), found.faults


def test_numbers_that_are_none_fail(read: Callable) -> None:
    found = read("osu", text=TITLE + "# Size       Avg Latency(us)\n4  nan\n8  N/A\n")
    assert [row.status for row in found.rows] == ["failed", "skipped"]


def test_headings_or_lines_without_a_title(read: Callable) -> None:
    assert read("osu", text="# Size       Avg Latency(us)\n4  1.0\n").faults[0][0] == 1
    assert read("osu", text="hello\n").faults


@given(st.dictionaries(st.integers(0, 2**40), st.floats(0, 1e9), min_size=1, max_size=12), st.booleans())
def test_every_line_of_a_table_becomes_a_row(values: dict[int, float], tagged: bool) -> None:
    lines = [*TITLE.splitlines(), "# Size       Avg Latency(us)", *(f"{s:<10}{v:>20.2f}" for s, v in values.items())]
    text = "\n".join(f"[1,0]<stdout>:{line}" if tagged else line for line in lines)
    contents = read_log(Source("-", text))
    assert contents.faults == []
    assert {row.params["bytes"]: row.value for row in contents.rows} == {
        size: float(f"{value:.2f}") for size, value in values.items()
    }


@given(st.text(max_size=400))
def test_no_text_at_all_ends_in_an_exception(text: str) -> None:
    contents = read_log(Source("-", TITLE + text))
    assert contents.rows or contents.faults
