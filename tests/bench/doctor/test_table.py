"""The table: whole commands, square brackets and all, on narrow screens and in pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.doctor import Check, render

LONG_COMMAND = "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource"
CHECKS = [
    Check("python", "ok", "3.11.9", required=True),
    Check("extra gpu", "missing", "Triton kernels [gpu]", "pip install 'ciera-piper-bench[gpu]' -c ci/constraints.txt"),
    Check("clock source", "warn", "hpet, 900 ns a reading: each is a system call", LONG_COMMAND),
]


def printed(checks: list[Check], width: int, suites: list[tuple[str, str | None]] | None = None) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render(checks, suites or []), crop=False)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_commands_stay_whole(width: int) -> None:
    lines = printed(CHECKS, width).splitlines()
    for check in CHECKS[1:]:
        assert f"    {check.fix}" in lines


@pytest.mark.parametrize("width", [60, 200])
def test_every_check_is_shown(width: int) -> None:
    words = printed(CHECKS, width).split()
    for check in CHECKS:
        assert check.status in words
        assert set(check.found.split()) <= set(words)


def test_the_end_says_whether_it_is_ready() -> None:
    assert printed(CHECKS, 100).splitlines()[-1] == "Ready to measure, with 1 warning(s)."
    assert printed(CHECKS[:1], 100).splitlines()[-1] == "Ready to measure."
    lacking = [*CHECKS, Check("torch", "missing", "none", "pip install torch", required=True)]
    assert printed(lacking, 100).splitlines()[-1] == "Nothing can be measured yet: torch."


def test_suites_run_or_say_why_not() -> None:
    text = printed(CHECKS, 100, [("memory", None), ("collectives", "needs two ranks")])
    assert "suite memory" in text
    assert "needs two ranks" in text
