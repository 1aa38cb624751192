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
        iteration: iterations begun in the case, warm-up included.
    """

    phase: Phase = "idle"
    iteration: int = 0
