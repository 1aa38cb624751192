"""Foreign text in messages: short enough for one line."""

from __future__ import annotations

MOST_CHARACTERS = 60


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """``text``, or its beginning and how long it is, where it has more characters than ``most``."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
