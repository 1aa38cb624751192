"""A transformer that is small enough to train in a test: dense and routed layers, bytes as vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.transformer import Transformer

if TYPE_CHECKING:
    from ciera_piper_core.models.transformer import Checkpointing
    from ciera_piper_core.training.recipe import Routing

HIDDEN, VOCAB, EXPERTS = 32, 256, 4


def small_architecture(layers: int = 4, *, tied: bool = False) -> Architecture:
    """Every second layer has experts and a shared one, the others are dense."""
    attention = Attention(4, 2, 8, 8)
    kinds = (Layer(attention, dense=FeedForward(48)), Layer(attention, Experts(EXPERTS, 2, 32, shared_ffn=16)))
    return Architecture("small", HIDDEN, VOCAB, tuple(kinds[n % 2] for n in range(layers)), tied_embeddings=tied)


def small_transformer(
    layers: int = 4, checkpointing: Checkpointing = "none", routing: Routing | None = None
) -> Transformer:
    """In float32, the same wherever it is built."""
    model = Transformer(small_architecture(layers), dtype=torch.float32, checkpointing=checkpointing, routing=routing)
    initialise(model, seed=3)
    return model
