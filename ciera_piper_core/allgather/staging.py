"""Cuts large gathers into stages, so that coding hides behind the wire within one gather too."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ciera_piper_core.allgather.agreement import Agreement

if TYPE_CHECKING:
    from ciera_piper_core.allgather.lane import GatherLane
    from ciera_piper_core.allgather.plan import GatherPlan, Segment
    from ciera_piper_core.exponents.backend import Backend

SLOW_BYTES_PER_S = 0.3e9
"""A wire slower than this (about 2.5 Gbit/s) is so slow that coding hides behind it well."""

SLOW_WIRE_BYTES = 4 << 20
"""Shards from this size on are cut in two where the wire is slow (2 nodes at 1 Gbit/s: 4 MiB gain about a tenth)."""

LARGE_BYTES = 16 << 20
"""Shards from this size on are cut in four, however fast the wire (4 ranks on the 2 cores of one host: 16 MiB gain
about a third, while 4 and 8 MiB lose to the hand-over between threads)."""

FEW, MANY = (1, 1), (2, 2, 1, 1)
"""Parts of the shard. Only the first part's coding and the last ones' decoding find nothing to hide behind; the last
two share the wire, and so arrive almost together."""

GRANULE = 4096
"""Stages begin at multiples of so many values: whole blocks, whole cache lines, whole bytes of packed planes."""


def pays(agreement: Agreement, lane: GatherLane) -> bool:
    """Whether stages pay for a gather (collective over the lane; the same on all ranks)."""
    largest = max(plan.shard_bytes for plan in agreement.plans)
    if lane.device.type != "cpu" or largest < SLOW_WIRE_BYTES:
        # On a GPU it has not been measured.
        return False
    return largest >= LARGE_BYTES or lane.wire_bytes_per_s() < SLOW_BYTES_PER_S


def stages_of(agreement: Agreement, backend: Backend, staged: bool) -> tuple[Agreement, ...]:
    """The stages of a gather, each with its own plan, payload and place in the output; the same on all ranks.

    Args:
        agreement: on the whole shards.
        staged: whether to cut. Ranks' shards of different sizes never are.
    """
    plan = agreement.plans[0]
    if not staged or len({one.digest for one in agreement.plans}) > 1:
        return (agreement,)
    weights = MANY if plan.shard_bytes >= LARGE_BYTES else FEW
    total = sum(weights)
    ends = [plan.values * end // total // GRANULE * GRANULE for end in accumulate(weights[:-1])]
    cuts = sorted({0, *ends, plan.values})
    if len(cuts) < 3:
        return (agreement,)
    stages = []
    for stage, (begin, end) in enumerate(pairwise(cuts)):
        plans = (part_of(plan, begin, end),) * len(agreement.plans)
        starts = tuple(start + begin for start in agreement.starts)
        stages.append(Agreement.of(plans, starts, backend, stage + 1))
    return tuple(stages)


def part_of(plan: GatherPlan, begin: int, end: int) -> GatherPlan:
    """The plan of values ``[begin, end)`` of a shard; pieces of a segment that reaches beyond keep its name."""
    segments: list[Segment] = []
    for one in plan.segments:
        first, last = max(one.offset, begin), min(one.offset + one.values, end)
        if first < last:
            segments.append(replace(one, offset=first - begin, values=last - first))
    return replace(plan, segments=tuple(segments))
