"""A tiny model whose experts are unevenly popular, real text, and short trainings, for the tests of moving experts."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.training.recipe import Recipe, Routing

if TYPE_CHECKING:
    from ciera_piper_core.systems.replicated import ReplicatedSystem

WORLD, EXPERTS, SEQUENCE = 4, 8, 16


def recipe(**changes: Any) -> Recipe:
    """A dense layer and two of experts, of which some are far more popular than others."""
    attention = Attention(4, 2, 8, 8)
    dense, experts = Layer(attention, dense=FeedForward(48)), Layer(attention, Experts(EXPERTS, 2, 24))
    given: dict[str, Any] = {
        "architecture": Architecture("small", 32, 256, (dense, experts, experts)),
        "sequence": SEQUENCE,
        "global_batch": 8,
        "microbatches": 2,
        "routing": Routing(skew=1.0),
        **changes,
    }
    return Recipe(**given)


@cache
def text() -> torch.Tensor:
    """Bytes of a source file of the standard library, int64."""
    return torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()


def batch(step: int) -> torch.Tensor:
    """``(8, SEQUENCE + 1)``: other pieces of text at each step."""
    starts = torch.randint(len(text()) - SEQUENCE - 1, (8, 1), generator=torch.Generator().manual_seed(step))
    return text()[starts + torch.arange(SEQUENCE + 1)]


def trained(system: ReplicatedSystem, first: int, steps: int) -> list[float]:
    """Losses of the steps."""
    losses = []
    for step in range(first, first + steps):
        losses.append(system.accumulate(batch(step)))
        system.update()
    return losses
