"""The step time that a model gives for a system that is built here, to be held against the measured one.

What a rank does by itself is measured (``rank_costs``): nothing is sent then, and nobody waits. Which messages a
step sends is known from the same run, and what they take from the platform's profile, by the planner's formulas.
The planner's schedules say in which order stages work and wait. So no step of the system is in its prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from ciera_piper_core.planner.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from ciera_piper_core.planner.schedule_batch import batch_seconds
from ciera_piper_core.planner.schedules import SCHEDULES, SPLIT_BACKWARD
from ciera_piper_core.systems.pipeline_plan import OPTIONS, PipelinePlan
from ciera_piper_core.systems.rank_costs import Message, RankCosts
from ciera_piper_core.training.build import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.planner.communication import AllToAll
    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.platforms.platform import Platform
    from ciera_piper_core.systems.rank_costs import ModelCosts, PartCosts
    from ciera_piper_core.training.recipe import Recipe

    Floats = NDArray[np.float64]

PREDICTED = ("plain", "fsdp", "piper")
EXCHANGES = "all_to_all"
SCALAR_BYTES = 8
AGREEMENTS = 3
"""Sums of one number over the stages of a pipeline in a step: the loss, and two kinds of gradients in the norm."""
OWN = "what each rank does by itself, with shallow models"
CROWDING = "all ranks at the same time against one alone, nothing sent"
SENT = "by the profile, at the sizes that the system sends"
ORDER = "the schedule's order of operations, and the profile's sends between stages"

Status = Literal["measured", "assumed"]


@dataclass(frozen=True)
class Part:
    """A part of a step.

    Attributes:
        seconds: of it. status: how it is known. how: in words.
    """

    seconds: float
    status: Status
    how: str


@dataclass(frozen=True)
class Prediction:
    """A step, in parts that add up.

    Attributes:
        parts: by name: ``passes`` forward and backward of all microbatches on the busiest rank, ``crowding`` of ranks
            that share cores and memory, ``pipeline`` waits and sends between stages, messages by kind of
            ``wire_bytes``, ``update`` by the optimizer.
    """

    parts: Mapping[str, Part]

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(part.seconds for part in self.parts.values())


@dataclass(frozen=True)
class Spread:
    """What ranks do by themselves, where a pipeline's stages are one.

    Attributes:
        width: neighbouring ranks that share the work: all, or a stage's. options: of the system on so many.
    """

    width: int
    options: Mapping[str, Any]


def spread_of(name: str, recipe: Recipe, options: Mapping[str, Any], world: int) -> Spread:
    """The work to measure for a system on ``world`` ranks.

    Raises:
        ValueError: a system without prediction, or one that cannot run so.
    """
    if name not in PREDICTED:
        raise ValueError(f"no prediction of system {name!r}; there is one of {', '.join(PREDICTED)}")
    if name != "piper":
        return Spread(world, dict(options))
    plan = _planned(recipe, options, world)
    defaults = {name: option.default for name, option in OPTIONS.items()}
    changed = {"pp": 1, "ep": plan.mesh.ep, "placement": plan.placement, "alltoall": plan.alltoall}
    return Spread(world // plan.mesh.pp, {**options, **defaults, **changed})


def message_seconds(platform: Platform, placement: Placement, alltoall: str = "") -> Callable[[Message], float]:
    """What a message takes, by a profile.

    Args:
        placement: of all ranks.
        alltoall: algorithm of exchanges, of ``alltoall.ALGORITHMS``; HALO counts between nodes only.
    """
    gathers = {
        "all_gather": all_gather_seconds,
        "reduce_scatter": reduce_scatter_seconds,
        "all_reduce": all_reduce_seconds,
    }

    def seconds(message: Message) -> float:
        nodes = [placement.node_of(rank) for rank in message.ranks]
        count, on_node = len(nodes), max(nodes.count(node) for node in set(nodes))
        if message.kind == EXCHANGES:
            algorithm: AllToAll = "halo" if alltoall.startswith("halo") and count > on_node else "flat"
            found = all_to_all_seconds(platform, message.size, count, algorithm, ranks_per_node=on_node)
        elif message.kind in gathers:
            found = gathers[message.kind](platform, message.size, count, ranks_per_node=on_node)
        else:
            raise ValueError(f"nothing is known of what a {message.kind} takes")
        return float(found)

    return seconds


def predict(
    name: str,
    recipe: Recipe,
    options: Mapping[str, Any],
    placement: Placement,
    platform: Platform,
    costs: RankCosts,
    cores: int,
) -> Prediction:
    """The step of a system.

    Args:
        name: of ``PREDICTED``. options: all of the system's.
        placement: of its ranks. platform: of a profile of this machine.
        costs: of ``spread_of``, with ``message_seconds``.
        cores: ranks that all hosts together can compute with at once.

    Raises:
        ValueError: another system, a schedule that is not planned, or nothing is known of a network that is crossed.
    """
    if name == "piper":
        return _pipelined(recipe, _planned(recipe, options, placement.world), placement, platform, costs, cores)
    passes = recipe.microbatches * costs.alone.total.passes
    total = costs.together.total
    return Prediction(
        {
            "passes": Part(passes, "measured", OWN),
            "crowding": Part(passes * (costs.slowdown - 1), "measured", CROWDING),
            **{kind: Part(seconds, "measured", SENT) for kind, seconds in total.messages.items()},
            "update": Part(total.update, "measured", OWN),
        }
    )


def _planned(recipe: Recipe, options: Mapping[str, Any], world: int) -> PipelinePlan:
    plan = PipelinePlan.of(recipe, world, options, (0,))
    if plan.schedule not in SCHEDULES:
        raise ValueError(f"schedule {plan.schedule} is not planned; known: {', '.join(SCHEDULES)}")
    return plan


def _pipelined(
    recipe: Recipe, plan: PipelinePlan, placement: Placement, platform: Platform, costs: RankCosts, cores: int
) -> Prediction:
    world, mesh, count = placement.world, plan.mesh, recipe.microbatches
    forward, backward = _stage_seconds(plan, costs.alone)
    # A layer's exchanges are as many and as large forward as backward.
    each_way = [layer.messages.get(EXCHANGES, 0.0) / (2 * count) for layer in costs.alone.layers]
    exchanges = np.array([sum(each_way[layer] for layer in held) for held in plan.stages.layers])
    bare = _pipeline(plan, count, forward, backward, 0.0)
    exchanging = _pipeline(plan, count, forward + exchanges, backward + exchanges, 0.0)
    whole = _pipeline(
        plan, count, forward + exchanges, backward + exchanges, _hop_seconds(recipe, plan, placement, platform)
    )
    by_rank = [_of_rank(plan, costs.together, rank) for rank in range(mesh.pp)]
    busiest = count * max(
        float(sum(forward[stage] + backward[stage] for stage in held)) for held in plan.stages.of_rank
    )
    active = world / mesh.pp * count * float((forward + backward).sum()) / bare
    others = {kind: max(rank.messages.get(kind, 0.0) for rank in by_rank) for kind in by_rank[-1].messages}
    others["all_reduce"] = others.get("all_reduce", 0.0) + _agreement_seconds(plan, placement, platform)
    others[EXCHANGES] = exchanging - bare
    return Prediction(
        {
            "passes": Part(busiest, "measured", OWN),
            "pipeline": Part(max(0.0, bare - busiest + whole - exchanging), "assumed", ORDER),
            "crowding": Part(bare * (_crowding(costs, active, world, cores) - 1), "measured", CROWDING),
            **{kind: Part(seconds, "measured", SENT) for kind, seconds in others.items()},
            "update": Part(max(rank.update for rank in by_rank), "measured", OWN),
        }
    )


def _crowding(costs: RankCosts, active: float, world: int, cores: int) -> float:
    """How many times longer ranks take of which ``active`` work at a time, on average.

    Where there are more of them than cores, they take turns; what is left of the measured slowdown is what they do
    to each other's caches and memory, and begins with the second.
    """
    turns = max(1.0, world / cores)
    shared = max(1.0, costs.slowdown / turns)
    most = min(world, cores) - 1
    crowd = min(1.0, max(0.0, active - 1) / most) if most > 0 else 0.0
    return max(1.0, active / cores) * (1 + (shared - 1) * crowd)


def _of_rank(plan: PipelinePlan, costs: ModelCosts, rank: int) -> PartCosts:
    """A pipeline rank's part of the model; the rest goes with the output."""
    first, *others = (costs.layers[layer] for layer in plan.stages.layers_of_rank(rank))
    layers = sum(others, start=first)
    return layers + costs.rest if plan.stages.has_last(rank) else layers


def _stage_seconds(plan: PipelinePlan, costs: ModelCosts) -> tuple[Floats, Floats]:
    """Forward and backward seconds of a microbatch by stage."""
    forward = np.array([sum(costs.layers[layer].forward for layer in held) for held in plan.stages.layers])
    backward = np.array([sum(costs.layers[layer].backward for layer in held) for held in plan.stages.layers])
    forward[-1] += costs.rest.forward
    backward[-1] += costs.rest.backward
    return forward, backward


def _pipeline(plan: PipelinePlan, microbatches: int, forward: Floats, backward: Floats, hop: float) -> float:
    """Seconds from the first forward to the last backward."""
    if plan.mesh.pp == 1:
        return microbatches * float((forward + backward).sum())
    weight = backward / 2 if plan.schedule in SPLIT_BACKWARD else np.zeros_like(backward)
    ahead, back, later = (each[None, :] for each in (forward, backward - weight, weight))
    schedule = cast("Schedule", plan.schedule)
    return float(batch_seconds(schedule, plan.mesh.pp, microbatches, ahead, back, later, np.array([hop]))[0])


def _hop_seconds(recipe: Recipe, plan: PipelinePlan, placement: Placement, platform: Platform) -> float:
    """From a stage to the next, for one microbatch; 0 where there is one stage."""
    if plan.mesh.pp == 1:
        return 0.0
    tokens = recipe.sequences_per_microbatch(plan.mesh.data_width) * recipe.sequence
    sent = tokens * recipe.architecture.hidden * DTYPES[recipe.precision].itemsize
    crosses = any(placement.node_of(one) != placement.node_of(other) for one, other in _neighbours(plan, placement))
    return float(point_to_point_seconds(platform, sent, crosses))


def _agreement_seconds(plan: PipelinePlan, placement: Placement, platform: Platform) -> float:
    """Sums of single numbers over the stages."""
    if plan.mesh.pp == 1:
        return 0.0
    stride = placement.world // plan.mesh.pp
    stages = Message("all_reduce", tuple(range(0, placement.world, stride)), SCALAR_BYTES)
    return AGREEMENTS * message_seconds(platform, placement)(stages)


def _neighbours(plan: PipelinePlan, placement: Placement) -> list[tuple[int, int]]:
    """Pairs of ranks of neighbouring stages."""
    stride = placement.world // plan.mesh.pp
    return [(rank, rank + stride) for rank in range(placement.world - stride)]
