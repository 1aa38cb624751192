"""What the user sees while a run goes on."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

from bench.console import ConsoleListener, TimeLeft, describe, format_duration
from bench.measure.runner import unmeasured_rows
from bench.suite import Case, Site
from bench.sweep import Job
from tests.faulty_suite import FaultySuite

if TYPE_CHECKING:
    import pytest

CASE = Case({"ranks": 2, "number": 1, "fault": "none", "phase": "setup", "victim": 0, "at": -1})


def job() -> Job:
    return Job("faulty", FaultySuite(), CASE, 2)


def test_time_left_follows_each_suites_own_pace() -> None:
    left = TimeLeft()
    for suite in ("fast", "fast", "slow", "slow"):
        left.expect(suite)
    assert left.seconds == 6
    left.took("fast", 0.5)
    left.took("slow", 10)
    assert left.seconds == 10.5


def test_durations_and_cases_read_well() -> None:
    assert [format_duration(seconds) for seconds in (0.4, 59.6, 75)] == ["0s", "1m00s", "1m15s"]
    assert describe(job()) == "ranks=2 number=1 fault=none phase=setup victim=0 at=-1"


def test_without_a_terminal_only_what_matters_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    rows_to = io.StringIO()
    listener = ConsoleListener(rows_to)
    listener.started("r1", [job()], resumed=3)
    listener.case_started(job())
    rows = unmeasured_rows(FaultySuite(), CASE, Site(), "timeout", "rank 1 hangs")
    listener.case_ended(job(), rows, 1.0)
    listener.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "run r1: 1 case(s), 3 measured before"
    assert err.splitlines()[1].startswith("timeout: faulty ranks=2 number=1")
    assert json.loads(rows_to.getvalue())["reason"] == "rank 1 hangs"


def test_a_long_run_says_in_a_log_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    listener = ConsoleListener()
    listener.started("r1", [job()] * 4, resumed=0)
    for second in (6.0, 12.0, 18.0, 24.0):
        now[0] = second
        listener.case_ended(job(), [], 6.0)
    assert capsys.readouterr().err.splitlines() == ["run r1: 4 case(s)", "2 of 4 cases done, about 12s left"]


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    listener = ConsoleListener()
    listener.started("r1", [job()], resumed=0)
    listener.case_started(job())
    listener.case_ended(job(), [], 1.0)
    listener.note("a note")
    listener.close()
    assert "a note" in terminal.getvalue()
