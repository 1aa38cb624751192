"""A tiny model of experts, real text and short trainings, for the tests of systems whose experts are spread."""

from __future__ import annotations

import argparse
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.recipe import Recipe, Routing

if TYPE_CHECKING:
    from torch import Tensor

    from bench.suite import Context
    from ciera_piper_core.systems.system import TrainingSystem

HIDDEN, SEQUENCE, BATCH, WORLD = 32, 32, 8, 4


def architecture(experts: int = 8, tied: bool = False) -> Architecture:
    """A dense layer, one of experts with a shared one, one of experts alone."""
    attention = Attention(4, 2, 8, 8)
    return Architecture(
        "small",
        HIDDEN,
        256,
        (
            Layer(attention, dense=FeedForward(48)),
            Layer(attention, Experts(experts, 2, 24, shared_ffn=16)),
            Layer(attention, Experts(experts, 2, 24)),
        ),
        tied_embeddings=tied,
    )


def recipe(experts: int = 8, tied: bool = False, routing: Routing | None = None, **changes: Any) -> Recipe:
    """In fp32, with an auxiliary loss that matters."""
    return Recipe(
        architecture(experts, tied),
        sequence=SEQUENCE,
        global_batch=BATCH,
        routing=routing or Routing(balance_weight=0.1),
        **changes,
    )


@cache
def _text() -> Tensor:
    return torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()


def batch(step: int) -> Tensor:
    """``(BATCH, SEQUENCE + 1)``: other pieces of a source file of the standard library at each step."""
    starts = torch.randint(len(_text()) - SEQUENCE - 1, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    return _text()[starts + torch.arange(SEQUENCE + 1)]


def ranks_of(context: Context) -> Ranks:
    """All, two to a node."""
    assert context.group.data is not None
    world = context.group.world
    return Ranks(context.group.data, even_placement(world, min(2, world)), torch.device("cpu"))


def build(system: type[TrainingSystem], recipe: Recipe, ranks: Ranks, options: str = "") -> TrainingSystem:
    """With options as ``ep=2:tp=2``."""
    given = dict(part.split("=") for part in options.split(":")) if options else {}
    return system(recipe, ranks, parse_options(system, given))


@dataclass(frozen=True)
class Run:
    """A short training: each step's loss and gradient norm, the first step's gradients and the last weights."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def train(system: TrainingSystem, steps: int, first: int = 0) -> Run:
    """Steps ``first`` to ``first + steps``."""
    losses, norms, gradients = [], [], None
    for step in range(first, first + steps):
        losses.append(system.accumulate(batch(step)))
        if gradients is None:
            gradients = system.full_gradients()
        norms.append(system.update())
    return Run(losses, norms, gradients or {}, system.full_parameters())


def plain_run(recipe: Recipe, steps: int) -> Run:
    """The same training in one process."""
    return train(Plain(recipe, _alone(), {}), steps)


def _alone() -> Ranks:
    # Plain alone sends nothing.
    group: Any = None
    return Ranks(group, even_placement(1, 1), torch.device("cpu"))


def packed(run: Any) -> bytes:
    """By value: tensors as themselves would be shared memory of a rank that may be gone."""
    stream = io.BytesIO()
    torch.save(run, stream)
    return stream.getvalue()


def unpacked(data: bytes) -> Any:
    """What ``packed`` packed."""
    return torch.load(io.BytesIO(data), weights_only=False)


def difference(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The norm of the difference of all tensors over the norm of those wanted."""
    assert got.keys() == wanted.keys()
    above = sum(float((got[name].double() - wanted[name].double()).square().sum()) for name in wanted)
    below = sum(float(wanted[name].double().square().sum()) for name in wanted)
    return float((above / below) ** 0.5)


def worst(got: list[float], wanted: list[float]) -> float:
    """The largest relative difference of two series."""
    assert len(got) == len(wanted)
    return max(abs(one - other) / abs(other) for one, other in zip(got, wanted, strict=True))


def same_on_all_ranks(values: list[float]) -> bool:
    """Whether every rank has these numbers to the bit (collective)."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, values)
    return all(one == values for one in everyone)
