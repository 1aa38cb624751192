"""A tiny model, real text and short trainings, for the tests of the systems that are built on ``fully_shard``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# FSDP2 loads it on first use: better once here than in every forked rank.
import torch._dynamo
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import Placement, even_placement
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from ciera_piper_core.systems.system import TrainingSystem

Arrays = dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]
"""Float32, by parameter."""

HIDDEN, SEQUENCE = 40, 32


def architecture(layers: int = 2, tied: bool = False) -> Architecture:
    """A dense layer, then layers of experts, one of them shared; 5 experts, so that no world divides them."""
    attention = Attention(4, 2, 8, 8)
    dense = Layer(attention, dense=FeedForward(72))
    experts = Layer(attention, Experts(5, 2, 48, shared_ffn=24))
    return Architecture("small", HIDDEN, 256, (dense, *(experts,) * (layers - 1)), tied_embeddings=tied)


def recipe(**changes: Any) -> Recipe:
    """Eight sequences a step."""
    given: dict[str, Any] = {"architecture": architecture(), "sequence": SEQUENCE, "global_batch": 8, **changes}
    return Recipe(**given)


@cache
def text() -> Tensor:
    """Bytes of a source file of the standard library, int64."""
    return torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()


def batch(step: int, sequences: int = 8) -> Tensor:
    """``(sequences, SEQUENCE + 1)``: other pieces of the text's first four fifths at each step."""
    return _pieces(text()[: len(text()) * 4 // 5], step, sequences)


def validation(sequences: int = 64) -> Tensor:
    """Pieces of the rest of the text."""
    return _pieces(text()[len(text()) * 4 // 5 :], 0, sequences)


def unigram_entropy() -> float:
    """Of the text's bytes, nats: the loss of who knows how often each comes, and nothing else."""
    shares = torch.bincount(text()).double() / len(text())
    return -float(torch.special.xlogy(shares, shares).sum())


def _pieces(source: Tensor, seed: int, sequences: int) -> Tensor:
    starts = torch.randint(len(source) - SEQUENCE - 1, (sequences, 1), generator=torch.Generator().manual_seed(seed))
    return source[starts + torch.arange(SEQUENCE + 1)]


def all_ranks(world: int, placement: Placement | None = None) -> Ranks:
    """Of a gloo world; one node if no placement is given."""
    if not dist.is_initialized():
        # A world of one has no group yet.
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    return Ranks(dist.group.WORLD, placement or even_placement(world, world), torch.device("cpu"))


def built(system: type[TrainingSystem], recipe: Recipe, ranks: Ranks, **options: Any) -> TrainingSystem:
    """The system, its options as on the command line."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return system(recipe, ranks, parse_options(system, texts))


@dataclass(frozen=True)
class Training:
    """What a training gave: a loss and a gradient norm a step, and on rank 0 the last weights."""

    losses: list[float]
    norms: list[float]
    weights: Arrays


def trained(system: TrainingSystem, steps: int, first: int = 0) -> Training:
    """Train on ``batch``."""
    losses, norms = [], []
    for step in range(first, first + steps):
        losses.append(system.accumulate(batch(step, system.recipe.global_batch)))
        norms.append(system.update())
    return Training(losses, norms, arrays(system.full_parameters()))


def arrays(tensors: dict[str, Tensor]) -> Arrays:
    """As what can be handed over by a process that ends."""
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def plain_gradients(recipe: Recipe, whole_batch: Tensor) -> tuple[float, Arrays]:
    """Loss and gradients of the plain model in one process, float32."""
    model = build_model(recipe)
    logits = model(whole_batch[:, :-1])
    loss = token_loss(logits, whole_batch[:, 1:])
    loss.backward()
    return loss.item(), arrays({name: weight.grad for name, weight in model.named_parameters()})  # type: ignore[misc]


def bits_differ(left: Arrays, right: Arrays) -> list[str]:
    """Names of what differs in any bit."""
    assert left.keys() == right.keys()
    return [name for name in left if not np.array_equal(left[name].view(np.int32), right[name].view(np.int32))]
