"""Models made smaller by one declared rule, which keeps the ratios that decide what a training system has to do.

The rule, for a scale's target of hidden width and layers (``TARGETS``; never more than the model has):

- Widths that go with the hidden width (experts, shared experts, dense blocks, latents of MLA) keep their
  ratio to it, rounded to multiples of 8.
- Experts and choices a token keep ``k / E`` exactly: the smallest such pair with at least 8 experts and 2
  choices a token where the model has 2 or more.
- Query heads keep their number for each key/value head, and together their width over the hidden width,
  both as nearly as an even number of key/value heads allows. Widths within an MLA head keep their ratios.
- Layers: a stack of dense layers before all others keeps its share, at least one; any other pattern keeps its
  beginning. Attention kinds and windows stay with their layers.
- The vocabulary is 256, for bytes, or the given one. Layers that predict further tokens are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

Scale = Literal["tiny", "small", "medium", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)

BYTES = 256
LEAST_EXPERTS, LEAST_CHOICES = 8, 2


@dataclass(frozen=True)
class Target:
    """What a scale aims at.

    Attributes:
        hidden: width of the residual stream. layers: of them. head: width of an attention head.
    """

    hidden: int
    layers: int
    head: int


TARGETS: dict[Scale, Target] = {
    "tiny": Target(64, 4, 8),
    "small": Target(256, 8, 32),
    "medium": Target(1024, 16, 64),
}


def scale(architecture: Architecture, to: Scale, *, vocab: int | None = None) -> Architecture:
    """The architecture at another size; see the module for the rule.

    Args:
        to: of ``SCALES``; ``full`` changes nothing but, if given, the vocabulary.
        vocab: of the result; None for bytes (256), or the model's own at full size.

    Returns:
        One that ``models.transformer`` builds; weights that it does not build (biases, norms of queries and
        keys) are not counted any more, unless at full size.

    Raises:
        ValueError: an unknown scale, or a model with parts that cannot be built.
    """
    if to not in SCALES:
        raise ValueError(f"unknown scale {to!r}; known: {', '.join(SCALES)}")
    if to == "full":
        return architecture if vocab is None else replace(architecture, vocab=vocab, output_vocab=0)
    if architecture.encoder:
        raise ValueError(f"architecture {architecture.name!r} has an encoder, which cannot be built")
    target = TARGETS[to]
    hidden = min(target.hidden, _multiple_of_8(architecture.hidden))
    layers = _chosen(architecture.layers, min(target.layers, len(architecture.layers)))
    return Architecture(
        name=f"{architecture.name}-{to}",
        hidden=hidden,
        vocab=vocab or BYTES,
        layers=tuple(_layer(layer, hidden, architecture, target) for layer in layers),
        tied_embeddings=architecture.tied_embeddings,
        extra_parameters=hidden,
    )


def _chosen(layers: Sequence[Layer], count: int) -> Sequence[Layer]:
    """So many of the layers, by the rule."""
    dense = next((number for number, layer in enumerate(layers) if layer.experts is not None), 0)
    first = min(max(1, round(dense * count / len(layers))), count - 1) if dense and count > 1 else 0
    if all(layer.experts is not None for layer in layers[dense:]):
        return [*layers[:first], *layers[dense : dense + count - first]]
    return layers[:count]


def _layer(layer: Layer, hidden: int, whole: Architecture, target: Target) -> Layer:
    unbuilt = {
        "cross-attention": layer.cross is not None,
        f"a mixer {getattr(layer.mixer, 'kind', '')}": layer.mixer and not isinstance(layer.mixer, Attention),
        "further matrices": layer.extra_matrix_parameters,
    }
    for part, there in unbuilt.items():
        if there:
            raise ValueError(f"architecture {whole.name!r} has {part}, which cannot be built; choose another model")
    mixer = _attention(layer.mixer, hidden, whole, target) if isinstance(layer.mixer, Attention) else None
    experts = _experts(layer.experts, hidden, whole) if layer.experts else None
    dense = FeedForward(_width(layer.dense.ffn, hidden, whole), layer.dense.matrices) if layer.dense else None
    norms = (mixer is not None) + (experts is not None or dense is not None)
    return Layer(mixer, experts, dense, norm_parameters=norms * hidden)


def _attention(attention: Attention, hidden: int, whole: Architecture, target: Target) -> Attention:
    if attention.gated or attention.projection_parameters is not None:
        raise ValueError(f"architecture {whole.name!r} has an attention that cannot be built; choose another model")
    group = attention.heads // attention.kv_heads
    # An even number of both, so that tensor parallelism can halve them; unless all queries share one key.
    step = group if attention.kv_heads == 1 else 4 if group == 1 else 2 * group
    wanted = attention.heads * attention.qk_dim / whole.hidden * hidden
    heads = max(1, round(wanted / target.head / step)) * step
    width = max(8, _multiple_of_8(wanted / heads))
    mla, qk_dim, v_dim = attention.mla, width, _ratio(attention.v_dim, width, attention.qk_dim)
    extra = 0
    if mla is not None:
        # Whichever is rotated has pairs of channels.
        rope = max(2, 2 * round(width * mla.qk_rope / attention.qk_dim / 2)) if mla.qk_rope else 0
        mla = MLA(
            q_lora=_width(mla.q_lora, hidden, whole) if mla.q_lora else 0,
            kv_lora=_width(mla.kv_lora, hidden, whole),
            qk_nope=width - rope,
            qk_rope=rope,
            v_head=v_dim,
        )
        extra = mla.q_lora + mla.kv_lora
    return Attention(
        heads, heads // group, qk_dim, v_dim, mla, attention.window, attention.causal, extra_parameters=extra
    )


def _experts(experts: Experts, hidden: int, whole: Architecture) -> Experts:
    if experts.expert_hidden:
        raise ValueError(f"architecture {whole.name!r} has experts of another width, which cannot be built")
    common = math.gcd(experts.experts, experts.top_k)
    least_experts, least_choices = experts.experts // common, experts.top_k // common
    times = max(
        math.ceil(min(LEAST_EXPERTS, experts.experts) / least_experts),
        math.ceil(min(LEAST_CHOICES, experts.top_k) / least_choices),
    )
    ffn = _width(experts.ffn, hidden, whole)
    return Experts(
        times * least_experts,
        times * least_choices,
        ffn,
        experts.matrices,
        shared_ffn=_width(experts.shared_ffn, hidden, whole) if experts.shared_ffn else 0,
        shared_matrices=experts.shared_matrices,
    )


def _width(width: int, hidden: int, whole: Architecture) -> int:
    """A width that keeps its ratio to the hidden width."""
    return _ratio(width, hidden, whole.hidden)


def _ratio(width: int, part: int, whole: int) -> int:
    return max(8, _multiple_of_8(width * part / whole))


def _multiple_of_8(width: float) -> int:
    return max(8, 8 * round(width / 8))
