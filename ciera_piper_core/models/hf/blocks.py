"""Parts that many families share: attention, experts, layers of both kinds, and the model around them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.parameters import projection_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ciera_piper_core.models.architecture import Recurrence
    from ciera_piper_core.models.hf.fields import Fields

MIXER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def hidden_of(c: Fields) -> int:
    """Width of the residual stream."""
    return c.size("hidden_size")


def depth(c: Fields) -> int:
    """Number of layers."""
    return c.size("num_hidden_layers")


def head_width(c: Fields) -> int:
    """Width of a head; ``hidden_size / num_attention_heads``, rounded down, where no field gives it."""
    given = c.optional("head_dim")
    width = given if given is not None else hidden_of(c) // c.size("num_attention_heads")
    if width < 1:
        raise c.refuse(f"num_attention_heads is {c.size('num_attention_heads')}, more than hidden_size")
    return width


def gqa(
    c: Fields,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    v_dim: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    norm: Literal["none", "head", "all"] = "none",
    gated: bool = False,
    window: int = 0,
    causal: bool = True,
    extra: int = 0,
    side_matrices: int = 0,
) -> Attention:
    """Attention with full-rank projections.

    Args:
        norm: of queries and keys: as wide as a head, or as all heads.
        extra: further weights that are no matrix product.
        side_matrices: further weights that each token is multiplied with once.
    """
    hidden = hidden_of(c)
    heads = heads or c.size("num_attention_heads")
    kv_heads = kv_heads or c.optional("num_key_value_heads") or heads
    head_dim = head_dim or head_width(c)
    v_dim = v_dim or head_dim
    if heads % kv_heads:
        raise c.refuse(f"num_attention_heads is {heads}, which num_key_value_heads, {kv_heads}, does not divide")
    if qkv_bias:
        extra += heads * head_dim + kv_heads * (head_dim + v_dim)
    if output_bias:
        extra += hidden
    extra += {"none": 0, "head": 2 * head_dim, "all": (heads + kv_heads) * head_dim}[norm]
    attention = Attention(
        heads, kv_heads, head_dim, v_dim, window=window, causal=causal, extra_parameters=extra, gated=gated
    )
    return with_matrices(attention, hidden, side_matrices)


def latent(
    c: Fields,
    *,
    heads: int | None = None,
    q_lora: int | None = None,
    kv_lora: int | None = None,
    nope: int | None = None,
    rope: int | None = None,
    v_head: int | None = None,
    window: int = 0,
    extra: int = 0,
    side_matrices: int = 0,
) -> Attention:
    """Multi-head latent attention, with norms of its latents.

    Args:
        heads, q_lora, kv_lora, nope, rope, v_head: where they are not the usual fields.
        extra, side_matrices: as in ``gqa``.
    """
    hidden = hidden_of(c)
    heads = heads or c.size("num_attention_heads")
    if q_lora is None:
        q_lora = c.optional("q_lora_rank") or 0
    mla = MLA(
        q_lora=q_lora,
        kv_lora=kv_lora or c.integer("kv_lora_rank"),
        qk_nope=c.integer("qk_nope_head_dim", least=0) if nope is None else nope,
        qk_rope=c.integer("qk_rope_head_dim", least=0) if rope is None else rope,
        v_head=v_head or c.integer("v_head_dim"),
    )
    extra += mla.q_lora + mla.kv_lora
    if c.raw("attention_bias") and c.flag("attention_bias"):
        # The two projections down and the output have biases; those from the latents never do.
        extra += mla.q_lora + mla.kv_lora + mla.qk_rope + hidden
    attention = Attention(
        heads, heads, mla.qk_nope + mla.qk_rope, mla.v_head, mla, window=window, extra_parameters=extra
    )
    return with_matrices(attention, hidden, side_matrices)


def with_matrices(attention: Attention, hidden: int, side_matrices: int) -> Attention:
    """The attention with further weights that each token is multiplied with once."""
    if not side_matrices:
        return attention
    return replace(attention, projection_parameters=projection_parameters(attention, hidden) + side_matrices)


def experts(
    c: Fields,
    ffn: int,
    *,
    count: int | None = None,
    top_k: int | None = None,
    matrices: int = 3,
    bias: bool = False,
    router_extra: int = 0,
    router_matrices: int | None = None,
    shared_ffn: int = 0,
    shared_gate: bool = False,
    shared_extra: int = 0,
    expert_hidden: int = 0,
    expert_extra: int = 0,
) -> Experts:
    """Routed and shared experts.

    Args:
        ffn: inner width of a routed expert.
        bias: each matrix of a routed expert has one.
        shared_gate: one gate on the shared experts' output.
    """
    hidden = hidden_of(c)
    count = count or c.size("num_experts")
    top_k = top_k or c.size("num_experts_per_tok")
    if top_k > count:
        raise c.refuse(f"num_experts_per_tok is {top_k}, but there are {count} experts")
    if bias:
        expert_extra += (matrices - 1) * ffn + hidden
    return Experts(
        count,
        top_k,
        ffn,
        matrices,
        expert_extra_parameters=expert_extra,
        router_extra_parameters=router_extra,
        router_parameters=router_matrices,
        shared_ffn=shared_ffn,
        shared_matrices=matrices if shared_ffn else 3,
        shared_extra_parameters=shared_extra + (hidden if shared_gate else 0),
        expert_hidden=expert_hidden,
    )


def shared_width(c: Fields, ffn: int) -> int:
    """Width of all shared experts of width ``ffn``; 0 without."""
    return ffn * (c.optional("n_shared_experts", least=0) or 0)


def sparse_layers(c: Fields, *, first: int = 0, every: int = 1, kinds: Sequence[str] = ("sparse",)) -> list[bool]:
    """Which layers have experts: by ``mlp_layer_types``, else all from the first dense ones on.

    Args:
        first: dense layers at the start, where no list says.
        every: of the others, those whose number it divides are sparse.
        kinds: what the list calls a layer with experts.
    """
    layers = depth(c)
    types = c.types("mlp_layer_types", layers, {"dense", *kinds})
    if types is not None:
        return [kind in kinds for kind in types]
    return [index >= first and index % every == 0 for index in range(layers)]


def qwen_sparse_layers(c: Fields) -> list[bool]:
    """Which layers have experts, by ``decoder_sparse_step`` and ``mlp_only_layers``."""
    step = c.integer("decoder_sparse_step")
    dense = set(c.indices("mlp_only_layers") or [])
    return [index not in dense and (index + 1) % step == 0 for index in range(depth(c))]


def windows(c: Fields, *, full: Callable[[int], bool], types: Iterable[str] = ()) -> list[int]:
    """Tokens that a query of each layer sees at most; 0 for all.

    Args:
        full: whether a layer of that number sees all, where ``layer_types`` does not say.
        types: further kinds that the list may have; they see all.
    """
    layers = depth(c)
    kinds = c.types("layer_types", layers, MIXER_TYPES | set(types))
    window = c.optional("sliding_window", least=0) or 0
    if kinds is None:
        return [0 if full(index) else window for index in range(layers)]
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def stack(
    mixers: Sequence[Attention | Recurrence],
    sparse: Sequence[bool],
    moe: Experts,
    dense: FeedForward | None,
    *,
    norms: int,
    residual: FeedForward | None = None,
) -> tuple[Layer, ...]:
    """Layers in order; equal layers are one object.

    Args:
        mixers, sparse: for each layer its mixer, and whether it has experts.
        norms: weights of a layer's norms.
        residual: dense block beside the experts.
    """
    made: dict[tuple[int, bool], Layer] = {}
    layers = []
    for mixer, has_experts in zip(mixers, sparse, strict=True):
        key = (id(mixer), has_experts)
        if key not in made:
            block = {"experts": moe, "dense": residual} if has_experts else {"dense": dense}
            made[key] = Layer(mixer, norm_parameters=norms, **block)
        layers.append(made[key])
    return tuple(layers)


def dense_block(
    c: Fields, sparse: Sequence[bool], field: str, *, bias: bool = False, matrices: int = 3
) -> FeedForward | None:
    """The block of the dense layers, as wide as a field says; None where no layer is dense."""
    if all(sparse):
        return None
    width = c.integer(field)
    extra = ((matrices - 1) * width + hidden_of(c)) if bias else 0
    return FeedForward(width, matrices, extra)


def predicting(c: Fields, layer: Layer) -> tuple[Layer, ...]:
    """Layers that predict further tokens, each like ``layer`` with norms around its projection.

    Those are of the embedding, of the hidden state before, and of the state that goes to the output.
    """
    count = c.optional("num_nextn_predict_layers", least=0) or 0
    norms = layer.norm_parameters + 3 * hidden_of(c)
    return (replace(layer, norm_parameters=norms),) * count


def model(
    c: Fields,
    layers: Sequence[Layer],
    *,
    mtp: Sequence[Layer] = (),
    encoder: Sequence[Layer] = (),
    extra: int = 0,
    tied: bool | None = None,
    output_vocab: int = 0,
) -> Architecture:
    """The whole model, with a norm before the output.

    Args:
        extra: weights beside layers, embedding, output and that norm.
        tied: where it is not the field ``tie_word_embeddings``.
    """
    hidden = hidden_of(c)
    if tied is None:
        # The text models whose class has no such field have an output of their own.
        tied = c.flag("tie_word_embeddings", default=False)
    return Architecture(
        name=c.family,
        hidden=hidden,
        vocab=c.size("vocab_size"),
        layers=tuple(layers),
        encoder=tuple(encoder),
        mtp=tuple(mtp),
        tied_embeddings=tied,
        output_vocab=output_vocab,
        extra_parameters=hidden + extra,
    )
