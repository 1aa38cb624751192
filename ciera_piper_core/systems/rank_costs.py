"""What a system's step costs each rank by itself: everything but messages, measured with shallow models.

Tables of a platform profile know large products; most of a small model's step is what a host spends on
each operation. So the system itself is timed, on a group in which nothing is sent: torch's ``fake``
backend gives a rank its own data for everybody's. All ranks at the same time say what they take
where they share cores and memory, one of them what it takes alone. A model of one layer of a kind, and
one of two, give the layer's cost and that of the rest, so any depth follows. Which messages there
are to send is logged meanwhile.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.systems.system import Ranks
from ciera_piper_core.training.collective_log import logging_collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ciera_piper_core.models.architecture import Layer
    from ciera_piper_core.systems.system import TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

ROUNDS, UNTIMED = 12, 2
"""Steps of each model that count, and those before, until caches and allocators are warm."""
SILENT = "fake"
"""The backend that sends nothing."""


@dataclass(frozen=True)
class Message:
    """One collective that a step would send.

    Attributes:
        kind: of ``wire_bytes``. ranks: that take part, by their number in the world.
        size: bytes as nccl-tests counts S: the total over ranks of gathers, what each rank puts in of all others.
    """

    kind: str
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class PartCosts:
    """Seconds of a part of the model.

    Attributes:
        forward, backward: of one microbatch. update: of the optimizer, with the norm of the gradients, once a step.
        messages: of a step, by kind; in none of the others.
    """

    forward: float
    backward: float
    update: float
    messages: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: PartCosts) -> PartCosts:
        return self._with(other, 1)

    def __sub__(self, other: PartCosts) -> PartCosts:
        """The difference; noise makes nothing cheaper than nothing."""
        return self._with(other, -1)

    @property
    def passes(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward

    def _with(self, other: PartCosts, sign: int) -> PartCosts:
        kinds = dict.fromkeys((*self.messages, *other.messages))
        messages = {kind: self.messages.get(kind, 0.0) + sign * other.messages.get(kind, 0.0) for kind in kinds}
        return PartCosts(
            max(0.0, self.forward + sign * other.forward),
            max(0.0, self.backward + sign * other.backward),
            max(0.0, self.update + sign * other.update),
            {kind: max(0.0, seconds) for kind, seconds in messages.items()},
        )


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
    """Of a system whose ranks do not wait for each other.

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
    width: int,
    seconds_of: Callable[[Message], float],
    *,
    alive: Callable[[], None] = lambda: None,
) -> RankCosts:
    """Time the system on each rank of ``ranks`` for itself (collective).

    Args:
        options: of the system on ``width`` ranks.
        width: neighbouring ranks that it is spread over, if only they were not silent: all, or a pipeline's stage.
        seconds_of: what sending a message takes.
        alive: called after each step.
    """
    itself = Ranks(_silent_group(ranks, width), even_placement(width, width), ranks.device)
    kinds = list(dict.fromkeys(recipe.architecture.layers))
    shallow = [(kinds[0],), *((kinds[0], kind) for kind in kinds)]
    built = [system(_with_layers(recipe, layers), itself, options) for layers in shallow]
    tokens = torch.arange(recipe.global_batch * (recipe.sequence + 1)) * 31 % recipe.architecture.vocab
    batch = tokens.view(recipe.global_batch, recipe.sequence + 1)
    messages = [_messages(each, batch, seconds_of) for each in built]

    def rounds() -> list[list[tuple[float, float, float]]]:
        found = [[_step(each, batch, recipe.microbatches, alive) for each in built] for _ in range(UNTIMED + ROUNDS)]
        return found[UNTIMED:]

    dist.barrier(group=ranks.group)
    everyone: list[Any] = [None] * ranks.world
    dist.all_gather_object(everyone, (rounds(), messages), group=ranks.group)
    first: list[Any] = [rounds() if dist.get_rank(ranks.group) == 0 else None]
    dist.broadcast_object_list(first, group=ranks.group, group_src=0)
    for each in built:
        each.close()
    dist.destroy_process_group(itself.group)
    # Of each step the slowest rank's: that is who the others wait for.
    together = np.array([times for times, _ in everyone]).max(axis=0)
    messages = everyone[0][1]
    return RankCosts(*(_of_model(np.array(times), messages, recipe, kinds) for times in (first[0], together)))


def _messages(system: TrainingSystem, batch: torch.Tensor, seconds_of: Callable[[Message], float]) -> dict[str, float]:
    """Seconds that the messages of a step would take, by kind."""
    with logging_collectives() as log:
        system.accumulate(batch)
        system.update()
    found: dict[str, float] = {}
    for channel, calls in log.calls.items():
        for call in calls:
            if len(channel.ranks) > 1:
                size = call.input_bytes * (len(channel.ranks) if call.kind == "all_gather" else 1)
                seconds = seconds_of(Message(call.kind, channel.ranks, size))
                found[call.kind] = found.get(call.kind, 0.0) + seconds
    return found


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
            if system.ranks.device.type == "cuda":
                torch.cuda.synchronize()
            edges.append(time.perf_counter())
    finally:
        if collecting:
            gc.enable()
    alive()
    forward, both, update = (after - before for before, after in pairwise(edges))
    forward, both = forward / microbatches, both / microbatches
    return forward, both - forward, update


def _of_model(
    times: np.ndarray[Any, Any], messages: Sequence[Mapping[str, float]], recipe: Recipe, kinds: Sequence[Layer]
) -> ModelCosts:
    """From seconds ``(rounds, models, 3)`` of the shallow models, and what their messages take."""
    medians = np.median(times, axis=0).tolist()
    one, *two = (
        PartCosts(forward, backward, update, sent)
        for (forward, backward, update), sent in zip(medians, messages, strict=True)
    )
    of_kind = {kind: both - one for kind, both in zip(kinds, two, strict=True)}
    return ModelCosts(tuple(of_kind[layer] for layer in recipe.architecture.layers), one - of_kind[kinds[0]])


def _with_layers(recipe: Recipe, layers: tuple[Layer, ...]) -> Recipe:
    return replace(recipe, architecture=replace(recipe.architecture, layers=layers))


def _silent_group(ranks: Ranks, width: int) -> dist.ProcessGroup:
    """This rank's block of ``width`` neighbours, as a group that sends nothing (collective over all ranks)."""
    # Importing it registers the backend.
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    everyone, me, mine = dist.get_process_group_ranks(ranks.group), dist.get_rank(ranks.group), None
    for begin in range(0, ranks.world, width):
        made = dist.new_group(everyone[begin : begin + width], backend=SILENT)
        if begin <= me < begin + width:
            mine = made
    assert isinstance(mine, dist.ProcessGroup)
    return mine
