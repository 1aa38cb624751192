"""Parameter counts of a layer and of a model, exact, by what each part does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import Attention

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Experts, FeedForward, Layer, Recurrence


@dataclass(frozen=True)
class LayerParameters:
    """Weights of one layer.

    Attributes:
        attention: the mixer and cross-attention, with their biases and norms.
        router: the router, with its biases.
        routed_experts: all routed experts.
        shared_experts: shared experts with their gate, and projections around the routed ones.
        dense: the dense block.
        norms: the layer's norms, and what else surrounds its blocks.
        inactive: those of ``attention`` and ``routed_experts`` that one token does not use.
    """

    attention: int
    router: int
    routed_experts: int
    shared_experts: int
    dense: int
    norms: int
    inactive: int

    @property
    def total(self) -> int:
        """All weights."""
        return self.replicated + self.routed_experts

    @property
    def replicated(self) -> int:
        """Weights that expert parallelism does not divide: all but the routed experts."""
        return self.attention + self.router + self.shared_experts + self.dense + self.norms

    @property
    def active(self) -> int:
        """Weights that one token uses."""
        return self.total - self.inactive


@dataclass(frozen=True)
class ModelParameters:
    """Weights of a whole model.

    Attributes:
        embedding: of the tokens. output: the projection to the vocabulary; 0 where it is the embedding.
        attention, router, routed_experts, shared_experts, dense, norms: sums over all layers.
        other: last norm, positions, and the projections of layers that predict further tokens.
        inactive: weights that one token does not use.
    """

    embedding: int
    output: int
    attention: int
    router: int
    routed_experts: int
    shared_experts: int
    dense: int
    norms: int
    other: int
    inactive: int

    @property
    def total(self) -> int:
        """All weights."""
        layers = self.attention + self.router + self.routed_experts + self.shared_experts + self.dense + self.norms
        return self.embedding + self.output + layers + self.other

    @property
    def active(self) -> int:
        """Weights that one token uses: all, but of the routed experts only ``top_k`` a layer.

        Embedding and output projection count whole, as most publishers do.
        """
        return self.total - self.inactive


def projection_parameters(mixer: Attention | Recurrence, hidden: int) -> int:
    """Weights that each token is multiplied with once: two operations each in a forward pass.

    Args:
        hidden: width of the residual stream.
    """
    if not isinstance(mixer, Attention):
        return mixer.matrix_parameters
    if mixer.projection_parameters is not None:
        return mixer.projection_parameters
    queries = mixer.heads * mixer.qk_dim
    output = mixer.heads * mixer.v_dim * hidden
    gate = hidden * queries if mixer.gated else 0
    if mixer.mla is None:
        return gate + hidden * (queries + mixer.kv_heads * (mixer.qk_dim + mixer.v_dim)) + output
    mla = mixer.mla
    query = mla.q_lora * (hidden + queries) if mla.q_lora else hidden * queries
    keys_values = hidden * (mla.kv_lora + mla.qk_rope) + mla.kv_lora * mixer.heads * (mla.qk_nope + mla.v_head)
    return gate + query + keys_values + output


def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """Weights of a layer.

    Args:
        hidden: width of the residual stream.
    """
    mixers = [mixer for mixer in (layer.mixer, layer.cross) if mixer is not None]
    idle_heads = sum(mixer.inactive_parameters for mixer in mixers if isinstance(mixer, Attention))
    attention = sum(projection_parameters(mixer, hidden) + mixer.extra_parameters for mixer in mixers) + idle_heads
    experts = layer.experts
    each = _expert(experts, hidden) if experts else 0
    return LayerParameters(
        attention=attention,
        router=_router(experts, hidden) if experts else 0,
        routed_experts=experts.experts * each if experts else 0,
        shared_experts=_shared(experts, hidden) if experts else 0,
        dense=_dense(layer.dense, hidden) if layer.dense else 0,
        norms=layer.norm_parameters + layer.extra_matrix_parameters,
        inactive=idle_heads + ((experts.experts - experts.top_k) * each if experts else 0),
    )


def model_parameters(architecture: Architecture, *, mtp: bool = True) -> ModelParameters:
    """Weights of a model.

    Args:
        mtp: count the layers that predict further tokens; published sizes leave them out.
    """
    hidden = architecture.hidden
    extra_layers = architecture.mtp if mtp else ()
    # Most layers are one object many times over.
    counts: dict[int, LayerParameters] = {}
    layers = []
    for layer in (*architecture.encoder, *architecture.layers, *extra_layers):
        if id(layer) not in counts:
            counts[id(layer)] = layer_parameters(layer, hidden)
        layers.append(counts[id(layer)])
    embedding = architecture.vocab * hidden
    return ModelParameters(
        embedding=embedding,
        output=0 if architecture.tied_embeddings else (architecture.output_vocab or architecture.vocab) * hidden,
        attention=sum(layer.attention for layer in layers),
        router=sum(layer.router for layer in layers),
        routed_experts=sum(layer.routed_experts for layer in layers),
        shared_experts=sum(layer.shared_experts for layer in layers),
        dense=sum(layer.dense for layer in layers),
        norms=sum(layer.norms for layer in layers),
        other=architecture.extra_parameters + 2 * hidden * hidden * len(extra_layers),
        inactive=sum(layer.inactive for layer in layers),
    )


def _router(experts: Experts, hidden: int) -> int:
    own = experts.router_parameters
    return (hidden * experts.experts if own is None else own) + experts.router_extra_parameters


def _expert(experts: Experts, hidden: int) -> int:
    """Weights of one routed expert."""
    width = experts.expert_hidden or hidden
    return experts.matrices * width * experts.ffn + experts.expert_extra_parameters


def _shared(experts: Experts, hidden: int) -> int:
    shared = experts.shared_matrices * hidden * experts.shared_ffn + experts.shared_extra_parameters
    return shared + 2 * hidden * experts.expert_hidden


def _dense(dense: FeedForward, hidden: int) -> int:
    return dense.matrices * hidden * dense.ffn + dense.extra_parameters
