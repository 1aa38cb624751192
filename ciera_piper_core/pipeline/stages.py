"""Cuts the plain transformer into pipeline stages: which layers each has, and modules that are parts of the model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ciera_piper_core.planner.stages import stage_of_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.models.transformer import Transformer


@dataclass(frozen=True)
class Stages:
    """Which layers each stage has, and which stages each pipeline rank.

    The first stage has the embedding too, the last one the last norm and the output projection.

    Attributes:
        layers: by stage, the numbers of its layers, ascending. A plan's ``stage_layers``.
        of_rank: by pipeline rank, its stages, in the order in which a microbatch goes through them. A plan's
            ``rank_stages``.

    Raises:
        ValueError: layers that are missing, there twice or out of order, a stage without layers or on no rank
            or on two, ranks with different numbers of stages.
    """

    layers: tuple[tuple[int, ...], ...]
    of_rank: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        empty = [stage for stage, held in enumerate(self.layers) if not held]
        if empty or not self.layers:
            raise ValueError(f"every pipeline stage needs a layer; stage(s) {empty} have none")
        order = [layer for held in self.layers for layer in held]
        if order != list(range(len(order))):
            raise ValueError(f"stages must have layers 0 to {len(order) - 1} once and in their order, not {order}")
        placed = sorted(stage for held in self.of_rank for stage in held)
        if placed != list(range(len(self.layers))):
            raise ValueError(f"ranks must have stages 0 to {len(self.layers) - 1} once each, not {placed}")
        if len({len(held) for held in self.of_rank}) != 1:
            raise ValueError(f"all pipeline ranks must have as many stages, not {[len(held) for held in self.of_rank]}")
        if any(list(held) != sorted(held) for held in self.of_rank):
            raise ValueError(f"each rank's stages must be in their order, not {[list(held) for held in self.of_rank]}")

    @classmethod
    def evenly(cls, layers: int, of_rank: Sequence[Sequence[int]]) -> Stages:
        """So many layers over the stages of these ranks, as evenly as a plan does it.

        Raises:
            ValueError: more stages than layers.
        """
        count = sum(len(held) for held in of_rank)
        stage_of = stage_of_layer(layers, count)
        held = tuple(tuple(int(layer) for layer in (stage_of == stage).nonzero()[0]) for stage in range(count))
        return cls(held, tuple(tuple(stages) for stages in of_rank))

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.layers)

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.of_rank)

    @property
    def layer_count(self) -> int:
        """Number of layers of the model."""
        return sum(len(held) for held in self.layers)

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that has the stage."""
        return next(rank for rank, held in enumerate(self.of_rank) if stage in held)

    def layers_of_rank(self, rank: int) -> tuple[int, ...]:
        """Numbers of all layers of a pipeline rank, ascending."""
        return tuple(layer for stage in self.of_rank[rank] for layer in self.layers[stage])

    def has_first(self, rank: int) -> bool:
        """Whether the pipeline rank has the embedding."""
        return 0 in self.of_rank[rank]

    def has_last(self, rank: int) -> bool:
        """Whether the pipeline rank has the output projection."""
        return self.count - 1 in self.of_rank[rank]


def keep_rank(model: Transformer, stages: Stages, rank: int) -> None:
    """Take out of the plain model, in place, what a pipeline rank has not; the rest keeps its names.

    Done on the meta device, no rank ever holds the whole model.

    Raises:
        ValueError: the stages are of another number of layers than the model's.
    """
    if len(model.layers) != stages.layer_count:
        raise ValueError(f"the stages are of a model of {stages.layer_count} layers; this one has {len(model.layers)}")
    kept = {str(layer) for layer in stages.layers_of_rank(rank)}
    for name in [name for name in model.layers if name not in kept]:
        del model.layers[name]
    if not stages.has_first(rank):
        model.embedding = None
    if not stages.has_last(rank):
        model.norm = None
        model.output = None


def stage_module(model: Transformer, stages: Stages, stage: int) -> Transformer:
    """One stage as a module of its own. Its parts are the model's own: parameters are shared, not copied.

    Args:
        model: the whole one, or what ``keep_rank`` left of it.

    Raises:
        ValueError: the model does not have all of the stage.
    """
    import torch

    missing = [layer for layer in stages.layers[stage] if str(layer) not in model.layers]
    if missing:
        raise ValueError(f"stage {stage} has layers {missing}, which this model has not")
    part = copy.copy(model)
    # A shallow copy has the model's very tables of submodules and hooks: who hooked one stage would hook all.
    tables = {name: copy.copy(value) for name, value in vars(model).items() if isinstance(value, dict)}
    vars(part).update(tables)
    part.layers = torch.nn.ModuleDict({str(layer): model.layers[str(layer)] for layer in stages.layers[stage]})
    if stage != 0:
        part.embedding = None
    if stage != stages.count - 1:
        part.norm = None
        part.output = None
    return part
