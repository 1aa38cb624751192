"""Where a rank is in a case: written by the measuring thread, read by the heartbeat thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["idle", "setup", "measure", "check", "done"]


@dataclass
class Progress:
    """One rank's position.

    Attributes:
        phase: where the rank is in the case.
        iteration: timed calls begun in the case, warm-up included, and a baseline's too.
        ticks: how often the suite said in the case that long work of its own goes on (``Context.alive``).
    """

    phase: Phase = "idle"
    iteration: int = 0
    ticks: int = 0

    def tick(self) -> None:
        """Count one sign of life."""
        self.ticks += 1
