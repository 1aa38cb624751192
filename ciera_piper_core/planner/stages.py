"""Which layers each pipeline stage and rank holds."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.schedules import chunks_of, stage_of_chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.models.architecture import Architecture, Layer
    from ciera_piper_core.planner.schedules import Schedule


@dataclass(frozen=True)
class LayerKinds:
    """The distinct layers of a model, and their order.

    Attributes:
        kinds: each distinct layer once.
        order: of the layers that pipeline stages share out, each as its place in ``kinds``: an
            encoder's, then the decoder's.
        last: of the layers that the last stage has on top: those that predict further tokens.
    """

    kinds: tuple[Layer, ...]
    order: tuple[int, ...]
    last: tuple[int, ...] = ()

    @classmethod
    def of(cls, architecture: Architecture, *, mtp: bool = True) -> LayerKinds:
        """The layers of a model; without ``mtp`` those that predict further tokens are left out."""
        places: dict[Layer, int] = {}
        layers = (*architecture.encoder, *architecture.layers)
        order = tuple(places.setdefault(layer, len(places)) for layer in layers)
        last = tuple(places.setdefault(layer, len(places)) for layer in architecture.mtp) if mtp else ()
        return cls(tuple(places), order, last)

    def by_stage(self, stages: int) -> NDArray[np.int64]:
        """Layers of each kind in each stage, shape ``(stages, kinds)``; stages are in order of the model."""
        counts = np.zeros((stages, len(self.kinds)), dtype=np.int64)
        np.add.at(counts, (stage_of_layer(len(self.order), stages), np.array(self.order)), 1)
        for kind in self.last:
            counts[-1, kind] += 1
        return counts

    def by_rank(self, schedule: Schedule, pp: int) -> NDArray[np.int64]:
        """Layers of each kind on each pipeline rank, shape ``(pp, kinds)``."""
        return _by_rank(self, schedule, pp)


@functools.lru_cache(maxsize=4096)
def _by_rank(kinds: LayerKinds, schedule: Schedule, pp: int) -> NDArray[np.int64]:
    counts = kinds.by_stage(pp * chunks_of(schedule))
    layers = np.stack([counts[list(stage_of_chunk(schedule, pp, rank))].sum(axis=0) for rank in range(pp)])
    layers.setflags(write=False)
    return layers


def stage_of_layer(layers: int, stages: int) -> NDArray[np.int64]:
    """The stage of each layer, shape ``(layers,)``: consecutive, and no two stages differ by more than one layer.

    What does not divide goes to the stages after the first: the first has the embedding and the
    most microbatches in flight, the last the output projection.

    Raises:
        ValueError: more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot be cut into {stages} stages; every stage needs one")
    sizes = np.full(stages, layers // stages)
    extra = layers % stages
    # All but one stage may take one more; then that is the last.
    begin = 1 if extra < stages - 1 else 0
    sizes[begin : begin + extra] += 1
    return np.asarray(np.repeat(np.arange(stages), sizes))


def end_ranks(schedule: Schedule, pp: int) -> tuple[int, int]:
    """The ranks that hold the first stage, with the embedding, and the last, with the output projection."""
    stages = pp * chunks_of(schedule)
    held = [stage_of_chunk(schedule, pp, rank) for rank in range(pp)]
    first = next(rank for rank in range(pp) if 0 in held[rank])
    last = next(rank for rank in range(pp) if stages - 1 in held[rank])
    return first, last
