"""Peak memory of this process from a moment on: torch's on a GPU, the resident set on a CPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to ``clear_refs``, it sets the peak to what is resident now (Linux 4.0)."""


class PeakMemory:
    """Begins to watch when it is made.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: Literal["cpu", "cuda"]) -> None:
        self._device = device
        if device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
        else:
            # Where that is not allowed, the peak is one of all times, and what it shows may be too much.
            with suppress(OSError):
                CLEAR.write_text(RESET_PEAK)
        self._before = self._now()

    @property
    def added_bytes(self) -> int:
        """The most that was held since, above what was held then."""
        if self._device == "cuda":
            import torch

            return max(0, torch.cuda.max_memory_allocated() - self._before)
        return max(0, _of_status("VmHWM") - self._before)

    def _now(self) -> int:
        if self._device == "cuda":
            import torch

            return torch.cuda.memory_allocated()
        return _of_status("VmRSS")


def _of_status(name: str) -> int:
    """Bytes of a field of the kernel's status of this process; 0 where there is none."""
    try:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return 0
    return int(line.split()[1]) * 1024
