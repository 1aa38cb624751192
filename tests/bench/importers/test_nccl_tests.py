"""nccl-tests' tables: versions, launchers, broken runs, and lines that are not what they seem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.importers.contents import Source
from bench.importers.nccl_tests import read as read_log

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = """# Collective test starting: {op}_perf
# nThread 1 nGpus {gpus} minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 3 iters: 20 validation: 1 graph: 0
# Using devices
"""
COLUMNS = """#   size   count   type   redop   root   time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n"


def log(rows: str, op: str = "all_reduce", ranks: int = 2, end: str = END) -> str:
    devices = "".join(f"#  Rank {n:2} Group  0 Pid 1 on node0 device {n:2} [0000:0a:00] H100\n" for n in range(ranks))
    return HEAD.format(op=op, gpus=ranks) + devices + COLUMNS + rows + end


def row(size: int, time: str = "10.0", algbw: str = "0.01", busbw: str = "0.01", wrong: str = "0") -> str:
    half = f"{time} {algbw} {busbw} {wrong}"
    return f"  {size}  {size // 4}  float  sum  -1  {half}  {half}\n"


def test_a_log_of_two_nodes(read: Callable) -> None:
    found = read("nccl-tests", "2.17.1_two_nodes.txt")
    assert found.faults == []
    assert len(found.rows) == 3 * 2 * 3
    best = found.of("busbw", bytes=134217728, placement="in_place")
    assert (best.unit, best.better, best.definition) == ("GB/s", "higher", "busbw/nccl-tests-mean-v1")
    assert best.value == pytest.approx(123.11, abs=0.01)
    assert best.params == {
        "op": "all_reduce",
        "bytes": 134217728,
        "placement": "in_place",
        "dtype": "float",
        "redop": "sum",
        "ranks": 8,
        "nodes": 2,
    }
    latency = found.of("latency", bytes=8, placement="out_of_place")
    assert (latency.value, latency.unit, latency.better) == (17.93, "us", "lower")
    assert (latency.samples, latency.n, latency.warmup, latency.wrong) == ([17.93], 1, 1, 0)
    assert found.contents.identity == {"gpus": [{"model": "NVIDIA GH200 120GB"}]}
    assert found.contents.tells_machine
    assert found.contents.volatile["hosts"] == ["nid005471", "nid005487"]
    assert "line 1-2: no part of a table, not read" in found.contents.notes


def test_rates_of_small_messages_are_not_rounded_to_a_hundredth(read: Callable) -> None:
    """0.00 and 0.01 GB/s are one step apart, and would look like any change at all."""
    found = read("nccl-tests", "2.17.1_two_nodes.txt")
    rate = found.of("busbw", bytes=8, placement="out_of_place")
    assert rate.value == pytest.approx(8 / 17.93 / 1e3 * 2 * 7 / 8)


def test_a_rate_that_bytes_over_time_does_not_explain_is_kept_as_printed(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(1048576, "10.0", "99.00", "99.00")))
    assert found.of("busbw", placement="in_place").value == 99.0


def test_rank_prefixes_and_interleaved_lines(read: Callable) -> None:
    found = read("nccl-tests", "2.0_rank_prefix.txt", op="all_reduce")
    assert found.faults == []
    assert [row.value for row in found.rows if row.metric == "latency" and row.params["placement"] == "in_place"] == [
        167.1,
        483.6,
        61303.0,
    ]
    assert not found.contents.tells_machine
    assert all(row.wrong is None for row in found.rows), "the old error column counts nothing"


def test_a_table_that_names_no_operation_is_not_guessed(read: Callable) -> None:
    found = read("nccl-tests", "2.0_rank_prefix.txt")
    assert found.rows == []
    assert [line for line, _ in found.faults] == [6]
    assert "--set op=all_reduce" in found.faults[0][1]


def test_the_operation_may_come_from_the_command_line(read: Callable) -> None:
    found = read("nccl-tests", "rccl_old.txt")
    assert found.faults == []
    assert {row.params["op"] for row in found.rows} == {"all_reduce"}
    assert found.of("latency", bytes=16, placement="in_place").value == 42.09


def test_a_run_that_broke_is_named_and_the_next_one_read(read: Callable) -> None:
    found = read("nccl-tests", "2.19.7_broke_then_ran.txt")
    assert [line for line, _ in found.faults] == [13, 30]
    assert "illegal memory access" in found.faults[0][1]
    assert "it has no number" in found.faults[0][1]
    assert len(found.rows) == 12
    assert found.contents.identity["nccl"] == "2.31.2", "of the run that has rows"


def test_per_iteration_columns_timestamps_and_not_available(read: Callable) -> None:
    found = read("nccl-tests", "per_iteration_made.txt")
    assert found.faults == []
    assert found.of("iteration_p99", bytes=1024, placement="out_of_place").value == 15.0
    missing = found.of("latency", bytes=2048, placement="in_place")
    assert (missing.status, missing.value, missing.reason) == ("skipped", None, "the tool has N/A here")
    assert {row.wrong for row in found.rows} == {None}
    assert found.contents.identity["harness"] == "nccl-tests 2.19.6"
    assert found.contents.identity["nccl"] == "2.27.3"


def test_wrong_elements_fail_and_keep_their_number(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(8, wrong="3") + row(16)))
    assert {(row.status, row.wrong) for row in found.rows if row.params["bytes"] == 8} == {("failed", 3)}
    assert {row.status for row in found.rows if row.params["bytes"] == 16} == {"ok"}


def test_a_world_of_one_is_invalid(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(8, "0.5", "263017.0", "0.00"), ranks=1))
    assert {row.status for row in found.rows} == {"invalid"}
    assert "world of one" in found.rows[0].reason


def test_values_out_of_bounds_fail_a_table_that_does_not_say_where(read: Callable) -> None:
    text = log(row(8)).replace("#wrong", "error").replace(": 0 OK", ": 4 FAILED")
    found = read("nccl-tests", text=text)
    assert {row.status for row in found.rows} == {"failed"}
    assert "4 value(s) out of bounds" in found.rows[0].reason


def test_a_table_printed_again_becomes_samples_by_start(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(8, "10.0")) + log(row(8, "12.0") + row(8, "14.0")))
    latency = found.of("latency", placement="in_place")
    assert (latency.samples, latency.value, latency.n, latency.rounds) == ([10.0, 12.0, 14.0], 12.0, 3, [1, 2])


def test_each_rank_of_a_launcher_is_read_by_itself(read: Callable) -> None:
    lines = log(row(8)).splitlines()
    mixed = "\n".join(f"[1,{rank}]<stdout>:{line}" for line in lines for rank in (0, 1))
    found = read("nccl-tests", text=mixed)
    assert found.faults == []
    assert found.of("latency", placement="in_place").n == 2


def test_a_sweep_over_ranks_in_one_log_is_one_run(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(8), ranks=2) + log(row(8), ranks=4))
    assert found.faults == []
    assert sorted({row.params["ranks"] for row in found.rows}) == [2, 4]


def test_another_machine_in_one_file_is_refused_by_line(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(8)) + log(row(16)).replace("H100", "A100"))
    assert {row.params["bytes"] for row in found.rows} == {8}
    assert [line for line, _ in found.faults] == [16]
    assert "another machine" in found.faults[0][1]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("  8  2  float  sum  -1  10.0  0.01  0.01  0", "9 columns where the headings have 13"),
        ("  8  2  float  sum  -1  10.0 0.01 0.01 0 10.0 0.01 0.01 0 node0:1 [0] NCCL INFO", "17 columns"),
        ("  8  2  17  sum  -1  10.0 0.01 0.01 0 10.0 0.01 0.01 0", "looks like a line of the table"),
    ],
)
def test_what_cannot_be_read_is_reported_by_line(read: Callable, line: str, what: str) -> None:
    found = read("nccl-tests", text=log(row(16) + line + "\n" + row(32)))
    assert [number for number, _ in found.faults] == [9]
    assert what in found.faults[0][1]
    assert {row.params["bytes"] for row in found.rows} == {16, 32}


def test_units_and_columns_must_be_the_known_ones(read: Callable) -> None:
    found = read("nccl-tests", text=log(row(8)).replace("(us)", "(ms)", 1))
    assert found.rows == []
    assert "units" in found.faults[0][1]
    found = read("nccl-tests", text=log(row(8)).replace("busbw #wrong     time", "watts #wrong     time", 1))
    assert found.rows == []
    assert "unknown column 'watts'" in found.faults[0][1]


def test_a_replayed_trace_has_the_second_half_only(read: Callable) -> None:
    found = read("nccl-tests", text=log("  8  2  float  sum      -1" + " " * 34 + "10.0  0.01  0.01  0\n"))
    assert {row.params["placement"] for row in found.rows} == {"in_place"}


def test_a_file_without_a_table(read: Callable) -> None:
    assert read("nccl-tests", text="hello\n").faults[0][0] == 1
    assert read("nccl-tests", text="").faults


sizes = st.lists(st.integers(1, 2**40), min_size=1, max_size=6, unique=True)
times = st.floats(0.01, 1e6).map(lambda time: f"{time:.2f}")
noise = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n#\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=60
)


@given(sizes, st.lists(times, min_size=6, max_size=6), st.integers(2, 12))
def test_every_line_of_a_table_becomes_its_rows(found_sizes: list[int], time: list[str], ranks: int) -> None:
    rows = "".join(row(size, time[place]) for place, size in enumerate(found_sizes))
    contents = read_log(Source("-", log(rows, ranks=ranks)))
    assert contents.faults == []
    latencies = {(r.params["bytes"], r.value) for r in contents.rows if r.metric == "latency"}
    assert latencies == {(size, float(time[place])) for place, size in enumerate(found_sizes)}
    assert len(contents.rows) == 6 * len(found_sizes)


@given(st.lists(noise, max_size=8))
def test_lines_of_others_change_no_row_and_are_told(lines: list[str]) -> None:
    """Whatever is printed between, the rows stay; each line is in a note or a fault unless it is blank."""
    between = "".join(f"!{line}\n" for line in lines)
    plain = read_log(Source("-", log(row(8) + row(16))))
    mixed = read_log(Source("-", log(row(8) + between + row(16))))
    assert [(r.case, r.metric, r.value) for r in mixed.rows] == [(r.case, r.metric, r.value) for r in plain.rows]
    assert bool(lines) == bool([note for note in mixed.notes if "no part of a table" in note])


@given(st.text(max_size=400))
def test_no_text_at_all_ends_in_an_exception(text: str) -> None:
    contents = read_log(Source("-", text))
    assert contents.rows or contents.faults
