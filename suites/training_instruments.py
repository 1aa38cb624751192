"""What instruments find in a few steps of training: time by region, exposed communication, bytes by kind of message."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.suite import Context
    from ciera_piper_core.ranges import Span

TOTAL = "total"
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast", "other", TOTAL)
RESIDUAL = "residual"
COMMUNICATION = ("moe.dispatch", "moe.combine", "parameter_gather", "gradient_reduce", "pipeline_wait", "migration")
"""Regions in which the training thread moves data or waits for it."""
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
        exposed_seconds: of each step, what the slowest rank spends in regions of communication.
        residual_shares: of each step, the mean over ranks.
        wire_bytes: by kind of message, sent by all ranks together in a step, the mean over the steps.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    exposed_seconds: list[float] = field(default_factory=list)
    residual_shares: list[float] = field(default_factory=list)
    wire_bytes: dict[str, float] = field(default_factory=dict)


def look_into(step: Callable[[int], None], steps: int, context: Context) -> Anatomy:
    """Take so many steps with instruments (collective)."""
    from ciera_piper_core.ranges import recording
    from suites.sent_bytes import counting

    mine: list[dict[str, float]] = []
    settle = _settle_of(context.site.device)
    with counting() as sent:
        for number in range(steps):
            context.group.barrier()
            with recording(settle) as spans:
                began = time.perf_counter_ns()
                step(number)
                if settle:
                    settle()
                ended = time.perf_counter_ns()
            mine.append(exclusive_seconds(spans, began, ended, threading.get_ident()))
            context.alive()
    return _joined(context.group.gather_objects(mine), context.group.gather_objects(sent))


def exclusive_seconds(spans: Sequence[Span], began_ns: int, ended_ns: int, thread: int) -> dict[str, float]:
    """By region of ``REGIONS``, the time that one thread spends in it and in no region within it, s.

    What lies in none of them is ``residual``, so that all together are the time from began to ended.
    """
    mine = sorted(
        (span for span in spans if span.thread == thread and span.name in REGIONS),
        key=lambda span: (span.start_ns, -span.end_ns),
    )
    found = dict.fromkeys(REGIONS, 0)
    found[RESIDUAL] = ended_ns - began_ns
    open_spans: list[Span] = []
    for span in mine:
        while open_spans and open_spans[-1].end_ns <= span.start_ns:
            open_spans.pop()
        length = span.end_ns - span.start_ns
        found[span.name] += length
        # It is charged to this region, so no more to the one around it.
        found[open_spans[-1].name if open_spans else RESIDUAL] -= length
        open_spans.append(span)
    return {name: spent / 1e9 for name, spent in found.items()}


def _joined(everyone: Sequence[Sequence[dict[str, float]]], sent: Sequence[dict[str, float]]) -> Anatomy:
    """One anatomy from that of each rank."""
    steps = list(zip(*everyone, strict=True))
    found = Anatomy()
    for by_rank in steps:
        for name in REGIONS:
            found.seconds.setdefault(name, []).append(sum(spent[name] for spent in by_rank) / len(by_rank))
        found.exposed_seconds.append(max(sum(spent[name] for name in COMMUNICATION) for spent in by_rank))
        shares = [spent[RESIDUAL] / (sum(spent.values()) or 1.0) for spent in by_rank]
        found.residual_shares.append(sum(shares) / len(shares))
    for name in COLLECTIVES:
        found.wire_bytes[name] = sum(rank.get(name, 0.0) for rank in sent) / max(1, len(steps))
    found.wire_bytes[TOTAL] = sum(found.wire_bytes.values())
    return found


def _settle_of(device: str) -> Callable[[], None] | None:
    if device != "cuda":
        return None
    import torch

    return torch.cuda.synchronize
