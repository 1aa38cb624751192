"""The words that all outputs share: numbers, and names in which nothing can hide."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gate_output.text import (
    MOST_CHARACTERS,
    CaseNames,
    case_name,
    change_text,
    share_text,
    signed_percent,
    threshold_text,
    value_text,
    visible,
    why,
)
from tests.bench.gate_rows import comparison


@given(st.text())
def test_visible_text_is_printable_and_plain_text_stays(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text


def test_what_could_act_is_written_out() -> None:
    assert visible("a\nb\t\x1b[31m\u202e\udc80\U000e0001") == "a\\nb\\t\\x1b[31m\\u202e\\udc80\\U000e0001"
    assert len(visible("x" * 10_000)) < MOST_CHARACTERS + 100


@pytest.mark.parametrize(
    ("share", "text"), [(0.0523, "+5.2%"), (-0.5, "-50.0%"), (12.5, "+1,250%"), (math.inf, "+inf"), (0.0, "+0.0%")]
)
def test_signed_percent(share: float, text: str) -> None:
    assert signed_percent(share) == text


def test_values_have_units() -> None:
    assert value_text(12.34, "us") == "12.3 µs"
    assert value_text(0.5, "ratio") == "0.500"
    assert value_text(None, "us") == share_text(None) == "-"


def test_the_change_of_a_rate_is_that_of_its_numbers() -> None:
    slower = comparison(better="higher", effect=0.1, change=-0.1, interval=(0.08, 0.12))
    assert change_text(slower) == "-10.0% [-12.0%, -8.0%]"
    assert change_text(slower, interval=False) == "-10.0%"


@pytest.mark.parametrize("interval", [None, (-math.inf, math.inf), (-math.inf, 0.1)])
def test_an_interval_without_ends_is_left_out(interval: Any) -> None:
    assert change_text(comparison(interval=interval)) == "+0.1%"
    assert change_text(comparison(change=None)) == "-"


def test_the_threshold_tells_whether_noise_made_it() -> None:
    assert threshold_text(comparison()) == "5.0%"
    assert threshold_text(comparison(threshold=0.08, noise_floor=0.08)) == "8.0% (noise)"
    assert threshold_text(comparison(threshold=0.05, noise_floor=0.02)) == "5.0%"
    assert threshold_text(comparison(threshold=None)) == "-"


def test_why_says_what_would_settle_it() -> None:
    text = why(comparison(verdict="inconclusive", message="too few", samples_to_settle=12, counted_in="rounds"))
    assert text == "too few; a slowdown from 6.0% on would have been seen; about 12 more rounds a side should settle it"
    assert why(comparison(message="x", waiver="known")) == "x; waived: known"


def test_short_names_tell_what_varies() -> None:
    found = [comparison(params={"op": "a", "bytes": size, "dtype": "f"}) for size in (1024, 2048)]
    found += [comparison(suite="other", params={}, case="plain")]
    names = CaseNames(found)
    assert [names.of(case) for case in found] == ["bytes=1KiB", "bytes=2KiB", ""]
    assert names.shared("collectives") == "op=a dtype=f"
    assert [case_name(case) for case in found[1:]] == ["op=a bytes=2KiB dtype=f", "plain"]
