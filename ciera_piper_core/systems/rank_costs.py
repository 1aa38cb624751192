"""What a system's step costs on a rank without any other, measured with shallow models, so that any depth follows.

Tables of a platform profile know large products; most of a small model's step is what a host spends on
each operation. So the system itself is timed, each rank for itself: nothing is sent to others. All
ranks at the same time say what they take where they share cores and memory, one of them what it
takes alone. A model of one layer of a kind, and one of two, give the layer's cost and that of the rest.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import placement_from_nodes
from ciera_piper_core.systems.system import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ciera_piper_core.models.architecture import Layer
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

ROUNDS, UNTIMED = 12, 2
"""Steps of each model, and of them those before caches and allocators are warm."""


@dataclass(frozen=True)
class PartCosts:
    """Seconds of a part of the model.

    Attributes:
        forward, backward: of one microbatch. update: of the optimizer, with the norm of the gradients, once a step.
    """

    forward: float
    backward: float
    update: float

    def __add__(self, other: PartCosts) -> PartCosts:
        return PartCosts(self.forward + other.forward, self.backward + other.backward, self.update + other.update)

    @property
    def passes(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True)
class ModelCosts:
    """Of a whole model on one rank.

    Attributes:
        layers: in their order. rest: embedding, output, loss, and what a step takes however few layers there are.
    """

    layers: tuple[PartCosts, ...]
    rest: PartCosts

    @property
    def total(self) -> PartCosts:
        """Of all parts."""
        return sum(self.layers, start=self.rest)


@dataclass(frozen=True)
class RankCosts:
    """Of a system whose ranks have nothing to do with each other.

    Attributes:
        alone: while no other rank works. together: the slowest of all ranks, which work at the same time.
    """

    alone: ModelCosts
    together: ModelCosts

    @property
    def slowdown(self) -> float:
        """How many times longer passes take while all ranks work; at least 1."""
        return max(1.0, self.together.total.passes / self.alone.total.passes)


def measure_rank_costs(
    system: type[TrainingSystem],
    recipe: Recipe,
    ranks: Ranks,
    options: Mapping[str, Any],
    *,
    alive: Callable[[], None] = lambda: None,
) -> RankCosts:
    """Time the system on each rank of ``ranks`` for itself (collective).

    Args:
        recipe: of one rank: its share of a batch, its share of a layer's experts.
        options: of the system on one rank.
        alive: called after each step.
    """
    itself = Ranks(_group_of_itself(ranks), placement_from_nodes([0]), ranks.device)
    kinds = list(dict.fromkeys(recipe.architecture.layers))
    shallow = [(kinds[0],), *((kinds[0], kind) for kind in kinds)]
    built = [system(_with_layers(recipe, layers), itself, options) for layers in shallow]
    tokens = torch.arange(recipe.global_batch * (recipe.sequence + 1)) * 31 % recipe.architecture.vocab
    batch = tokens.view(recipe.global_batch, recipe.sequence + 1)

    def rounds() -> list[list[tuple[float, float, float]]]:
        found = [[_step(each, batch, recipe.microbatches, alive) for each in built] for _ in range(UNTIMED + ROUNDS)]
        return found[UNTIMED:]

    dist.barrier(group=ranks.group)
    everyone: list[Any] = [None] * ranks.world
    dist.all_gather_object(everyone, rounds(), group=ranks.group)
    # Of each step the slowest rank's: that is who the others wait for.
    together = np.array(everyone).max(axis=0)
    first: list[Any] = [rounds() if dist.get_rank(ranks.group) == 0 else None]
    dist.broadcast_object_list(first, group=ranks.group, group_src=0)
    for each in built:
        each.close()
    dist.destroy_process_group(itself.group)
    return RankCosts(*(_of_model(np.array(times), recipe, kinds) for times in (first[0], together)))


def _step(
    system: TrainingSystem, batch: torch.Tensor, microbatches: int, alive: Callable[[], None]
) -> tuple[float, float, float]:
    """Seconds of a forward and a backward pass of one microbatch, and of the update."""
    edges = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for call in (lambda: None, lambda: system.evaluate(batch), lambda: system.accumulate(batch), system.update):
            call()
            if batch.device.type == "cuda" or system.ranks.device.type == "cuda":
                torch.cuda.synchronize()
            edges.append(time.perf_counter())
    finally:
        if collecting:
            gc.enable()
    alive()
    forward, both, update = (after - before for before, after in pairwise(edges))
    forward, both = forward / microbatches, both / microbatches
    return forward, both - forward, update


def _of_model(times: np.ndarray[Any, Any], recipe: Recipe, kinds: Sequence[Layer]) -> ModelCosts:
    """From seconds ``(rounds, models, 3)`` of the shallow models."""
    one, *two = (PartCosts(*(median(column) for column in times[:, model].T)) for model in range(times.shape[1]))
    of_kind = {kind: _less(both, one) for kind, both in zip(kinds, two, strict=True)}
    return ModelCosts(tuple(of_kind[layer] for layer in recipe.architecture.layers), _less(one, of_kind[kinds[0]]))


def _less(whole: PartCosts, part: PartCosts) -> PartCosts:
    """The difference; noise makes nothing cheaper than nothing."""
    return PartCosts(
        *(max(0.0, getattr(whole, name) - getattr(part, name)) for name in ("forward", "backward", "update"))
    )


def _with_layers(recipe: Recipe, layers: tuple[Layer, ...]) -> Recipe:
    return replace(recipe, architecture=replace(recipe.architecture, layers=layers))


def _group_of_itself(ranks: Ranks) -> dist.ProcessGroup:
    """A group of this rank alone (collective over all ranks)."""
    mine = None
    for number, rank in enumerate(dist.get_process_group_ranks(ranks.group)):
        made = dist.new_group([rank], backend=dist.get_backend(ranks.group))
        if number == dist.get_rank(ranks.group):
            mine = made
    assert isinstance(mine, dist.ProcessGroup)
    return mine
