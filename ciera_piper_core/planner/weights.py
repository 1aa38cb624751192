"""Every weight of a layer by shape: what static memory, and the moments that depend on shapes, are counted from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.parameters import projection_parameters

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Layer, Recurrence

COMPONENTS = ("attention", "router", "routed_experts", "shared_experts", "dense", "norms")
"""Parts of a layer that weights are counted by."""


@dataclass(frozen=True)
class Weight:
    """Equal weights of one part of a layer.

    Attributes:
        component: of ``COMPONENTS``.
        count: how many there are, one an expert.
        rows, columns: of each; a vector has one row.
    """

    component: str
    count: int
    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """Numbers in all of them."""
        return self.count * self.rows * self.columns


def layer_weights(layer: Layer, hidden: int) -> tuple[Weight, ...]:
    """The weights of a layer; biases and other extras are one vector a part."""
    weights: list[Weight] = []

    def add(component: str, rows: int, columns: int, count: int = 1) -> None:
        if rows and columns and count:
            weights.append(Weight(component, count, rows, columns))

    for mixer in (layer.mixer, layer.cross):
        if mixer is None:
            continue
        for rows, columns in mixer_projections(mixer, hidden).values():
            add("attention", rows, columns)
        add("attention", 1, mixer.extra_parameters)
        if isinstance(mixer, Attention):
            add("attention", 1, mixer.inactive_parameters)
    experts, dense = layer.experts, layer.dense
    if experts is not None:
        add("router", experts.experts, hidden)
        add("router", 1, experts.router_extra_parameters)
        width = experts.expert_hidden or hidden
        add("routed_experts", experts.ffn, width, experts.experts * (experts.matrices - 1))
        add("routed_experts", width, experts.ffn, experts.experts)
        add("routed_experts", 1, experts.expert_extra_parameters, experts.experts)
        if experts.shared_ffn:
            add("shared_experts", experts.shared_ffn, hidden, experts.shared_matrices - 1)
            add("shared_experts", hidden, experts.shared_ffn)
        add("shared_experts", experts.expert_hidden, hidden, 2)
        add("shared_experts", 1, experts.shared_extra_parameters)
    if dense is not None:
        add("dense", dense.ffn, hidden, dense.matrices - 1)
        add("dense", hidden, dense.ffn)
        add("dense", 1, dense.extra_parameters)
    add("norms", 1, layer.norm_parameters)
    add("norms", layer.extra_matrix_parameters // hidden, hidden)
    add("norms", 1, layer.extra_matrix_parameters % hidden)
    return tuple(weights)


def mixer_projections(mixer: Attention | Recurrence, hidden: int) -> dict[str, tuple[int, int]]:
    """Shape ``(out, in)`` of every matrix, by name.

    A gated query's gate is one of its own. Where only the number of weights is known they are taken for
    one matrix that reads the residual stream, and what is left over for another.
    """
    if isinstance(mixer, Attention) and mixer.projection_parameters is None:
        gate = {"gate": (mixer.heads * mixer.qk_dim, hidden)} if mixer.gated else {}
        return AttentionShape.from_attention(mixer, hidden).projections() | gate
    rows, rest = divmod(projection_parameters(mixer, hidden), hidden)
    return {name: shape for name, shape in {"all": (rows, hidden), "rest": (1, rest)}.items() if all(shape)}
