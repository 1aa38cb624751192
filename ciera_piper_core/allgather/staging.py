"""Cuts large gathers into stages, so that coding hides behind the wire within one gather too."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ciera_piper_core.allgather.agreement import Agreement

if TYPE_CHECKING:
    from ciera_piper_core.allgather.plan import GatherPlan, Segment
    from ciera_piper_core.exponents.backend import Backend

STAGED_BYTES = 4 << 20
"""Shards from this size on are gathered in stages: for smaller ones a collective's latency outweighs their coding."""

WEIGHTS = (1, 2, 2, 1)
"""Parts of the shard. Only the first part's coding and the last one's decoding find nothing to hide behind."""

GRANULE = 4096
"""Stages begin at multiples of so many values: whole blocks, whole cache lines, whole bytes of packed planes."""


def stages_of(agreement: Agreement, backend: Backend, staged: bool | None) -> tuple[Agreement, ...]:
    """The stages of a gather, each with its own plan, payload and place in the output; the same on all ranks.

    Args:
        agreement: on the whole shards.
        staged: whether to cut; None for what pays. Ranks' shards of different sizes are never cut.
    """
    plan = agreement.plans[0]
    if staged is None:
        staged = plan.shard_bytes >= STAGED_BYTES
    if not staged or len({one.digest for one in agreement.plans}) > 1:
        return (agreement,)
    total = sum(WEIGHTS)
    ends = [plan.values * end // total // GRANULE * GRANULE for end in accumulate(WEIGHTS[:-1])]
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
