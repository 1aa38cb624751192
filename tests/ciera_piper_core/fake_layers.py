"""Layers at full size on fake tensors, and what torch's own tracker says that they use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from ciera_piper_core.models.architecture import MLA, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.transformer import Checkpointing, TransformerLayer

DEEPSEEK_ATTENTION = Attention(128, 128, 192, 128, MLA(1536, 512, 128, 64, 128), extra_parameters=2048)

LAYERS: dict[str, tuple[Layer, int]] = {
    "deepseek-v3": (Layer(DEEPSEEK_ATTENTION, Experts(256, 8, 2048, shared_ffn=2048), norm_parameters=14336), 7168),
    "deepseek-v3-dense": (Layer(DEEPSEEK_ATTENTION, dense=FeedForward(18432), norm_parameters=14336), 7168),
    "deepseek-v2-lite": (
        Layer(
            Attention(16, 16, 192, 128, MLA(0, 512, 128, 64, 128), extra_parameters=512),
            Experts(64, 6, 1408, shared_ffn=2816),
            norm_parameters=4096,
        ),
        2048,
    ),
    "mixtral-8x7b": (Layer(Attention(32, 8, 128, 128), Experts(8, 2, 14336), norm_parameters=8192), 4096),
    "qwen3-235b": (Layer(Attention(64, 4, 128, 128), Experts(128, 8, 1536), norm_parameters=8192), 4096),
    "olmoe": (Layer(Attention(16, 16, 128, 128), Experts(64, 8, 1024), norm_parameters=4096), 2048),
    "arctic": (
        Layer(Attention(56, 8, 128, 128), Experts(128, 2, 4864), dense=FeedForward(7168), norm_parameters=14336),
        7168,
    ),
    "switch": (Layer(Attention(12, 12, 64, 64, causal=False), Experts(128, 1, 3072, 2), norm_parameters=1536), 768),
    "two-matrix-dense": (Layer(Attention(12, 12, 64, 64), dense=FeedForward(3072, 2), norm_parameters=1536), 768),
    "window": (Layer(Attention(32, 8, 128, 128, window=512), Experts(8, 2, 14336), norm_parameters=8192), 4096),
}
"""Real layers of each kind of attention and feed-forward part, and their hidden width."""

CPU = torch.device("cpu")


class Measured(NamedTuple):
    """Bytes of one layer's step, as torch's tracker counts them.

    Attributes:
        kept: from forward to backward, with the layer's input and without its output.
        working: peak of the backward pass beyond that and beyond weights and their gradients.
    """

    kept: int
    working: int


def measure(
    name: str, batch: int, sequence: int, *, flash: bool = True, checkpointing: Checkpointing = "none"
) -> Measured:
    """Run a step of a layer whose gradients exist already, as in every microbatch but the first."""
    layer, hidden = LAYERS[name]
    with FakeTensorMode():
        module = TransformerLayer(layer, hidden, flash=flash, checkpointing=checkpointing)
        for weight in module.parameters():
            weight.grad = torch.zeros_like(weight)
        stream = torch.empty(batch, sequence, hidden, dtype=torch.bfloat16, requires_grad=True)
        tracker = MemTracker()
        tracker.track_external(module, stream)
        with tracker:
            before = total(tracker)
            # A copy that only the layer refers to, as the layer before would give it.
            output = module(stream.clone())
            kept = total(tracker) - before - output.nbytes
            edge = torch.autograd.graph.get_gradient_edge(output)
            gradients = [torch.ones_like(output)]
            del output
            tracker._peak_mem.clear()
            torch.autograd.backward([edge], gradients)
            peak = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    return Measured(kept, peak - before - kept)


def total(tracker: MemTracker) -> int:
    """All bytes that the tracker sees now."""
    return tracker.get_tracker_snapshot()[CPU]["Total"]
