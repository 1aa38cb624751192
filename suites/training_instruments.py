"""What instruments find in a few steps of training: time by region, exposed communication, bytes by kind of message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ciera_piper_core.training.regions import COMMUNICATION, REGIONS, RESIDUAL, communication_shares
from ciera_piper_core.training.wire_bytes import COLLECTIVES, TOTAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.suite import Context


@dataclass
class Anatomy:
    """What was found, the same on all ranks.

    Attributes:
        seconds: by region, of each step, the mean over ranks; all regions and ``residual`` together are the step.
        exposed_seconds: of each step, what the slowest rank spends in regions of communication.
        residual_shares: of each step, the mean over ranks.
        shares: of the time of communication, by ``training.regions.SHARES``, of each step.
        wire_bytes: by kind of message, sent by all ranks together in a step, the mean over the steps.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    exposed_seconds: list[float] = field(default_factory=list)
    residual_shares: list[float] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)
    wire_bytes: dict[str, float] = field(default_factory=dict)


def look_into(step: Callable[[int], None], steps: int, context: Context) -> Anatomy:
    """Take so many steps with instruments (collective)."""
    from functools import partial

    from ciera_piper_core.training.breakdown import take_apart
    from ciera_piper_core.training.collective_log import logging_collectives

    mine: list[dict[str, float]] = []
    settle = _settle_of(context.site.device)
    with logging_collectives() as log:
        for number in range(steps):
            context.group.barrier()
            mine.append(take_apart(partial(step, number), settle).seconds)
            context.alive()
    return _joined(context.group.gather_objects(mine), context.group.gather_objects(log.sent))


def _joined(everyone: Sequence[Sequence[dict[str, float]]], sent: Sequence[dict[str, float]]) -> Anatomy:
    """One anatomy from that of each rank."""
    steps = list(zip(*everyone, strict=True))
    found = Anatomy()
    for by_rank in steps:
        means = {name: sum(spent[name] for spent in by_rank) / len(by_rank) for name in REGIONS}
        for name, mean in means.items():
            found.seconds.setdefault(name, []).append(mean)
        for name, share in communication_shares(means).items():
            found.shares.setdefault(name, []).append(share)
        found.exposed_seconds.append(max(sum(spent[name] for name in COMMUNICATION) for spent in by_rank))
        residuals = [spent[RESIDUAL] / (sum(spent.values()) or 1.0) for spent in by_rank]
        found.residual_shares.append(sum(residuals) / len(residuals))
    for name in COLLECTIVES:
        found.wire_bytes[name] = sum(rank.get(name, 0.0) for rank in sent) / max(1, len(steps))
    found.wire_bytes[TOTAL] = sum(found.wire_bytes.values())
    return found


def _settle_of(device: str) -> Callable[[], None] | None:
    if device != "cuda":
        return None
    import torch

    return torch.cuda.synchronize
