"""Marks of launchers and loggers come off, and each writer's lines stay together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.importers.streams import streams

DATA = "  1048576  262144  float  sum  -1  12.5"


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "[1,0]<stdout>:",
        "[1,12]<stderr>: ",
        "[prterun-host-123@1,0]<stdout>: ",
        "[prterun-host-123@1,0][node1:4]<stdout>: ",
        "[rank3]: ",
        "0: ",
        "  12: ",
        "worker-0  | ",
        "[pod/job-abc/main] ",
        "2026-01-02T03:04:05.678Z ",
        "2026-01-02T03:04:05+00:00 [1,0]<stdout>:",
        "node001: ",
        "\x1b[32m",
    ],
)
def test_marks_come_off(mark: str) -> None:
    (lines,) = streams(f"{mark}{DATA}\n").values()
    assert lines[0].text.strip() == DATA.strip()
    assert lines[0].number == 1


def test_writers_are_told_apart_and_keep_their_line_numbers() -> None:
    found = streams("[1,0]<stdout>:# a\n[1,1]<stdout>:# b\n[1,0]<stdout>:# c\nplain\n")
    assert {mark: [(line.number, line.text) for line in lines] for mark, lines in found.items()} == {
        "[1,0]<stdout>:": [(1, "# a"), (3, "# c")],
        "[1,1]<stdout>:": [(2, "# b")],
        "": [(4, "plain")],
    }


@pytest.mark.parametrize("text", ["4: 3.5", "1024    1.5", "host:12:12 [0] NCCL INFO x", "# Size: 3", "{"])
def test_what_is_no_mark_stays(text: str) -> None:
    (lines,) = streams(text).values()
    assert lines[0].text == text or text == "4: 3.5"


@given(st.text())
def test_every_line_is_in_one_stream(text: str) -> None:
    numbers = sorted(line.number for lines in streams(text).values() for line in lines)
    assert numbers == list(range(1, len(text.splitlines()) + 1))
