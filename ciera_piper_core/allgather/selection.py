"""Selection ``auto``: which segments of a run's plans are compressed, decided alike on all ranks.

Rank 0 decides from the largest shard that any rank has, and tells the others; so an estimate that
differs in its last bit cannot make ranks disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ciera_piper_core.allgather.change_trace import ChangeTrace
from ciera_piper_core.allgather.gain import Selection, select_shards
from ciera_piper_core.allgather.traffic import GatherTraffic, assumed_shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist

    from ciera_piper_core.allgather.gain import GainModel
    from ciera_piper_core.allgather.plan import GatherPlan, Segment


@dataclass(frozen=True)
class ChangeRates:
    """Assumed rates, where there is no trace.

    Attributes:
        elements: share of values whose exponent changes from one gather to the next.
        by_category: the same for segments of a category; they come before ``elements``.
        unchanged_gathers: gathers that find nothing changed, for each one that does: 1 where the
            backward pass gathers what the forward pass did.

    Raises:
        ValueError: a rate outside 0 to 1, or a count below 0.
    """

    elements: float
    by_category: Mapping[str, float] = field(default_factory=dict)
    unchanged_gathers: int = 0

    def __post_init__(self) -> None:
        for rate in (self.elements, *self.by_category.values()):
            if not 0 <= rate <= 1:
                raise ValueError(f"a change rate must be from 0 to 1, not {rate}")
        if self.unchanged_gathers < 0:
            raise ValueError(f"unchanged gathers must be 0 or more, not {self.unchanged_gathers}")

    def of(self, category: str) -> float:
        """The rate of a category."""
        return self.by_category.get(category, self.elements)


def plan_traffic(
    plan: GatherPlan, rates: ChangeTrace | ChangeRates, values: Sequence[int] | None = None
) -> GatherTraffic:
    """What a plan's gathers carry, all its segments compressed.

    A segment that the trace does not have counts as one that changes completely every time. A trace
    of shards of other sizes (another world, another rank) is scaled to these.

    Args:
        values: of each segment; the plan's own if None.
    """
    sizes = [segment.values for segment in plan.segments] if values is None else list(values)
    settings, layout = plan.settings, plan.layout
    if isinstance(rates, ChangeTrace):
        shards = _traced(plan, rates, sizes)
    else:
        shards = [
            assumed_shard(
                segment.name,
                segment.category,
                count,
                layout,
                settings.block,
                settings.mode,
                rates.of(segment.category),
                unchanged_gathers=rates.unchanged_gathers,
            )
            for segment, count in zip(plan.segments, sizes, strict=True)
        ]
    return GatherTraffic(plan.name or "gather", layout, settings.block, settings.mode, tuple(shards))


def _traced(plan: GatherPlan, trace: ChangeTrace, sizes: Sequence[int]) -> list[Any]:
    from dataclasses import replace

    import numpy as np

    recorded = next((gather for gather in trace.gathers if gather.name == (plan.name or "gather")), None)
    known = {shard.name: shard for shard in recorded.traffic().shards} if recorded else {}
    gathers = len(recorded.shards[0].coded_bytes) if recorded else 1
    shards = []
    for segment, count in zip(plan.segments, sizes, strict=True):
        if segment.name in known and known[segment.name].values:
            shard = known[segment.name]
            coded = shard.coded_bytes * (count / shard.values)
            shards.append(replace(shard, category=segment.category, values=count, coded_bytes=coded))
        else:
            shards.append(_unknown(plan, segment, count, np.ones(gathers)))
    return shards


def _unknown(plan: GatherPlan, segment: Segment, values: int, ones: Any) -> Any:
    from dataclasses import replace

    worst = assumed_shard(
        segment.name, segment.category, values, plan.layout, plan.settings.block, "block", element_rate=1.0
    )
    return replace(worst, changed=ones * worst.changed[0], coded_bytes=ones * worst.coded_bytes[0])


def select(
    plans: Sequence[GatherPlan],
    rates: ChangeTrace | ChangeRates,
    model: GainModel,
    budget_bytes: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[tuple[GatherPlan, ...], Selection]:
    """The plans with what is worth it selected, and why (collective over ``group``).

    Ranks' plans may differ in their numbers of values. ``rates``, ``model`` and the budget count as
    rank 0 has them.

    Args:
        plans: of all gathers of the run, in the same order on all ranks, by distinct names.
        budget_bytes: most cache bytes of a rank; None for no limit.
        group: the ranks; the default group if None. Without any, this process decides alone.

    Raises:
        ValueError: what rank 0 found wrong, on all ranks.
    """
    sizes = [[segment.values for segment in plan.segments] for plan in plans]
    everyone = _all_gathered(sizes, group)
    if any([len(plan) for plan in theirs] != [len(plan) for plan in sizes] for theirs in everyone):
        raise ValueError("ranks have plans of different segments; they may differ in numbers of values alone")
    largest = [
        [max(counts) for counts in zip(*(theirs[which] for theirs in everyone), strict=True)]
        for which in range(len(plans))
    ]

    def decide() -> Selection:
        traffic = [plan_traffic(plan, rates, values) for plan, values in zip(plans, largest, strict=True)]
        return select_shards(traffic, model, budget_bytes)

    selection = _decided_by_first(decide, group)
    chosen = [
        plan.with_selection(shard.name for shard in gather.shards if shard.verdict == "compress")
        for plan, gather in zip(plans, selection.gathers, strict=True)
    ]
    return tuple(chosen), selection


def _all_gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Every rank's value, in rank order (collective); without ranks, the own one."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def _decided_by_first(decide: Any, group: dist.ProcessGroup | None) -> Selection:
    """What rank 0 decides, or the error that it met, on all ranks."""
    import torch.distributed as dist

    alone = not dist.is_initialized()
    box: list[Any] = [None]
    if alone or dist.get_rank(group) == 0:
        try:
            box = [decide()]
        except ValueError as error:
            box = [error]
    if not alone:
        dist.broadcast_object_list(box, group_src=0, group=group)
    if isinstance(box[0], Exception):
        raise box[0]
    selection: Selection = box[0]
    return selection
