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
