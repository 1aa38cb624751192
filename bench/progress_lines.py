"""How far long work is, as a plain line now and then, for logs that nobody draws a bar in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_BETWEEN = 10.0
"""At least, from the start to the first line and from one to the next: short work says nothing."""


class ProgressLines:
    """Passes on a line if the last one was long enough ago.

    Args:
        say: gets the line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = time.monotonic()

    def tell(self, text: str) -> None:
        """How far it is now."""
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN:
            self._last = now
            self._say(text)
