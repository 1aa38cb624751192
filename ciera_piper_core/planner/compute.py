"""How long a device computes one layer: forward and backward, by component, over many strategies at once.

Components: ``attention_projections``, ``attention_scores``, ``recurrence``, ``router``,
``routed_experts``, ``shared_experts``, ``dense``, ``elementwise``. Only those that the layer has.

What is counted:

- Matrix products at their actual shapes: experts as a grouped product over tokens an expert,
  attention with its heads, both divided under tensor parallelism.
- ``elementwise``: passes over memory by norms, residual additions, rotary positions, and by packing,
  sorting and combining tokens around the experts. Bytes are counted, the rate is the platform's.
  The activation inside a feed-forward block belongs to that block.

Nothing overlaps inside a device: components add up.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.platforms.roofline import Passes
from ciera_piper_core.platforms.shapes import local_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from ciera_piper_core.models.architecture import Experts, FeedForward, Layer, Recurrence
    from ciera_piper_core.platforms.platform import Platform

    Array = NDArray[np.float64]

COMPONENTS = (
    "attention_projections",
    "attention_scores",
    "recurrence",
    "router",
    "routed_experts",
    "shared_experts",
    "dense",
    "elementwise",
)

NORM_PASSES = 2
"""A norm reads its input and writes its output."""

RESIDUAL_PASSES = 3
"""A residual addition reads two and writes one."""

EXPERT_ROW_PASSES = 7
"""Passes over the rows of routed tokens: packed for dispatch (write), sorted by expert after it and back
before the combine (read and write each), and their weighted sum (read); and once read to be packed."""

RECURRENCE_PASSES = 10
"""Passes over a recurrence's inner activations: convolution, gates, scan and norm, none of them a product. Assumed."""

LOSS_BYTES_A_LOGIT = 16
"""Logits are read and written once as float32 for the softmax, once for its gradient."""


def layer_passes(
    platform: Platform,
    layer: Layer,
    hidden: int,
    sequence: int,
    tokens: ArrayLike,
    *,
    expert_parallel: ArrayLike = 1,
    tensor_parallel: ArrayLike = 1,
    load_factor: ArrayLike = 1.0,
) -> dict[str, Passes]:
    """Seconds of one layer on one device, for one microbatch.

    All arguments that may be arrays broadcast together, and so do the results.

    Args:
        platform: whose rates count.
        layer, hidden: of the model.
        sequence: tokens of a sequence.
        tokens: of the microbatch on a device (``b_mu * s``), above 0.
        expert_parallel: ranks that share the routed experts. Each computes as many rows as it has
            routed tokens, on fewer experts.
        tensor_parallel: ranks that share heads and inner widths, those of the experts too.
        load_factor: rows on the busiest device over the mean, at least 1.

    Raises:
        ValueError: tokens, ranks or load factor out of range.
    """
    count = _checked("tokens", tokens, above=0)
    ranks = _checked("tensor_parallel", tensor_parallel, least=1)
    shards = _checked("expert_parallel", expert_parallel, least=1)
    load = _checked("load_factor", load_factor, least=1)
    parts: dict[str, list[Passes]] = {}

    def take(name: str, passes: Passes) -> None:
        parts.setdefault(name, []).append(passes)

    for mixer in (layer.mixer, layer.cross):
        if isinstance(mixer, Attention):
            for name, passes in platform.rates.attention(mixer, hidden, sequence, count, ranks).items():
                take(name, passes)
        elif mixer is not None:
            take("recurrence", _recurrence(platform, mixer, hidden, count, ranks))
    if layer.experts is not None:
        experts = layer.experts
        take("router", platform.rates.products(count, experts.experts, hidden))
        take("routed_experts", _routed(platform, experts, hidden, count, shards, ranks, load))
        if experts.shared_ffn:
            shared = feed_forward_passes(
                platform, hidden, experts.shared_ffn, experts.shared_matrices, count, tensor_parallel=ranks
            )
            take("shared_experts", shared)
    if layer.dense is not None:
        dense: FeedForward = layer.dense
        take("dense", feed_forward_passes(platform, hidden, dense.ffn, dense.matrices, count, tensor_parallel=ranks))
    take(
        "elementwise",
        _memory_passes(platform, platform.element_bytes * _elements_moved(layer, hidden, count, ranks, load)),
    )
    return {name: reduce(add, parts[name]) for name in COMPONENTS if name in parts}


def layer_seconds(
    platform: Platform, layer: Layer, hidden: int, sequence: int, tokens: ArrayLike, **degrees: Any
) -> dict[str, Array]:
    """Forward seconds of one layer by component; arguments as of :func:`layer_passes`."""
    passes = layer_passes(platform, layer, hidden, sequence, tokens, **degrees)
    return {name: part.forward for name, part in passes.items()}


def backward_seconds(
    platform: Platform, layer: Layer, hidden: int, sequence: int, tokens: ArrayLike, **degrees: Any
) -> dict[str, Array]:
    """Backward seconds of one layer by component, without recomputation; arguments as of :func:`layer_passes`."""
    passes = layer_passes(platform, layer, hidden, sequence, tokens, **degrees)
    return {name: part.backward for name, part in passes.items()}


def total(passes: dict[str, Passes]) -> Passes:
    """All components of a layer together.

    Raises:
        ValueError: there are none.
    """
    if not passes:
        raise ValueError("a layer without components has no time")
    return reduce(add, passes.values())


def feed_forward_passes(
    platform: Platform, hidden: int, ffn: int, matrices: int, tokens: ArrayLike, *, tensor_parallel: ArrayLike = 1
) -> Passes:
    """A dense block of inner width ``ffn``, with its activation."""
    inner = np.ceil(ffn / np.asarray(tensor_parallel, dtype=np.float64))
    into = platform.rates.products(tokens, inner, hidden) * (matrices - 1)
    out = platform.rates.products(tokens, hidden, inner)
    return into + out + platform.rates.activation(tokens, inner, matrices)


def output_passes(
    platform: Platform, hidden: int, vocab: int, tokens: ArrayLike, *, tensor_parallel: ArrayLike = 1
) -> Passes:
    """The projection to the vocabulary, softmax and loss, for ``tokens`` tokens of a device."""
    columns = np.ceil(vocab / np.asarray(tensor_parallel, dtype=np.float64))
    logits = np.asarray(tokens, dtype=np.float64) * columns
    softmax = platform.rates.memory_seconds(LOSS_BYTES_A_LOGIT / 2 * logits)
    loss = Passes(softmax, softmax, np.zeros_like(softmax))
    return platform.rates.products(tokens, columns, hidden) + loss


def optimizer_seconds(platform: Platform, state_bytes: ArrayLike) -> Array:
    """The optimizer's step over ``state_bytes`` of weights, gradients and moments: read once, written once."""
    return platform.rates.memory_seconds(2 * np.asarray(state_bytes, dtype=np.float64))


def tokens_per_expert(experts: Experts, tokens: ArrayLike, expert_parallel: ArrayLike, load_factor: ArrayLike) -> Array:
    """Rows of each expert of the busiest device that has any; the shape of its products."""
    rows, active = _expert_rows(experts, np.asarray(tokens, dtype=np.float64), expert_parallel, load_factor)
    return np.asarray(rows / active)


def notes(
    platform: Platform,
    layer: Layer,
    hidden: int,
    sequence: int,
    tokens: float,
    *,
    expert_parallel: int = 1,
    tensor_parallel: int = 1,
    load_factor: float = 1.0,
) -> dict[str, str]:
    """For one strategy: how the time of attention and experts is known at its own shapes, as a plan prints it."""
    said = {}
    if isinstance(layer.mixer, Attention):
        note = platform.rates.attention_note(layer.mixer, hidden, sequence, tensor_parallel)
        said["attention"] = f"{platform.terms['attention'].status}; {note}"
    if layer.experts is not None:
        rows = float(tokens_per_expert(layer.experts, tokens, expert_parallel, load_factor))
        width = -(-layer.experts.ffn // tensor_parallel)
        note = platform.rates.experts_note(rows, hidden, width, layer.experts.matrices)
        said["routed_experts"] = f"{platform.terms['experts'].status}; {rows:.4g} tokens an expert, {note}"
    return said


def _checked(name: str, value: ArrayLike, *, above: float | None = None, least: float | None = None) -> Array:
    array = np.asarray(value, dtype=np.float64)
    # Written so that NaN is refused too.
    if above is not None and not np.all(array > above):
        raise ValueError(f"{name} must be above {above:g}, not {array.min():g}")
    if least is not None and not np.all(array >= least):
        raise ValueError(f"{name} must be at least {least:g}, not {array.min():g}")
    return array


def _expert_rows(
    experts: Experts, tokens: Array, expert_parallel: ArrayLike, load_factor: ArrayLike
) -> tuple[Array, Array]:
    """Rows on the busiest device, and how many of its experts have any."""
    rows = tokens * experts.top_k * np.asarray(load_factor, dtype=np.float64)
    held = np.ceil(experts.experts / np.asarray(expert_parallel, dtype=np.float64))
    return rows, np.minimum(held, np.maximum(rows, 1.0))


def _routed(
    platform: Platform, experts: Experts, hidden: int, tokens: Array, shards: Array, ranks: Array, load: Array
) -> Passes:
    rows, active = _expert_rows(experts, tokens, shards, load)
    inner = np.ceil(experts.ffn / ranks)
    return platform.rates.experts(rows / active, active, hidden, inner, experts.matrices)


def _recurrence(platform: Platform, mixer: Recurrence, hidden: int, tokens: Array, ranks: Array) -> Passes:
    """Its matrices as one product from the residual stream, and its inner activations as passes over memory."""
    columns = np.ceil(mixer.matrix_parameters / hidden / ranks)
    moved = platform.element_bytes * RECURRENCE_PASSES * tokens * np.ceil(mixer.width / ranks)
    return platform.rates.products(tokens, columns, hidden) + _memory_passes(platform, moved)


def _elements_moved(layer: Layer, hidden: int, tokens: Array, ranks: Array, load: Array) -> Array:
    """Elements that passes over memory read and write in a forward pass."""
    elements: Array = np.zeros(np.broadcast_shapes(tokens.shape, ranks.shape, load.shape))
    for _ in _blocks(layer):
        elements = elements + tokens * hidden * (NORM_PASSES + RESIDUAL_PASSES)
    for mixer in (layer.mixer, layer.cross):
        if isinstance(mixer, Attention):
            heads, kv_heads = local_heads(mixer, ranks)
            elements = elements + 2 * tokens * (heads + kv_heads) * mixer.qk_dim
    if layer.experts is not None:
        elements = elements + EXPERT_ROW_PASSES * tokens * layer.experts.top_k * load * hidden
    return elements


def _blocks(layer: Layer) -> Iterator[object]:
    """Parts with a norm and a residual addition of their own."""
    for block in (layer.mixer, layer.cross, layer.experts or layer.dense):
        if block is not None:
            yield block


def _memory_passes(platform: Platform, moved: Array) -> Passes:
    """Passes over memory: backward reads what forward read, and moves the gradients too."""
    forward = platform.rates.memory_seconds(moved)
    return Passes(forward, 2 * forward, np.zeros_like(forward))
