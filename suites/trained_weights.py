"""A checkpoint of our own: a small mixture-of-experts model, trained for some steps on the standard library's source.

It imports torch, so suites import it when they set up a case.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.models.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN, BYTES = 192, 256
STEPS, BATCH, SEQUENCE = 40, 8, 64
LEARNING_RATE = 1e-3
TEXT = (inspect, textwrap)
"""Modules whose source is learnt, byte by byte."""


def architecture() -> Architecture:
    """Two layers, a dense one and one of experts: 4.4 million parameters."""
    attention = Attention(6, 2, 32, 32)
    layers = (
        Layer(attention, dense=FeedForward(768)),
        Layer(attention, Experts(experts=16, top_k=2, ffn=384, shared_ffn=192)),
    )
    return Architecture("small", HIDDEN, BYTES, layers)


def trained_weights(seed: int, alive: Callable[[], None] = lambda: None) -> torch.Tensor:
    """The parameters after training, float32, flat, in the model's order; takes some seconds on one thread.

    Args:
        seed: of the initial weights and of the order of the text.
        alive: called after every step.
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.frombuffer(bytearray("".join(map(inspect.getsource, TEXT)).encode()), dtype=torch.uint8)
    model = Transformer(architecture(), dtype=torch.float32)
    initialise(model, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        starts = torch.randint(len(text) - SEQUENCE - 1, (BATCH,), generator=generator)
        pieces = torch.stack([text[start : start + SEQUENCE + 1] for start in starts.tolist()]).long()
        optimizer.zero_grad()
        token_loss(model(pieces[:, :-1]), pieces[:, 1:]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        alive()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
