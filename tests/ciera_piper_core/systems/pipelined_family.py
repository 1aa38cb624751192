"""A small model and real text for the tests of the pipelined systems, and trainings that are compared."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import Placement, even_placement
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.system import Ranks, TrainingSystem, parse_options
from ciera_piper_core.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN, SEQUENCE, EXPERTS, BATCH = 32, 24, 8, 8


def architecture(layers: int = 4, *, tied: bool = False, experts: int = EXPERTS) -> Architecture:
    """Every second layer has experts and a shared one, the others are dense."""
    attention = Attention(4, 2, 8, 8)
    kinds = (Layer(attention, dense=FeedForward(48)), Layer(attention, Experts(experts, 2, 32, shared_ffn=16)))
    return Architecture("small", HIDDEN, 256, tuple(kinds[n % 2] for n in range(layers)), tied_embeddings=tied)


def recipe(**changes: Any) -> Recipe:
    """Eight sequences a step, in four microbatches."""
    given: dict[str, Any] = {
        "architecture": architecture(),
        "sequence": SEQUENCE,
        "global_batch": BATCH,
        "microbatches": 4,
        "learning_rate": 3e-3,
        **changes,
    }
    return Recipe(**given)


@cache
def text() -> Tensor:
    """Bytes of a source file of the standard library, int64."""
    return torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()


def batch(step: int, sequences: int = BATCH) -> Tensor:
    """``(sequences, SEQUENCE + 1)``: other pieces of text at each step."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text()) - SEQUENCE - 1, (sequences, 1), generator=generator)
    return text()[starts + torch.arange(SEQUENCE + 1)]


def all_ranks(nodes: int = 1) -> Ranks:
    """Of a gloo world, by block on so many nodes."""
    group = dist.group.WORLD
    assert group is not None
    world = dist.get_world_size(group)
    placement: Placement = even_placement(world, world // nodes)
    return Ranks(group, placement, torch.device("cpu"))


def built(system: type[TrainingSystem], recipe: Recipe, ranks: Ranks, **options: Any) -> TrainingSystem:
    """The system, its options as on the command line."""
    return system(recipe, ranks, parse_options(system, {name: str(value) for name, value in options.items()}))


@dataclass(frozen=True)
class Training:
    """What a training gave, by step, and on rank 0 the gradients of the first and the weights after the last."""

    losses: list[float]
    norms: list[float]
    evaluated: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def trained(system: TrainingSystem, steps: int, first: int = 0) -> Training:
    """Train on ``batch``."""
    losses, norms, gradients = [], [], {}
    sequences = system.recipe.global_batch
    for step in range(first, first + steps):
        losses.append(system.accumulate(batch(step, sequences)))
        if step == first:
            gradients = system.full_gradients()
        norms.append(system.update())
    return Training(losses, norms, system.evaluate(batch(1000, sequences)), gradients, system.full_parameters())


def reference(recipe: Recipe, ranks: Ranks, steps: int) -> Training:
    """The plain system's training; every rank does it for itself."""
    return trained(built(Plain, recipe, ranks), steps)


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> tuple[float, str]:
    """Over all parameters: norm of the difference over the norm; 1 where names or shapes are not the same."""
    if left.keys() != right.keys():
        return 1.0, f"names: {sorted(left.keys() ^ right.keys())}"
    worst = (0.0, "")
    for name, tensor in left.items():
        other = right[name]
        if tensor.shape != other.shape:
            return 1.0, f"{name}: {tuple(tensor.shape)} and {tuple(other.shape)}"
        worst = max(worst, (float((tensor - other).norm() / max(float(other.norm()), 1e-30)), name))
    return worst


def check_same(got: Training, expected: Training, *, what: str, loss: float = 1e-6, weights: float = 1e-4) -> None:
    """Losses, norms, gradients and weights agree, relatively.

    Args:
        weights: larger, because Adam divides small gradients by their own size.
    """
    for name, mine, others in (("loss", got.losses, expected.losses), ("norm", got.norms, expected.norms)):
        far = max(abs(a - b) / abs(b) for a, b in zip(mine, others, strict=True))
        assert far <= (loss if name == "loss" else 10 * loss), (what, name, mine, others)
    assert abs(got.evaluated - expected.evaluated) <= loss * 10 * expected.evaluated, (what, "evaluated")
    if dist.get_rank() == 0:
        assert expected.weights
        assert len(got.weights) == len(expected.weights)
        difference, name = largest_difference(got.gradients, expected.gradients)
        assert difference <= 1e-5, (what, "gradient", name, difference)
        difference, name = largest_difference(got.weights, expected.weights)
        assert difference <= weights, (what, "weight", name, difference)
    else:
        assert not got.weights, what
        assert not got.gradients, what
