"""Values in error messages: short, and never an error themselves."""

from __future__ import annotations

from typing import Any

import pytest

from bench.shown_value import MOST_SHOWN, shown_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nb", r"'a\nb'"),
        ([10**5000], "a number of thousands of digits"),
        ({"a": [10**5000]}, "a number of thousands of digits"),
        ("x" * 1000, "'" + "x" * (MOST_SHOWN - 1) + "..."),
    ],
)
def test_a_value_is_shown_short(value: object, shown: str) -> None:
    assert shown_value(value) == shown


def test_what_is_nested_deeply_is_said_so() -> None:
    value: list[Any] = []
    for _ in range(200_000):
        value = [value]
    assert shown_value(value) == "a value that is nested too deeply"
