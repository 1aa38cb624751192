"""FLOPs a token, by part, under the conventions that published figures use.

A multiply-add is two FLOPs. Only matrix products count: norms, softmax, rotations and activations
are under 0.1 % and no convention has them.

``full``: attention scores over all pairs of tokens, masked or not. It is what
    ``torch.utils.flop_counter`` counts over ``models.transformer`` without a fused kernel; with one,
    it adds the scores that the backward kernel computes again, which no convention here does.
``causal``: scores over the pairs that the mask leaves: ``(s + 1) / 2`` keys a query on average, fewer
    with a window; all in an encoder and in cross-attention.
``6n``: no scores at all. Forward and backward together are 6 FLOPs for each weight that a token is
    multiplied with: the output projection is one of them even if it is tied to the embedding; the
    embedding's look-up, biases and norms are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.models.parameters import projection_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ciera_piper_core.models.architecture import Architecture, Layer

Convention = Literal["6n", "causal", "full"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)

COMPONENTS = ("attention_projections", "attention_scores", "router", "routed_experts", "shared_experts", "dense")

BACKWARD = 2
"""Products of a backward pass for each of the forward pass: one for the input, one for the weight."""


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs a token of a whole model.

    Attributes:
        forward, backward: of all layers and the output projection.
        components: forward FLOPs of all layers, by part.
        output: forward FLOPs of the output projection.
    """

    forward: float
    backward: float
    components: dict[str, float]
    output: float

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def layer_flops(layer: Layer, hidden: int, sequence: int, convention: Convention) -> dict[str, float]:
    """Forward FLOPs a token of one layer, by part of ``COMPONENTS``.

    The backward pass has twice as many. Projections around routed experts of another width count as
    shared experts, further matrices of a layer as dense. What a mixer without a softmax does between
    its projections is not counted.

    Args:
        layer, hidden: what it is.
        sequence: tokens of a sequence; cross-attention sees as many of the encoder.
        convention: of ``CONVENTIONS``.

    Raises:
        ValueError: an unknown convention.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown FLOP convention {convention!r}; known: {', '.join(CONVENTIONS)}")
    flops = dict.fromkeys(COMPONENTS, 0.0)
    for mixer in (layer.mixer, layer.cross):
        if mixer is None:
            continue
        flops["attention_projections"] += 2 * projection_parameters(mixer, hidden)
        if isinstance(mixer, Attention):
            keys = 0.0 if convention == "6n" else visible_keys(mixer, sequence, masked=convention == "causal")
            flops["attention_scores"] += 2 * mixer.heads * (mixer.qk_dim + mixer.v_dim) * keys
    experts = layer.experts
    if experts is not None:
        flops["router"] = 2 * experts.experts * hidden
        width = experts.expert_hidden or hidden
        flops["routed_experts"] = 2 * experts.top_k * experts.matrices * experts.ffn * width
        shared = experts.shared_matrices * experts.shared_ffn + 2 * experts.expert_hidden
        flops["shared_experts"] = 2 * shared * hidden
    if layer.dense is not None:
        flops["dense"] = 2 * layer.dense.matrices * layer.dense.ffn * hidden
    flops["dense"] += 2 * layer.extra_matrix_parameters
    return flops


def model_flops(architecture: Architecture, sequence: int, convention: Convention, *, mtp: bool = False) -> ModelFlops:
    """FLOPs a token of the whole model.

    Of an encoder-decoder, a token is one of the decoder's together with one of the encoder's.

    Args:
        architecture: the model. sequence: tokens of a sequence. convention: of ``CONVENTIONS``.
        mtp: with the layers that predict further tokens, each with its projection of twice the hidden
            width (counted under ``dense``) and a use of the output projection.
    """
    hidden = architecture.hidden
    layers: Iterable[Layer] = (*architecture.encoder, *architecture.layers, *(architecture.mtp if mtp else ()))
    components = dict.fromkeys(COMPONENTS, 0.0)
    for layer, times in _counted(layers).items():
        for part, flops in layer_flops(layer, hidden, sequence, convention).items():
            components[part] += times * flops
    further = len(architecture.mtp) if mtp else 0
    components["dense"] += further * 2 * 2 * hidden * hidden
    output = 2.0 * hidden * (architecture.output_vocab or architecture.vocab) * (1 + further)
    forward = sum(components.values()) + output
    return ModelFlops(forward, BACKWARD * forward, components, output)


def visible_keys(attention: Attention, sequence: int, *, masked: bool) -> float:
    """Keys of a query, on average over the sequence; all of them unless ``masked``."""
    if not masked or not attention.causal:
        return float(sequence)
    window = min(attention.window or sequence, sequence)
    return window - window * (window - 1) / (2 * sequence)


def _counted(layers: Iterable[Layer]) -> dict[Layer, int]:
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return counts
