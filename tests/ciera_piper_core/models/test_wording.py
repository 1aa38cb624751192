"""Foreign text in messages is cut to one line's length."""

from __future__ import annotations

from ciera_piper_core.models.wording import shorten


def test_short_text_stays_and_long_text_says_how_long_it_was() -> None:
    assert shorten("a" * 60) == "a" * 60
    assert shorten("a" * 61) == "a" * 60 + "... (61 characters)"
    assert shorten("abc", 2) == "ab... (3 characters)"
