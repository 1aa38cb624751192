"""hyperfine's JSON, old and new: times, exit codes, parameters, memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def test_times_are_samples(read: Callable) -> None:
    found = read("hyperfine", "1.15.json")
    assert found.faults == []
    row = found.of("duration", command="true")
    assert (row.n, row.value, row.unit, row.better) == (4, pytest.approx(0.000686218), "s", "lower")
    assert found.of("user_time", command="true").n == 4
    assert not found.contents.tells_machine


def test_commands_that_failed_are_failed_rows(read: Callable) -> None:
    found = read("hyperfine", "1.15_failures.json")
    assert {row.status for row in found.rows} == {"failed"}
    assert found.of("duration", n="1").reason == "exit code 1 in 3 of 3 runs"
    killed = read("hyperfine", "1.20_made.json").of("duration", command="killed")
    assert killed.reason == "exit code a signal in 1 of 2 runs"


def test_memory_is_a_row_where_it_is_told(read: Callable) -> None:
    found = read("hyperfine", "1.20_made.json")
    assert [row.value for row in found.rows if row.metric == "peak_memory"] == [1048576]


def test_the_first_versions_have_a_mean_only(read: Callable) -> None:
    row = read("hyperfine", "old_made.json").of("duration")
    assert (row.value, row.samples, row.definition) == (0.5, [], "duration/hyperfine-mean-v1")
    assert row.params == {"command": "old", "parameter": "3"}


def one(read: Callable, text: str) -> tuple[str, float | None, int]:
    row = read("hyperfine", text=f'{{"results": [{{"command": "c", {text}}}]}}').of("duration")
    return row.status, row.value, len(row.samples)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"times": [-1.0, 1e400, null, "x"]', ("failed", None, 0)),
        ('"times": [1.0, 1e400]', ("failed", None, 0)),
        ('"times": [1.0, NaN], "median": 1.0', ("failed", None, 0)),
        ('"times": [2.0, -1.0], "median": 1.0', ("failed", None, 0)),
        ('"times": [NaN, NaN], "median": 1.5', ("ok", 1.5, 0)),
        ('"times": [NaN], "mean": 1.5', ("ok", 1.5, 0)),
        ('"times": [NaN, NaN], "median": NaN', ("failed", None, 0)),
        ('"times": [NaN, NaN], "median": -1.5', ("failed", None, 0)),
        ('"times": [NaN, NaN], "median": 0', ("failed", None, 0)),
        ('"median": -1.5', ("failed", None, 0)),
        ('"times": [0.0, 0.0, 0.0]', ("ok", 0.0, 3)),
    ],
)
def test_impossible_times_are_no_measurement(
    read: Callable, text: str, expected: tuple[str, float | None, int]
) -> None:
    assert one(read, text) == expected


def test_impossible_times_have_a_reason(read: Callable) -> None:
    def reason(text: str) -> str:
        return str(read("hyperfine", text=f'{{"results": [{{"command": "c", {text}}}]}}').of("duration").reason)

    assert reason('"times": [2.0, -1.0]') == "the file has -1.0 s, which is below zero"
    assert reason('"times": [1.0, 1e400]') == "1 of 2 samples are no finite numbers, such as inf"


def test_hostile_commands_are_text(read: Callable) -> None:
    command = "<script>alert(1)</script>\x1b[31m\n../../etc/passwd,n=1"
    text = json.dumps({"results": [{"command": command, "median": 1.0, "times": [1.0]}]})
    found = read("hyperfine", text=text)
    assert found.rows[0].params["command"] == command
    assert "\x1b" not in found.rows[0].to_json()


@pytest.mark.parametrize("text", ["{}", '{"results": []}', '{"results": [3, {"command": 4}]}', "command,mean\na,1\n"])
def test_files_without_a_command(read: Callable, text: str) -> None:
    found = read("hyperfine", text=text)
    assert found.rows == []
    assert found.faults
