"""A second, slow way to the fluid engine's answer: one flow at a time, in plain Python, for tests."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.simulate.fabric import Fabric
    from ciera_piper_core.simulate.flows import Schedule


def fair_rates(paths: Sequence[Sequence[int]], bytes_s: Sequence[float]) -> list[Fraction]:
    """Max-min fair rates of single flows, exactly, by filling until one link is full, again and again."""
    room = [Fraction(rate) for rate in bytes_s]
    rates: list[Fraction | None] = [None] * len(paths)
    while any(rate is None for rate in rates):
        users = {
            link: [flow for flow, path in enumerate(paths) if link in path and rates[flow] is None]
            for link in range(len(room))
        }
        share = {link: room[link] / len(flows) for link, flows in users.items() if flows}
        narrow = min(share, key=lambda link: share[link])
        for flow in users[narrow]:
            rates[flow] = share[narrow]
            for link in paths[flow]:
                room[link] -= share[narrow]
    return [rate for rate in rates if rate is not None]


def makespan(fabric: Fabric, schedule: Schedule) -> float:
    """Seconds until all flows of all phases have ended, bandwidth alone."""
    flows = []
    for number, phase in enumerate(schedule.phases):
        paths = fabric.paths(phase.src, phase.dst)
        for src, dst, size, path in zip(
            phase.src.tolist(), phase.dst.tolist(), phase.bytes.tolist(), paths.tolist(), strict=True
        ):
            flows.append([number, src, dst, Fraction(size), [link for link in path if link >= 0]])
    now = Fraction(0)
    left = list(flows)

    def done(number: int, rank: int) -> bool:
        """Whether the rank has ended the phase, and all that must come before it."""
        before = all(done(each, rank) for each in schedule.phases[number].after)
        return before and not any(flow[0] == number and rank in flow[1:3] for flow in left)

    while left:
        running = [
            flow
            for flow in left
            if all(done(each, rank) for each in schedule.phases[flow[0]].after for rank in flow[1:3])
        ]
        rates = fair_rates([flow[4] for flow in running], fabric.bytes_s.tolist())
        step = min(flow[3] / rate for flow, rate in zip(running, rates, strict=True))
        now += step
        for flow, rate in zip(running, rates, strict=True):
            flow[3] -= rate * step
            # Fractions of floats grow without end; a grid far below what is compared keeps them short.
            flow[3] = Fraction(round(flow[3] * 2**40), 2**40)
        left = [flow for flow in left if flow[3] > Fraction(1, 2**20)]
        now = Fraction(math.ceil(now * 2**70), 2**70)
    return float(now)
