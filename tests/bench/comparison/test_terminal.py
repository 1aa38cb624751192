"""A comparison in words: the table of sides, why some have no numbers, and the last line."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.comparison.processes import Ending
from bench.comparison.terminal import render
from bench.comparison.view import duration_range, headline, value_text
from bench.suite import Forecast
from tests.bench.comparison.made_up import VIEW, outcome

UNFAIR = Ending("invalid", "no fair comparison: weights differs", fair=False)
GONE = Ending("failed", "rank 1 was killed")


def shown(found: object, width: int = 140) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(found, VIEW))  # type: ignore[arg-type]
    return file.getvalue()


def test_the_table_has_a_line_a_side() -> None:
    found = outcome({"a": 0.3, "b": 0.2, "c": 0.1}, endings={"c": UNFAIR}, errors={"b": 1e-7})
    text = shown(found)
    line = next(line for line in text.splitlines() if line.startswith("b "))
    for part in ("200 ms", "1.50 x", "1.0e-07", "500"):
        assert part in line, part
    assert "c: invalid: no fair comparison: weights differs" in text
    assert "note: Nothing of this is true." in text
    # What is asked for, which some did not keep.
    assert "note: last of b, c: must agree to the last bit" in text
    assert "Where an iteration's time goes" in text


def test_predictions_stand_beside_what_was_measured() -> None:
    known = Forecast({"work": 0.2, "wait": 0.04}, "my machine", ("work: guessed",))
    found = outcome({"a": 0.3, "b": 0.2}, forecasts={"b": known, "a": Forecast(reason="no prediction of a")}, noise=0.0)
    text = shown(found)
    line = next(line for line in text.splitlines() if line.startswith("b "))
    assert "240 ms" in line
    assert "+20.0 %" in line
    for words in (
        "What a predicted iteration is made of",
        "predicted from the profile of my machine",
        "work: guessed",
        "a is not predicted: no prediction of a",
    ):
        assert words in text, words
    assert "predicted" not in shown(outcome({"a": 0.3, "b": 0.2}))


def test_eighty_columns_cut_no_word() -> None:
    found = outcome({"fsdp": 0.3, "ciera": 0.2, "piper:pp=2": 0.1})
    for record in found.records[2:]:
        record.turns.clear()
    found.interrupted = True
    ended = outcome({"fsdp": 0.31234, "ciera": 0.2, "piper:pp=2": 0.1}, endings={"piper:pp=2": GONE})
    for text, word in ((shown(found, width=80), "interrupted"), (shown(ended, width=80), "failed")):
        assert "5 to 95 %" in text
        assert word in text
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert max(len(line) for line in text.splitlines()) <= 80


def test_a_range_names_its_unit_once() -> None:
    assert duration_range(0.0312, 0.0485) == "31.2 to 48.5 ms"
    assert duration_range(0.9, 1.2) == "900 ms to 1.20 s"


def test_a_narrow_terminal_loses_no_side() -> None:
    text = shown(outcome({"a": 0.3, "b": 0.2}), width=60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert any(line.startswith("b ") for line in text.splitlines())


def test_a_label_that_looks_like_markup_is_shown_as_it_is() -> None:
    reference, other = "a:settings=[/red]x.json", "b:settings=[bold]y.json"
    text = shown(outcome({reference: 0.3, other: 0.2}), width=300)
    # As a side, over which speedups are, and heads of the breakdown's columns.
    assert text.count(reference) >= 3
    assert text.count(other) >= 2


@pytest.mark.parametrize(
    ("seconds", "endings", "words"),
    [
        ({"a": 0.3, "b": 0.2}, {}, "b is the fastest: 1.5"),
        ({"a": 0.2, "b": 0.3}, {}, "a is the fastest; next is b: 0.67 x"),
        ({"a": 0.2, "b": 0.2}, {}, "none is clearly faster than a"),
        ({"a": 0.2}, {}, "one side alone"),
        ({"a": 0.3, "b": 0.2}, {"b": UNFAIR}, "not compared, since it does not do the same: b"),
        ({"a": 0.3, "b": 0.2}, {"a": GONE}, "the reference a has no speed"),
    ],
)
def test_the_last_line_says_what_came_out(seconds: dict[str, float], endings: dict[str, Ending], words: str) -> None:
    assert words in headline(outcome(seconds, endings=endings))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.5, "s", "1.50 s"),
        (0.0021, "s", "2.10 ms"),
        (3.2e-5, "s", "32 µs"),
        (0.0, "s", "0 s"),
        (1536.0, "B", "1.50KiB"),
        (12.0, "TFLOP/s", "12 TFLOP/s"),
    ],
)
def test_values_are_written_with_units_of_their_size(value: float, unit: str, text: str) -> None:
    assert value_text(value, unit) == text
