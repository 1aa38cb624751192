"""The table on a terminal: what needs a look first, any width, and no name that acts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.gate_output.terminal import print_result, render
from tests.bench.gate_rows import HOSTILE, comparison, hostile_result, regressed, result


def printed(shown: object, width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(shown))  # type: ignore[arg-type]
    return file.getvalue()


def test_the_worst_is_shown_with_its_reason_and_the_verdict_last() -> None:
    text = printed(result(regressed(), comparison(params={"op": "all_gather", "bytes": 2048}), notes=["look"]))
    assert "confirmed: 10 % worse, and 10 % worse in a second measurement; threshold 5 %" in text
    assert text.splitlines()[-1] == "regressed: 2 compared, 1 regressed, 1 pass"
    assert "note: look" in text
    assert "collectives  op=all_gather" in text


def test_an_expired_waiver_is_an_error_line() -> None:
    assert "error: waiver 1 expired" in printed(result(comparison(), errors=["waiver 1 expired"]))


def test_many_passes_are_counted() -> None:
    text = printed(result(*(comparison(params={"bytes": size}) for size in range(500))))
    assert "500 more not listed" in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_it_fits_every_width(width: int) -> None:
    text = printed(result(regressed(), comparison(params={"op": "all_gather", "bytes": 2048})), width)
    assert max(map(len, text.splitlines())) <= width
    assert "+10.0%" in text


def test_wide_terminals_get_the_intervals() -> None:
    assert "[+9.0%, +11.0%]" in printed(result(regressed()), 120)


def test_hostile_names_are_text() -> None:
    text = printed(hostile_result(), 400)
    assert not set(text) & {"\x1b", "\u202e", "\udc80"}
    assert "[red]<script>alert(1)</script> |`x`| \\x1b[31m\\u202e\\n../../etc/passwd @team #1 \\udc80" in text
    assert HOSTILE not in text


def test_an_empty_result_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result())
    assert "not measured: 0 compared; nothing was compared" in capsys.readouterr().out


def test_no_line_can_be_a_command_to_the_runner() -> None:
    name = "::error::x"
    found = regressed(suite=name, metric=name, message=f"a long message {'word ' * 20}" + f"{name} " * 9)
    for width in (30, 60, 80, 200):
        text = printed(result(found, notes=[f"{name} " * 20], baseline=name), width)
        assert not [line for line in text.splitlines() if line.strip().startswith("::")]
    assert "std::vector" in printed(result(regressed(metric="std::vector")), 200)


@pytest.mark.parametrize("confirmed", [True, None])
def test_80_columns_keep_the_interval_of_what_regressed(confirmed: bool | None) -> None:
    other = comparison(params={"op": "all_reduce", "bytes": 2048})
    text = printed(result(regressed(confirmed=confirmed), other), 80)
    assert "[+9.0%, +11.0%]" in text
    assert "counts from" not in text


def test_what_is_new_says_why_in_the_table() -> None:
    new = comparison(verdict="new", reason_code="other_machine", change=None, effect=None, interval=None)
    assert "new: other_machine" in printed(result(new), 80)


def test_changes_by_turns_are_called_so() -> None:
    text = printed(result(regressed(by_turns=True, better="higher", change=-0.1, candidate_value=120.0)), 160)
    assert "change by turns" in text
    assert "the machine's drift in them" in text
    assert "by turns" not in printed(result(regressed()), 160)
