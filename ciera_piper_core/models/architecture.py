"""What a mixture-of-experts transformer is made of: dimensions only, exact enough to count every weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

HeadKind = Literal["mha", "gqa", "mla"]
HEAD_KINDS: tuple[HeadKind, ...] = ("mha", "gqa", "mla")


@dataclass(frozen=True)
class MLA:
    """Widths of multi-head latent attention.

    Attributes:
        q_lora: rank of the query's projection; 0 if it has full rank.
        kv_lora: rank of the latent that keys and values are made from.
        qk_nope, qk_rope: width of a head's query and key without and with rotation; the latter's
            key is shared by all heads.
        v_head: width of a head's value.
    """

    q_lora: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head: int

    def __post_init__(self) -> None:
        _refuse_below(1, self, ("kv_lora", "v_head"))
        _refuse_below(0, self, ("q_lora", "qk_nope", "qk_rope"))


@dataclass(frozen=True)
class Attention:
    """A softmax attention block.

    Attributes:
        heads, kv_heads: query heads, and the key/value heads that they share.
        qk_dim, v_dim: width of a head's query and key, and of its value.
        mla: low-rank widths, or None for full-rank projections.
        window: tokens that a query sees at most; 0 for all before it.
        causal: False in an encoder and in cross-attention.
        extra_parameters: weights that are no matrix product with each token: biases, norms of
            queries and keys, sinks, relative positions.
        gated: the query's projection also gives a gate as wide as the queries.
        projection_parameters: weights that each token is multiplied with once, where the widths above
            do not give them: shared keys and values, low-rank outputs, an indexer of sparse attention.
            None where they do.
        inactive_parameters: of a mixture of attention heads: weights of the projections that a token
            does not use.
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    mla: MLA | None = None
    window: int = 0
    causal: bool = True
    extra_parameters: int = 0
    gated: bool = False
    projection_parameters: int | None = None
    inactive_parameters: int = 0

    def __post_init__(self) -> None:
        _refuse_below(1, self, ("heads", "kv_heads", "qk_dim", "v_dim"))
        _refuse_below(0, self, ("window", "extra_parameters", "projection_parameters", "inactive_parameters"))
        if self.heads % self.kv_heads:
            raise ValueError(f"attention: {self.heads} heads cannot share {self.kv_heads} kv_heads")

    @property
    def head_kind(self) -> HeadKind:
        """How heads share keys and values."""
        if self.mla:
            return "mla"
        return "mha" if self.kv_heads == self.heads else "gqa"


@dataclass(frozen=True)
class Recurrence:
    """A mixer that is no softmax attention (state space, linear attention), known by its weights.

    Attributes:
        kind: of it: ``mamba``, ``mamba2``, ``gated_delta_net``, ``lightning``, ...
        matrix_parameters: weights that each token is multiplied with once.
        extra_parameters: all others: convolutions, decays, norms, biases.
        width: of its inner activations, elements a token.
    """

    kind: str
    matrix_parameters: int
    extra_parameters: int
    width: int

    def __post_init__(self) -> None:
        _refuse_below(1, self, ("matrix_parameters", "width"))
        _refuse_below(0, self, ("extra_parameters",))


@dataclass(frozen=True)
class FeedForward:
    """A dense feed-forward block.

    Attributes:
        ffn: inner width. matrices: 3 with a gate, else 2. extra_parameters: biases.
    """

    ffn: int
    matrices: int = 3
    extra_parameters: int = 0

    def __post_init__(self) -> None:
        _refuse_below(1, self, ("ffn",))
        _refuse_below(0, self, ("extra_parameters",))
        _refuse_matrices(self, ("matrices",))


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer, their router, and the shared experts that every token goes through.

    Attributes:
        experts, top_k: routed experts, and how many a token goes to.
        ffn, matrices: inner width of one, and its matrices: 3 with a gate, else 2.
        expert_extra_parameters: biases of one expert.
        router_extra_parameters: the router's bias, and what it has beside its matrices.
        router_parameters: of the router's matrices, where they are not one of ``hidden x experts``; else None.
        shared_ffn: inner width of all shared experts together; 0 without.
        shared_matrices: of the shared experts.
        shared_extra_parameters: their biases, and a gate on their output.
        expert_hidden: width that the routed experts read and write, where it is not the model's; then
            one projection to it and one back, which every token goes through, count as shared.
    """

    experts: int
    top_k: int
    ffn: int
    matrices: int = 3
    expert_extra_parameters: int = 0
    router_extra_parameters: int = 0
    router_parameters: int | None = None
    shared_ffn: int = 0
    shared_matrices: int = 3
    shared_extra_parameters: int = 0
    expert_hidden: int = 0

    def __post_init__(self) -> None:
        _refuse_below(1, self, ("experts", "top_k", "ffn"))
        extras = ("expert_extra_parameters", "router_extra_parameters", "router_parameters", "shared_extra_parameters")
        _refuse_below(0, self, ("shared_ffn", "expert_hidden", *extras))
        _refuse_matrices(self, ("matrices", "shared_matrices"))
        if self.top_k > self.experts:
            raise ValueError(f"experts: top_k is {self.top_k}, but there are {self.experts} experts")


@dataclass(frozen=True)
class Layer:
    """One layer: a mixer, then a feed-forward part; either may be missing, as hybrids have it.

    Attributes:
        mixer: attention or a recurrence, or None.
        experts: routed experts, or None in a dense layer.
        dense: the dense block of a dense layer; beside experts, it is residual to them.
        cross: attention to an encoder's output, or None.
        norm_parameters: weights of the layer's norms, and others of which no matrix is made.
        extra_matrix_parameters: weights beside mixer and feed-forward part that each token is
            multiplied with once: mixers of several residual streams, embeddings of the layer's own.
    """

    mixer: Attention | Recurrence | None
    experts: Experts | None = None
    dense: FeedForward | None = None
    cross: Attention | None = None
    norm_parameters: int = 0
    extra_matrix_parameters: int = 0

    def __post_init__(self) -> None:
        _refuse_below(0, self, ("norm_parameters", "extra_matrix_parameters"))


@dataclass(frozen=True)
class Architecture:
    """A whole model.

    Attributes:
        name: of it. hidden: width of the residual stream. vocab: rows of the embedding.
        layers: from the first to the last; of an encoder-decoder, the decoder's.
        encoder: an encoder's layers; empty without one.
        mtp: layers that predict further tokens; published sizes leave them out. Each has, beside what
            a layer has, a projection of ``2 * hidden`` to ``hidden``; its ``norm_parameters`` hold the norms
            around that projection too. Embedding and output are shared with the model.
        tied_embeddings: the output projection is the embedding.
        output_vocab: rows of the output projection where the embedding is padded beyond them; 0 if as many.
        extra_parameters: all other weights: last norm, positions.
        embeddings_in_total: False where the published sizes leave the embeddings out.
        source: ``config``: read from the model's public configuration; ``size``: dimensions that
            reproduce the published size; ``import``: from a configuration of the user's.
        total_params_billion, active_params_billion: published sizes, in 1e9; None if unknown.
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    encoder: tuple[Layer, ...] = ()
    mtp: tuple[Layer, ...] = ()
    tied_embeddings: bool = False
    output_vocab: int = 0
    extra_parameters: int = 0
    embeddings_in_total: bool = True
    source: Literal["config", "size", "import"] = "import"
    total_params_billion: float | None = None
    active_params_billion: float | None = None

    def __post_init__(self) -> None:
        _refuse_below(1, self, ("hidden", "vocab"))
        _refuse_below(0, self, ("output_vocab", "extra_parameters"))
        if not self.layers:
            raise ValueError(f"architecture {self.name!r} has no layers")

    @property
    def has_experts(self) -> bool:
        """Whether any layer has routed experts."""
        return any(layer.experts is not None for layer in (*self.layers, *self.encoder))

    @property
    def moe_layer(self) -> Layer:
        """The first layer with routed experts.

        Raises:
            ValueError: there is none.
        """
        for layer in (*self.layers, *self.encoder):
            if layer.experts is not None:
                return layer
        raise ValueError(f"architecture {self.name!r} has no layer with routed experts")

    @property
    def experts(self) -> Experts:
        """The experts of ``moe_layer``."""
        experts = self.moe_layer.experts
        assert experts is not None
        return experts

    @property
    def attention(self) -> Attention:
        """The first softmax attention.

        Raises:
            ValueError: there is none.
        """
        for layer in (*self.layers, *self.encoder):
            if isinstance(layer.mixer, Attention):
                return layer.mixer
        raise ValueError(f"architecture {self.name!r} has no softmax attention")


def _refuse_below(least: int, record: object, fields: Iterable[str]) -> None:
    """Raise a ``ValueError`` that names the first of the fields that is no whole number of at least ``least``."""
    for field in fields:
        value = getattr(record, field)
        if value is not None and (type(value) is not int or value < least):
            what = type(record).__name__.lower()
            raise ValueError(f"{what}: {field} is {value!r}; it must be a whole number of at least {least}")


def _refuse_matrices(record: object, fields: Iterable[str]) -> None:
    for field in fields:
        if getattr(record, field) not in (2, 3):
            raise ValueError(f"{type(record).__name__.lower()}: {field} is {getattr(record, field)!r}; it is 2 or 3")
