"""What to profile with, how long, and where the files go; checked once, then sent to every rank."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from bench.errors import UsageError

Tool = Literal["torch", "py-spy", "nsys", "ncu"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
MOST_ITERATIONS = 10_000
MOST_SECONDS = 600.0


@dataclass(frozen=True)
class ProfileSettings:
    """How a case is profiled.

    Attributes:
        tool: one of ``TOOLS``.
        folder: where the files of the case go.
        iterations: to profile, with torch, nsys and ncu.
        seconds: for which py-spy samples, once for the raw stacks and once for the flame graph.
    """

    tool: Tool
    folder: str
    iterations: int = 5
    seconds: float = 3.0

    def __post_init__(self) -> None:
        if self.tool not in TOOLS:
            raise UsageError(f"--with takes {', '.join(TOOLS)}, not {self.tool!r}")
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise UsageError(f"--iterations needs a whole number from 1 to {MOST_ITERATIONS:,}, not {self.iterations}")
        if not 1 <= self.seconds <= MOST_SECONDS:
            raise UsageError(f"--seconds needs 1 to {MOST_SECONDS:g}, not {self.seconds:g}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
