"""The step time that the planner's model gives for a system that is built here, to be held against the measured one.

The planner knows the machine by its profile: products, memory, messages. It knows nothing of what a
host spends on a pass however small its tensors are, which is most of a tiny model's step; ``HostCosts``
are measured by the system itself, on one rank and with the shortest sequences, and added where they fall.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ciera_piper_core.planner.communication import all_gather_seconds, reduce_scatter_seconds
from ciera_piper_core.planner.estimate import Estimator, columns_of
from ciera_piper_core.planner.schedule_batch import batch_seconds
from ciera_piper_core.planner.schedules import SCHEDULES, chunks_of
from ciera_piper_core.planner.strategy import Question, Strategy
from ciera_piper_core.systems.pipeline_plan import PipelinePlan
from ciera_piper_core.training.build import DTYPES, empty_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.platforms.platform import Platform
    from ciera_piper_core.systems.system import Ranks, TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

PREDICTED = ("fsdp", "piper")
SHORTEST = 8
"""Tokens of a sequence of which only the host's costs are left."""
ROUNDS = 7


@dataclass(frozen=True)
class HostCosts:
    """What a step takes without work or messages to speak of, seconds.

    Attributes:
        forward, backward: of a microbatch through the whole model. update: of the optimizer, once a step.
    """

    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step.

    Attributes:
        pipeline: passes of all microbatches, with the waits of a pipeline. gathers, reductions: of parameters and
            gradients, between data ranks. optimizer: its update.
    """

    pipeline: float
    gathers: float
    reductions: float
    optimizer: float

    @property
    def total(self) -> float:
        """Of the step."""
        return self.pipeline + self.gathers + self.reductions + self.optimizer


def predict(
    name: str,
    recipe: Recipe,
    options: Mapping[str, Any],
    world: int,
    platform: Platform,
    host: HostCosts | None = None,
) -> Prediction:
    """The planner's step time of a system on ``world`` ranks.

    Args:
        name: of ``PREDICTED``. options: all of the system's.
        platform: of a profile of this machine, in the recipe's precision.
        host: None for what the planner alone says.

    Raises:
        ValueError: another system, more ranks than the platform has, float32, a schedule that is not planned.
    """
    if name not in PREDICTED:
        raise ValueError(f"no prediction of system {name!r}; there is one of {', '.join(PREDICTED)}")
    costs = host or HostCosts()
    if name == "fsdp":
        return _fsdp(recipe, options, world, platform, costs)
    return _piper(recipe, options, world, platform, costs)


def measure_host(system: type[TrainingSystem], recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> HostCosts:
    """The costs of ``system``, on the one rank of ``ranks``.

    Raises:
        ValueError: more than one rank.
    """
    if ranks.world != 1:
        raise ValueError(f"what a host spends is measured on one rank, not on {ranks.world}")
    short = replace(recipe, sequence=SHORTEST, global_batch=recipe.microbatches)
    alone = {**options, **{name: 1 for name in ("pp", "ep") if name in options}}
    built = system(short, ranks, alone)
    tokens = torch.arange(short.global_batch * (SHORTEST + 1)) % recipe.architecture.vocab
    batch = tokens.view(short.global_batch, SHORTEST + 1)
    taken: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        edges = [time.perf_counter()]
        built.evaluate(batch)
        edges.append(time.perf_counter())
        built.accumulate(batch)
        edges.append(time.perf_counter())
        built.update()
        edges.append(time.perf_counter())
        taken.append((edges[1] - edges[0], edges[2] - edges[1], edges[3] - edges[2]))
    built.close()
    forward, both, update = (median(each) for each in zip(*taken, strict=True))
    forward, both = forward / recipe.microbatches, both / recipe.microbatches
    return HostCosts(forward, max(0.0, both - forward), update)


def _fsdp(recipe: Recipe, options: Mapping[str, Any], world: int, platform: Platform, host: HostCosts) -> Prediction:
    strategy = Strategy(
        pp=1,
        ep=1,
        dp=world,
        tp=1,
        microbatches=recipe.microbatches,
        sequences_per_gpu=recipe.global_batch // world,
        schedule="1f1b",
        checkpointing=recipe.checkpointing,
        zero_stage=3,
        alltoall="flat",
    )
    pipeline, optimizer = _passes(strategy, recipe, world, platform, host)
    # Each group's messages are its own: a layer's, and the rest's, which is gathered once for both passes.
    model = empty_model(recipe, device="meta")
    layers = [sum(weight.numel() for weight in layer.parameters()) for layer in model.layers.values()]
    rest = sum(weight.numel() for weight in model.parameters()) - sum(layers)
    elements = np.array([*layers, rest], dtype=np.float64)
    times = np.array([*(2 if options.get("reshard", True) else 1 for _ in layers), 1])
    gathered = elements * DTYPES[recipe.precision].itemsize
    reduced = elements * DTYPES[recipe.gradient_precision].itemsize
    on_node = min(world, platform.gpus_per_node)
    gathers = all_gather_seconds(platform, gathered, world, ranks_per_node=on_node)
    reductions = reduce_scatter_seconds(platform, reduced, world, ranks_per_node=on_node)
    gathering = float(recipe.microbatches * (times * gathers).sum())
    # Microbatches are summed up on each rank, and reduced after the last.
    return Prediction(pipeline, gathering, float(reductions.sum()), optimizer)


def _piper(recipe: Recipe, options: Mapping[str, Any], world: int, platform: Platform, host: HostCosts) -> Prediction:
    plan = PipelinePlan.of(recipe, world, options, (0,))
    if plan.schedule not in SCHEDULES:
        raise ValueError(f"schedule {plan.schedule} is not planned; known: {', '.join(SCHEDULES)}")
    strategy = Strategy(
        pp=plan.mesh.pp,
        ep=plan.mesh.ep,
        dp=plan.mesh.dp,
        tp=1,
        microbatches=recipe.microbatches,
        sequences_per_gpu=recipe.global_batch // plan.mesh.data_width,
        schedule=plan.schedule,
        checkpointing=recipe.checkpointing,
        zero_stage=0,
        # Within one node HALO is flat.
        alltoall="halo" if plan.alltoall.startswith("halo") and world > platform.gpus_per_node else "flat",
    )
    pipeline, optimizer = _passes(strategy, recipe, world, platform, host)
    timing, rows = _estimator(recipe, world, platform).timing, columns_of(strategy)
    replicated, experts = timing.sync_seconds(strategy.pp, _schedule(strategy), rows)
    return Prediction(pipeline, 0.0, float(replicated[0] + experts[0]), optimizer)


def _passes(strategy: Strategy, recipe: Recipe, world: int, platform: Platform, host: HostCosts) -> tuple[float, float]:
    """Seconds of all microbatches' passes, and of the update."""
    estimator = _estimator(recipe, world, platform)
    timing, rows, schedule = estimator.timing, columns_of(strategy), _schedule(strategy)
    estimator.footprint.expect(rows)
    forward, backward, weight = timing.stage_seconds(strategy.pp, schedule, rows)
    layers = estimator.kinds.by_stage(strategy.pp * chunks_of(schedule)).sum(axis=1)
    share = (layers / layers.sum())[None, :]
    forward, backward = forward + host.forward * share, backward + host.backward * share
    if strategy.pp == 1:
        pipeline = strategy.microbatches * float((forward + backward + weight).sum())
    else:
        hop = timing.hop_seconds(rows)
        pipeline = float(batch_seconds(schedule, strategy.pp, strategy.microbatches, forward, backward, weight, hop)[0])
    state = estimator.footprint.state_bytes(strategy.pp, schedule, rows)
    optimizer = float(timing.step(strategy.pp, schedule, rows, state).optimizer[0])
    return pipeline, optimizer + host.update / strategy.pp


def _estimator(recipe: Recipe, world: int, platform: Platform) -> Estimator:
    return Estimator(
        Question(
            architecture=recipe.architecture,
            platform=platform,
            gpus=world,
            sequence=recipe.sequence,
            global_batch=recipe.global_batch,
            optimizer=recipe.optimizer,
            precision=recipe.precision,
        )
    )


def _schedule(strategy: Strategy) -> Schedule:
    return cast("Schedule", strategy.schedule)
