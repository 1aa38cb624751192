"""What a layer keeps from its forward to its backward pass, tensor by tensor.

Derived from the transformer of ``models.transformer``: each entry is a tensor that autograd keeps,
named by what it is. A tensor that two operations keep is counted once. All figures are bytes a local
token of one microbatch.

Each half of a layer keeps its input (the residual stream) and that input normalised, because the
projections that read it need it for their weights' gradients. Attention keeps queries, keys,
values and what it mixed, which the output projection needs, and of the scores a float32 logarithm a
head with a fused kernel, else the probabilities. MLA keeps its latents before and after their norms.
Routed experts keep the tokens that they receive, ``top_k`` copies of each, and as many inner
activations as they have matrices: gate, up and their weighted product. What experts give back is not
kept, for the router's weights are applied before the last matrix.

None of it is divided by the expert-parallel ranks: with so many tokens on each rank, each receives
as many copies as it sends, at balanced load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from ciera_piper_core.models.architecture import Attention, Experts, FeedForward, Layer
from ciera_piper_core.planner.static_memory import precision_of

if TYPE_CHECKING:
    import numpy as np

Checkpointing = Literal["none", "selective", "full"]
CHECKPOINTING: tuple[Checkpointing, ...] = get_args(Checkpointing)
"""What the backward pass computes again: nothing; the core of attention (scores, softmax, mixing);
or each half of a layer from its input. As ``models.transformer.TransformerLayer`` has it."""

Number: TypeAlias = "float | np.ndarray"
Tensors: TypeAlias = "dict[str, Number]"

FLOAT32, INT64 = 4, 8
"""Bytes."""


def activation_bytes_per_token(
    layer: Layer,
    hidden: int,
    sequence: Number,
    *,
    checkpointing: str = "none",
    flash: bool = True,
    tensor_parallel: int = 1,
    load_factor: Number = 1.0,
    precision: str = "bf16",
) -> dict[str, Number]:
    """Bytes that a layer keeps a local token of a microbatch, by part.

    Args:
        layer, hidden: what it is.
        sequence: tokens that a query may see; matters without flash only. May be an array.
        checkpointing: of ``CHECKPOINTING``.
        flash: attention by a fused kernel, which writes no scores.
        tensor_parallel: ranks that share the heads and every feed-forward's inner width; the
            residual stream, norms, latents, router and dispatched tokens are whole on each.
        load_factor: tokens that this rank's experts receive, over the mean. May be an array.
        precision: of ``static_memory.PRECISIONS``.

    Returns:
        ``attention``, ``router``, ``routed_experts``, ``shared_experts``, ``dense``, ``dispatch`` (copies
        received and their indices), ``norms`` (the residual stream, as is and normalised).

    Raises:
        ValueError: an unknown name, or heads that do not divide.
    """
    tensors = kept_tensors(
        layer,
        hidden,
        sequence,
        checkpointing=checkpointing,
        flash=flash,
        tensor_parallel=tensor_parallel,
        load_factor=load_factor,
        precision=precision,
    )
    return {component: sum(parts.values()) if parts else 0.0 for component, parts in tensors.items()}


def kept_tensors(
    layer: Layer,
    hidden: int,
    sequence: Number,
    *,
    checkpointing: str = "none",
    flash: bool = True,
    tensor_parallel: int = 1,
    load_factor: Number = 1.0,
    precision: str = "bf16",
) -> dict[str, Tensors]:
    """As :func:`activation_bytes_per_token`, tensor by tensor within each part."""
    if checkpointing not in CHECKPOINTING:
        raise ValueError(f"unknown checkpointing {checkpointing!r}; known: {', '.join(CHECKPOINTING)}")
    element = precision_of(precision).weight_bytes
    halves = _halves(layer)
    parts: dict[str, Tensors] = {
        part: {} for part in ("attention", "router", "routed_experts", "shared_experts", "dense", "dispatch", "norms")
    }
    for half in halves:
        parts["norms"][f"{half}_input"] = element * hidden
    if checkpointing == "full":
        return parts
    for half in halves:
        parts["norms"] |= {f"{half}_scale": FLOAT32, f"{half}_normalised": element * hidden}
    for name, mixer in (("", layer.mixer), ("cross_", layer.cross)):
        if isinstance(mixer, Attention):
            tensors = attention_tensors(
                mixer,
                sequence,
                flash=flash,
                core=checkpointing == "none",
                tensor_parallel=tensor_parallel,
                element=element,
            )
            parts["attention"] |= {name + tensor: size for tensor, size in tensors.items()}
        elif mixer is not None:
            parts["attention"]["inner"] = element * mixer.width / tensor_parallel
    if layer.experts is not None:
        experts = layer.experts
        parts["router"] = _router_tensors(experts)
        copies = experts.top_k * load_factor
        parts["dispatch"] = {
            "received": element * (experts.expert_hidden or hidden) * copies,
            "received_weights": FLOAT32 * copies,
            "order": INT64 * experts.top_k,
            "sources": INT64 * experts.top_k,
        }
        inner = element * experts.ffn / tensor_parallel * copies
        parts["routed_experts"] = dict.fromkeys(("gate", "up", "weighted")[3 - experts.matrices :], inner)
        if experts.shared_ffn:
            shared = FeedForward(experts.shared_ffn, experts.shared_matrices)
            parts["shared_experts"] = _dense_tensors(shared, tensor_parallel, element)
        if experts.expert_hidden:
            # What the projection back to the model's width reads.
            parts["shared_experts"]["combined"] = element * experts.expert_hidden
    if layer.dense is not None:
        parts["dense"] = _dense_tensors(layer.dense, tensor_parallel, element)
    return parts


def attention_tensors(
    attention: Attention, sequence: Number, *, flash: bool, core: bool, tensor_parallel: int, element: int
) -> Tensors:
    """Bytes a token of what attention keeps beside its normalised input.

    Args:
        attention, sequence, flash, tensor_parallel: as of :func:`activation_bytes_per_token`.
        core: what the core makes is kept, too.
        element: bytes of an activation.

    Raises:
        ValueError: the heads do not divide.
    """
    if attention.heads % tensor_parallel:
        raise ValueError(f"{attention.heads} heads do not divide over {tensor_parallel} tensor-parallel ranks")
    heads = attention.heads // tensor_parallel
    kv_heads = max(1, attention.kv_heads // tensor_parallel)
    tensors: Tensors = {
        "queries": element * heads * attention.qk_dim,
        "keys": element * kv_heads * attention.qk_dim,
        "values": element * kv_heads * attention.v_dim,
        "mixed": element * heads * attention.v_dim,
    }
    if attention.gated:
        tensors |= {"gate": element * heads * attention.qk_dim, "gated": element * heads * attention.v_dim}
    mla = attention.mla
    if mla is not None:
        tensors |= {
            "kv_latent": element * (mla.kv_lora + mla.qk_rope),
            "kv_latent_scale": FLOAT32,
            "kv_latent_normalised": element * mla.kv_lora,
        }
        if mla.q_lora:
            tensors |= {
                "q_latent": element * mla.q_lora,
                "q_latent_scale": FLOAT32,
                "q_latent_normalised": element * mla.q_lora,
            }
    if core and flash:
        tensors["log_sums"] = FLOAT32 * heads
    elif core:
        tensors["probabilities"] = element * heads * sequence
    return tensors


def _halves(layer: Layer) -> list[str]:
    """Sublayers that have a norm before them."""
    present = {
        "attention": layer.mixer is not None,
        "cross_attention": layer.cross is not None,
        "feed_forward": layer.experts is not None or layer.dense is not None,
    }
    return [half for half, there in present.items() if there]


def _router_tensors(experts: Experts) -> Tensors:
    tensors: Tensors = {"probabilities": FLOAT32 * experts.experts, "chosen": INT64 * experts.top_k}
    if experts.top_k > 1:
        # Divided by their sum.
        tensors |= {"chosen_probabilities": FLOAT32 * experts.top_k, "their_sum": FLOAT32}
    return tensors


def _dense_tensors(dense: FeedForward, tensor_parallel: int, element: int) -> Tensors:
    """Without a gate, the activation's result is all that its own backward pass needs."""
    inner = element * dense.ffn / tensor_parallel
    return dict.fromkeys(("gate", "up", "product") if dense.matrices == 3 else ("activated",), inner)
