"""The Inkling families: short convolutions around attention, relative positions, residuals of blocks before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ciera_piper_core.models.architecture import FeedForward, Layer
from ciera_piper_core.models.hf.blocks import depth, experts, gqa, hidden_of, model, predicting, sparse_layers, stack

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Attention, Experts
    from ciera_piper_core.models.hf.fields import Fields

SLIDING, FULL = "hybrid_sliding", "hybrid"


@dataclass(frozen=True)
class _Heads:
    """Heads of one kind of attention, and the positions that its relative logits reach."""

    heads: int
    kv_heads: int
    width: int
    reach: int
    window: int


def inkling(c: Fields) -> Architecture:
    """``inkling_text``."""
    layers, hidden = depth(c), hidden_of(c)
    local = c.indices("local_layer_ids")
    kinds = c.types("layer_types", layers, {SLIDING, FULL})
    if kinds is None:
        windowed = {index for index in range(layers) if (index + 1) % 6} if local is None else set(local)
        kinds = [SLIDING if index in windowed else FULL for index in range(layers)]
    made = {kind: _first_attention(c, kind) for kind in (SLIDING, FULL)}
    kernel = c.integer("conv_kernel_size")
    older = c.optional("dense_intermediate_size")
    ffn = c.size("moe_intermediate_size") if older is None else c.size("intermediate_size")
    dense = FeedForward(older or c.integer("intermediate_size"), extra_parameters=1)
    sparse = sparse_layers(c, first=c.integer("dense_mlp_idx", least=0, default=0))
    shared = c.integer("n_shared_experts", least=0)
    # The router weighs the shared experts too, and scales its output.
    moe = experts(c, ffn, router_extra=hidden * shared + 1, shared_ffn=shared * ffn)
    norms = hidden * (2 + 2 * kernel)
    mixers = [made[kind] for kind in kinds]
    after = Layer(made[FULL], dense=dense, norm_parameters=norms)
    return model(
        c,
        stack(mixers, sparse, moe, dense, norms=norms),
        mtp=predicting(c, after),
        extra=hidden,
        # The class never shares the embedding, whatever the field says.
        tied=False,
    )


def _heads(c: Fields, kind: str) -> _Heads:
    if kind == FULL:
        return _Heads(
            c.size("num_attention_heads"),
            c.integer("num_key_value_heads"),
            c.integer("head_dim"),
            c.integer("rel_extent"),
            0,
        )
    window = c.optional("sliding_window") or c.integer("sliding_window_size")
    return _Heads(
        c.integer("swa_num_attention_heads"),
        c.integer("swa_num_key_value_heads"),
        c.integer("swa_head_dim"),
        window,
        window,
    )


def _first_attention(c: Fields, kind: str) -> Attention:
    h, kernel, relative = _heads(c, kind), c.integer("conv_kernel_size"), c.integer("d_rel")
    return gqa(
        c,
        heads=h.heads,
        kv_heads=h.kv_heads,
        head_dim=h.width,
        norm="head",
        window=h.window,
        extra=2 * h.kv_heads * h.width * kernel + relative * h.reach,
        side_matrices=hidden_of(c) * h.heads * relative,
    )


def inkling2(c: Fields) -> Architecture:
    """``inkling2_text`` and ``inkling2_loop_text``, whose layers of a loop run more than once.

    The parameters are those of one pass; ``layers`` holds each layer once.
    """
    layers, hidden = depth(c), hidden_of(c)
    kinds = c.types("layer_types", layers, {SLIDING, FULL}) or [
        SLIDING if (index + 1) % 6 else FULL for index in range(layers)
    ]
    made = {kind: _second_attention(c, kind) for kind in (SLIDING, FULL)}
    moe = experts(c, c.size("moe_intermediate_size"))
    start = end = rank = passes = 0
    if c.family == "inkling2_loop_text":
        table = c.part("loop_config")
        given = table.optional("core_start", least=0)
        start = c.integer("loop_layer_index_start", least=0) if given is None else given
        end = table.optional("core_end") or c.integer("loop_layer_index_end")
        rank = table.optional("gate_rank") or c.integer("loop_gate_rank")
        passes = table.optional("num_passes") or c.integer("loop_num_passes")
    result = [
        _second_layer(c, made[kind], moe, kind, first=index == 0, gates=4 * rank if start <= index < end else 0)
        for index, kind in enumerate(kinds)
    ]
    extra = 2 * hidden
    if passes:
        extra += _loop_queries(end - start, hidden)
    return model(c, result, extra=extra, output_vocab=c.integer("unpadded_vocab_size"), tied=False)


def _loop_queries(looped: int, hidden: int) -> int:
    """Weights of the queries that mix the messages of a loop's layers: one for each of four inputs."""
    return 4 * looped * hidden


def _second_attention(c: Fields, kind: str) -> Attention:
    hidden = hidden_of(c)
    h, kernel, relative = _heads(c, kind), c.integer("conv_kernel_size"), c.integer("d_rel")
    matrices = hidden * h.heads * (relative + 1)
    if kind == FULL:
        # Here the convolutions' weights follow from the token, beside a part that does not.
        matrices += 2 * hidden * h.kv_heads * kernel
    return gqa(
        c,
        heads=h.heads,
        kv_heads=h.kv_heads,
        head_dim=h.width,
        gated=True,
        window=h.window,
        extra=h.heads * (h.width + relative) + relative * h.reach + 2 * h.kv_heads * h.width * kernel,
        side_matrices=matrices,
    )


def _second_layer(c: Fields, mixer: Attention, moe: Experts, kind: str, *, first: bool, gates: int) -> Layer:
    """A layer.

    Args:
        gates: ranks of the gates on the messages of a loop, all together.
    """
    hidden, kernel = hidden_of(c), c.integer("conv_kernel_size")
    inputs = 1 if kind == SLIDING else 3
    queries = 1 + (0 if first else inputs)
    return Layer(
        mixer,
        experts=moe,
        norm_parameters=hidden * (queries + inputs + 1 + 2 * kernel),
        extra_matrix_parameters=4 * hidden * gates,
    )


FAMILIES = {"inkling_text": inkling, "inkling2_text": inkling2, "inkling2_loop_text": inkling2}
