"""The terminal's tables at narrow and wide, with failures, marks and the verdict."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from bench.definitions import ALGBW, BUSBW, LATENCY, SPEEDUP
from bench.report.terminal import LAUNCHER_RANKS, print_table, summary_table
from tests.bench.report.sample_rows import LAB, RUN_ID, row, sample_rows, sample_runs

if TYPE_CHECKING:
    from bench.store.row import Row


def printed(rows: list[Row], width: int, encoding: str = "utf-8", colour: bool = False) -> str:
    """What a terminal of that width would show."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=stream, width=width, force_terminal=colour).print(summary_table(rows))
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 200])
def test_lines_fit_the_width_and_nothing_is_shortened(width: int) -> None:
    text = printed(sample_rows(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_wide_shows_all_columns_and_narrow_names_those_left_out() -> None:
    wide, narrow = (printed(sample_rows(), width).partition("alltoall")[0] for width in (200, 80))
    header = "op ranks bytes nodes scope busbw GB/s latency us algbw GB/s share_of_bound n wrong"
    assert header in " ".join(wide.split())
    assert "left out" not in wide
    assert "op ranks bytes scope busbw GB/s latency us wrong" in " ".join(narrow.split())
    assert "left out for the width: algbw GB/s, nodes, n, share_of_bound; COLUMNS=120 shows them" in " ".join(
        narrow.split()
    )
    assert "left out" not in printed(sample_rows(), 120).partition("alltoall")[0]


def test_a_line_a_case_with_value_spread_and_mark() -> None:
    text = printed(sample_rows(), 80)
    assert " ".join(["all_gather", "2", "1KiB", "loopback", "0.0267", "±1.3%", "19.2", "±1.0%", "0"]) in " ".join(
        text.split()
    )
    [unsettled] = [line for line in text.splitlines() if line.split()[:3] == ["all_gather", "4", "1KiB"]]
    assert unsettled.split()[4::2][:2] == ["~0.0134", "~57.2"]


def test_what_follows_from_busbw_makes_room_first() -> None:
    table = printed(sample_rows(), 80).partition("\nalltoall")[2]
    assert "left out for the width: algbw GB/s; COLUMNS=" in table.partition("\nallgather_latency")[0]


def test_lines_of_columns_that_had_to_go_go_with_them() -> None:
    rows = [row({"solver": name}, "latency", LATENCY, value=1.0) for name in ("paper", "search")]
    rows += [
        row({"solver": name, "experts": when}, "load_of_the_busiest_rank_over_the_mean", ALGBW, value=2.0)
        for name in ("paper", "search")
        for when in ("before", "after")
    ]
    wide, narrow = printed(rows, 200), printed(rows, 50)
    assert sum("search" in line for line in wide.splitlines()) == 3
    assert sum("search" in line for line in narrow.splitlines()) == 1
    assert "4 lines of these alone; COLUMNS=" in " ".join(narrow.split())


def test_a_long_title_takes_two_lines_before_its_column_goes() -> None:
    rows = [
        row({"ranks": ranks, "kind": "x" * 20}, name, definition, suite="alltoall", value=2.0)
        for ranks in (2, 4)
        for name, definition in (("busbw", BUSBW), ("speedup_over_flat", SPEEDUP))
    ]
    text = printed(rows, 41)
    assert "left out" not in text
    assert any(line.split() == ["speedup_"] for line in text.splitlines())
    assert "ranks busbw GB/s over_flat n wrong" in " ".join(text.split())


def test_what_algorithms_are_compared_by_stays() -> None:
    rows = [
        row({"ranks": ranks, "traffic": "rotating_hot_rank"[ranks:]}, name, definition, suite="alltoall", value=2.0)
        for ranks in (2, 4)
        for name, definition in (("latency", LATENCY), ("busbw", BUSBW), ("speedup_over_flat", SPEEDUP))
    ]
    text = " ".join(printed(rows, 60).split())
    assert "busbw GB/s over_flat" in text
    assert "left out for the width: n, latency us;" in text


def test_marks_are_explained_where_there_are_any() -> None:
    steady = row({"ranks": 2}, "latency", LATENCY, value=1.0)
    assert "\n± half the interquartile range of the samples\n" in printed([steady], 80)
    steady.samples, steady.stop_reason = [1.0], "max_time"
    assert "\n~ did not settle\n" in printed([steady], 80)
    steady.stop_reason = "converged"
    assert "settle" not in printed([steady], 80)


def test_an_interrupted_run_is_told_from_a_complete_one() -> None:
    run = sample_runs()[0]
    run.cases = 44
    only = row({"ranks": 2}, "latency", LATENCY, value=1.0, run_id=RUN_ID)
    stream = io.StringIO()
    print_table([only], [run], file=stream)
    assert stream.getvalue().endswith("\n1 of 44 cases measured; interrupted or still running.\n")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal, as the one that mpirun gives its first rank."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["", *LAUNCHER_RANKS])
def test_colour_is_for_people_and_not_for_ranks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for quiet in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(quiet, raising=False)
    stream = Terminal()
    print_table(sample_rows(), file=stream, environment={name: "0"} if name else {})
    text = stream.getvalue()
    assert ("\x1b[" in text) == (not name)
    if name:
        assert max(map(len, text.splitlines())) <= 80


def test_failures_and_verdict_come_last() -> None:
    text = printed(sample_rows(), 200)
    tail = text.partition("Not measured\n")[2]
    assert tail.splitlines()[0].split() == [
        "failed", "collectives", "op=all_reduce", "ranks=4", "bytes=32MiB", "nodes=1", "scope=loopback"
    ]  # fmt: skip
    assert "rank 3 was killed by signal 9 in iteration 12 (stacks are in the HTML report)" in tail
    assert "pid 4101" not in tail
    assert "skipped  collectives share_of_bound of 173 cases" in tail
    assert tail.splitlines()[-1].startswith("390 of 399 cases measured; 1 failed")


def test_the_emulated_cluster_is_named() -> None:
    mixed = printed(sample_rows(), 200)
    assert f"scope=lab is the emulated cluster, not hardware: {LAB}" in mixed
    only = printed([made for made in sample_rows() if made.params.get("lab")], 200)
    assert f"\nemulated cluster, not hardware: {LAB}" in only


def test_wrong_and_unchecked_elements() -> None:
    rows = [row({"ranks": ranks}, "latency", LATENCY, value=1.0) for ranks in (1, 2)]
    rows[0].wrong, rows[1].wrong = None, 1234
    text = printed(rows, 80)
    assert "unchecked" in text
    assert "1,234" in text


def test_metrics_that_no_case_has_take_no_column() -> None:
    rows = [
        row({"ranks": 2}, "latency", LATENCY, value=1.0),
        row({"ranks": 2}, "algbw", ALGBW, status="skipped", reason="not known here"),
    ]
    table = printed(rows, 80).partition("Not measured")[0]
    assert "algbw" not in table


def test_nothing_measured() -> None:
    assert printed([], 80) == "No rows: nothing was measured.\n"
    text = printed([row({"ranks": 2}, "latency", LATENCY, status="failed", reason="[bold]raised[/bold]")], 80)
    assert "no case was measured" in text
    assert "[bold]raised[/bold]" in text


def test_ascii_terminals_get_ascii() -> None:
    assert "+-1.3%" in printed(sample_rows(), 80, encoding="ascii")


def test_colour_only_on_a_terminal() -> None:
    assert "\x1b[" in printed(sample_rows(), 80, colour=True)
    assert "\x1b[" not in printed(sample_rows(), 80)
