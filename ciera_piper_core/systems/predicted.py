"""The step time that a model gives for a system that is built here, to be held against the measured one.

A rank's own work is measured without any other rank (``rank_costs``); that is no step of the system. Messages
are those of the platform's profile, at the sizes that occur; the planner's schedules say in which order
stages work and wait. So the prediction has what the step does not show by itself: ranks together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from ciera_piper_core.planner.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    dispatch_bytes,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from ciera_piper_core.planner.compute import optimizer_seconds
from ciera_piper_core.planner.schedule_batch import batch_seconds
from ciera_piper_core.planner.schedules import SCHEDULES
from ciera_piper_core.systems.pipeline_plan import OPTIONS, PipelinePlan
from ciera_piper_core.training.build import DTYPES, empty_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.models.architecture import Layer
    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.platforms.platform import Platform
    from ciera_piper_core.systems.rank_costs import ModelCosts, PartCosts, RankCosts
    from ciera_piper_core.training.recipe import Recipe

STATE_BYTES = 16
"""Of a parameter, that an update reads and writes: master, gradient, two moments in float32."""
SCALAR_BYTES = 8
SPLIT_BACKWARD = ("zero_bubble", "zbv")
RECORD_BYTES, COUNT_BYTES = 8, 8
"""That go with each row to its expert, and to each rank before them."""

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
        parts: by name: ``passes`` forward and backward of all microbatches, ``crowding`` of ranks that share cores
            and memory, ``pipeline`` waits and hops between stages, ``experts`` dispatch and combine, ``gathers`` of
            parameters, ``reductions`` of gradients, ``agreement`` on loss and norm, ``update`` by the optimizer.
    """

    parts: Mapping[str, Part]

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(part.seconds for part in self.parts.values())


@dataclass(frozen=True)
class Alone:
    """What one rank of a system does, as a system of one rank.

    Attributes:
        recipe: its share of the batch and of each layer's experts. options: of the system.
    """

    recipe: Recipe
    options: Mapping[str, Any]


def alone(name: str, recipe: Recipe, options: Mapping[str, Any], world: int) -> Alone:
    """One rank's work of a system on ``world`` ranks, whole models where the system cuts them into stages.

    Raises:
        ValueError: a system without prediction, or one that cannot run so.
    """
    _require(name)
    if name == "plain":
        return Alone(recipe, dict(options))
    if name == "fsdp":
        return Alone(_share(recipe, world, 1), dict(options))
    plan = PipelinePlan.of(recipe, world, options, (0,))
    _require_planned(plan)
    given = {**options, **{name: option.default for name, option in OPTIONS.items()}, "pp": 1, "ep": 1}
    return Alone(_share(recipe, plan.mesh.data_width, plan.mesh.ep), given)


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
        costs: of ``alone``.
        cores: ranks that all hosts together can compute with at once.

    Raises:
        ValueError: another system, a schedule that is not planned, or nothing is known of a network that is crossed.
    """
    _require(name)
    return PREDICTED[name](_Question(recipe, options, placement, platform, costs, cores))


@dataclass(frozen=True)
class _Question:
    recipe: Recipe
    options: Mapping[str, Any]
    placement: Placement
    platform: Platform
    costs: RankCosts
    cores: int

    @property
    def world(self) -> int:
        return self.placement.world

    @property
    def on_node(self) -> int:
        return max(len(node) for node in self.placement.nodes)

    def near(self, size: int) -> dict[str, int]:
        """Where a group of neighbouring ranks is."""
        return {"ranks_per_node": min(size, self.on_node)}


def _plain(asked: _Question) -> Prediction:
    microbatches, total = asked.recipe.microbatches, asked.costs.together.total
    return Prediction(
        {**_passes(asked, microbatches * asked.costs.alone.total.passes), "update": _update(total.update)}
    )


def _fsdp(asked: _Question) -> Prediction:
    recipe, world, platform = asked.recipe, asked.world, asked.platform
    # Each group's messages are its own: a layer's, and the rest's, which is gathered once for both passes.
    model = empty_model(recipe, device="meta")
    layers = [sum(weight.numel() for weight in layer.parameters()) for layer in model.layers.values()]
    whole = sum(weight.numel() for weight in model.parameters())
    elements = np.array([*layers, whole - sum(layers)], dtype=np.float64)
    times = np.array([*(2 if asked.options.get("reshard", True) else 1 for _ in layers), 1])
    gathered = elements * DTYPES[recipe.precision].itemsize
    reduced = elements * DTYPES[recipe.gradient_precision].itemsize
    gathers = all_gather_seconds(platform, gathered, world, **asked.near(world))
    reductions = reduce_scatter_seconds(platform, reduced, world, **asked.near(world))
    total = asked.costs.together.total
    # The same optimizer, over a share of each parameter.
    saved = float(optimizer_seconds(platform, STATE_BYTES * whole)) * (1 - 1 / world)
    update = max(total.update / world, total.update - saved)
    return Prediction(
        {
            **_passes(asked, recipe.microbatches * asked.costs.alone.total.passes),
            "gathers": _curve(recipe.microbatches * float((times * gathers).sum())),
            # Microbatches are summed up on each rank, and reduced after the last.
            "reductions": _curve(float(reductions.sum())),
            "agreement": _agreement(asked, (world, world)),
            "update": _update(update),
        }
    )


def _piper(asked: _Question) -> Prediction:
    recipe, costs = asked.recipe, asked.costs
    plan = PipelinePlan.of(recipe, asked.world, asked.options, (0,))
    _require_planned(plan)
    mesh, count = plan.mesh, recipe.microbatches
    bare = _pipeline(plan, count, costs.alone, np.zeros(plan.stages.count), 0.0)
    forward, backward = _stage_seconds(plan, costs.alone)
    busiest = count * max(sum(forward[stage] + backward[stage] for stage in held) for held in plan.stages.of_rank)
    exchange = _exchange_seconds(asked, plan)
    exchanges = np.array([sum(exchange[layer] for layer in held) for held in plan.stages.layers])
    hop = 0.0 if mesh.pp == 1 else float(_hop_seconds(asked, plan))
    with_exchanges = _pipeline(plan, count, costs.alone, exchanges, 0.0)
    with_hops = _pipeline(plan, count, costs.alone, exchanges, hop)
    active = asked.world / mesh.pp * count * float((forward + backward).sum()) / bare
    update = max(_of_rank(plan, costs.together, rank).update for rank in range(mesh.pp))
    parts = {
        "passes": Part(busiest, "measured", "a rank's own, alone"),
        "pipeline": Part(bare - busiest + with_hops - with_exchanges, "measured", "order of the schedule, sends"),
        "crowding": Part(bare * (_crowding(costs, active, asked.world, asked.cores) - 1), "measured", CROWDING),
        "experts": _curve(with_exchanges - bare),
        "reductions": _curve(_reduction_seconds(asked, plan)),
        # The loss over all ranks, then the norm: stages, and experts over those that share them.
        "agreement": _agreement(asked, (asked.world, mesh.pp, mesh.ep, mesh.pp)),
        "update": _update(update),
    }
    return Prediction(parts)


PREDICTED: Mapping[str, Callable[[_Question], Prediction]] = {"plain": _plain, "fsdp": _fsdp, "piper": _piper}
"""By system."""

CROWDING = "all ranks at the same time, against one"


def _require(name: str) -> None:
    if name not in PREDICTED:
        raise ValueError(f"no prediction of system {name!r}; there is one of {', '.join(PREDICTED)}")


def _require_planned(plan: PipelinePlan) -> None:
    if plan.schedule not in SCHEDULES:
        raise ValueError(f"schedule {plan.schedule} is not planned; known: {', '.join(SCHEDULES)}")


def _share(recipe: Recipe, width: int, ep: int) -> Recipe:
    """One of ``width`` data ranks' sequences, and one of ``ep`` ranks' experts with as many rows as it gets."""
    layers = tuple(_fewer_experts(layer, ep) for layer in recipe.architecture.layers)
    batch = recipe.sequences_per_microbatch(width) * recipe.microbatches
    return replace(recipe, global_batch=batch, architecture=replace(recipe.architecture, layers=layers))


def _fewer_experts(layer: Layer, ep: int) -> Layer:
    if layer.experts is None or ep == 1:
        return layer
    held = max(layer.experts.top_k, -(-layer.experts.experts // ep))
    return replace(layer, experts=replace(layer.experts, experts=held))


def _passes(asked: _Question, seconds: float) -> dict[str, Part]:
    """Passes of ranks that all work all the time."""
    crowding = seconds * (asked.costs.slowdown - 1)
    return {
        "passes": Part(seconds, "measured", "a rank's own, alone"),
        "crowding": Part(crowding, "measured", CROWDING),
    }


def _curve(seconds: float) -> Part:
    return Part(seconds, "measured", "the profile's curves at these sizes")


def _update(seconds: float) -> Part:
    return Part(seconds, "measured", "a rank's own, together; less bytes where parameters are sharded")


def _agreement(asked: _Question, groups: Sequence[int]) -> Part:
    seconds = sum(float(all_reduce_seconds(asked.platform, SCALAR_BYTES, size, **asked.near(size))) for size in groups)
    return _curve(seconds)


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
    held = [costs.layers[layer] for layer in plan.stages.layers_of_rank(rank)]
    last = plan.stages.has_last(rank)
    return sum(held[1:], start=held[0]) + costs.rest if last else sum(held[1:], start=held[0])


def _stage_seconds(plan: PipelinePlan, costs: ModelCosts) -> tuple[Any, Any]:
    """Forward and backward seconds of a microbatch by stage."""
    forward = np.array([sum(costs.layers[layer].forward for layer in held) for held in plan.stages.layers])
    backward = np.array([sum(costs.layers[layer].backward for layer in held) for held in plan.stages.layers])
    forward[-1] += costs.rest.forward
    backward[-1] += costs.rest.backward
    return forward, backward


def _pipeline(plan: PipelinePlan, microbatches: int, costs: ModelCosts, exchanges: Any, hop: float) -> float:
    """Seconds from the first forward to the last backward.

    Args:
        exchanges: of each stage's experts in a pass, forward or backward.
    """
    forward, backward = _stage_seconds(plan, costs)
    forward, backward = forward + exchanges, backward + exchanges
    if plan.mesh.pp == 1:
        return microbatches * float((forward + backward).sum())
    split = plan.schedule in SPLIT_BACKWARD
    weight = backward / 2 if split else np.zeros_like(backward)
    schedule = cast("Schedule", plan.schedule)
    rows = (each[None, :] for each in (forward, backward - weight, weight))
    return float(batch_seconds(schedule, plan.mesh.pp, microbatches, *rows, np.array([hop]))[0])


def _hop_seconds(asked: _Question, plan: PipelinePlan) -> float:
    recipe, stride = asked.recipe, asked.world // plan.mesh.pp
    sequences = recipe.sequences_per_microbatch(plan.mesh.data_width)
    sent = sequences * recipe.sequence * recipe.architecture.hidden * DTYPES[recipe.precision].itemsize
    crosses = any(
        asked.placement.node_of(rank) != asked.placement.node_of(rank + stride) for rank in range(asked.world - stride)
    )
    return float(point_to_point_seconds(asked.platform, sent, crosses))


def _exchange_seconds(asked: _Question, plan: PipelinePlan) -> list[float]:
    """Of each layer, what dispatch and combine of a pass take between ranks; half of both passes' time."""
    recipe, ep, platform = asked.recipe, plan.mesh.ep, asked.platform
    tokens = recipe.sequences_per_microbatch(plan.mesh.data_width) * recipe.sequence
    algorithm = "halo" if plan.alltoall.startswith("halo") and ep > asked.on_node else "flat"
    found = []
    for layer in recipe.architecture.layers:
        if layer.experts is None or ep == 1:
            found.append(0.0)
            continue
        width = layer.experts.expert_hidden or recipe.architecture.hidden
        choices = tokens * layer.experts.top_k
        rows = float(dispatch_bytes(tokens, layer.experts.top_k, width, DTYPES[recipe.precision].itemsize))
        # Forward: counts, records and rows, and rows back; backward: their gradients both ways.
        sizes = [COUNT_BYTES * ep, RECORD_BYTES * choices, rows, rows, rows, rows]
        if recipe.checkpointing == "full":
            sizes += sizes[:4]
        each = all_to_all_seconds(platform, sizes, ep, algorithm, **asked.near(ep))
        found.append(float(each.sum()) / 2)
    return found


def _reduction_seconds(asked: _Question, plan: PipelinePlan) -> float:
    """Sums of the gradients of the fullest stage: of what all data ranks have, and of experts."""
    recipe, mesh = asked.recipe, plan.mesh
    if mesh.data_width == 1:
        return 0.0
    model = empty_model(recipe, device="meta")
    copied, experts = np.zeros(mesh.pp), np.zeros(mesh.pp)
    layer_of = {f"layers.{number}.": number for number in range(len(recipe.architecture.layers))}
    for name, weight in model.named_parameters():
        layer = next((number for prefix, number in layer_of.items() if name.startswith(prefix)), None)
        if layer is not None:
            rank = next(rank for rank in range(mesh.pp) if layer in plan.stages.layers_of_rank(rank))
        else:
            rank = plan.stages.rank_of(0 if name.startswith("embedding") else plan.stages.count - 1)
        if "routed_experts.experts." in name:
            experts[rank] += math.ceil(weight.numel() / mesh.ep)
        else:
            copied[rank] += weight.numel()
    item = DTYPES[recipe.gradient_precision].itemsize
    of_copied = all_reduce_seconds(asked.platform, item * copied, mesh.data_width, **asked.near(mesh.data_width))
    # Ranks that hold the same experts are as far apart as there are different ones.
    apart = max(1, min(mesh.dp, asked.on_node // mesh.ep))
    of_experts = all_reduce_seconds(asked.platform, item * experts, mesh.dp, ranks_per_node=apart)
    return float((of_copied + of_experts).max())
