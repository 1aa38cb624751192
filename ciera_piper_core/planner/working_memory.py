"""Memory that comes and goes while one layer is computed again and differentiated, beyond what layers keep.

The backward pass of a layer runs its halves from the last to the first and frees what they kept as
it goes. In each half the peak is at one of a few operations; the sizes there follow from the order
of the operations and from which tensors each has made and freed, as ``models`` has them. Kernels'
own workspaces are left out, among them the padding that torch's CPU kernel wants for MLA's values, and
so is what a mixer without a softmax needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ciera_piper_core.models.architecture import Attention, FeedForward
from ciera_piper_core.planner.activations import FLOAT32, INT64, attention_tensors, kept_tensors
from ciera_piper_core.planner.static_memory import precision_of
from ciera_piper_core.planner.weights import mixer_projections

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture, Layer

Number: TypeAlias = "float | np.ndarray"


LOSS_ROWS = 256
"""Tokens whose logits are float32 at a time: ``models.loss.ROWS``."""


class _Moment(NamedTuple):
    """An operation of the backward pass: what is there then beyond what the layer keeps.

    Attributes:
        tokens: bytes a local token. weights: bytes of a weight's new gradient, before it is added.
    """

    tokens: Number
    weights: Number


_FEED_FORWARD = ("router", "routed_experts", "shared_experts", "dense", "dispatch")


def working_bytes_per_token(
    layer: Layer,
    hidden: int,
    sequence: Number,
    *,
    checkpointing: str = "none",
    flash: bool = True,
    tensor_parallel: int = 1,
    expert_parallel: Number = 1,
    load_factor: Number = 1.0,
    precision: str = "bf16",
) -> Number:
    """Peak of the backward pass of one layer, a local token of a microbatch, beyond what all layers keep.

    It includes the gradient of the layer's output, and with checkpointing what is computed again. New
    gradients of weights are left out: :func:`working_bytes` has them.

    Args:
        expert_parallel: ranks that the routed experts are spread over; may be an array. With more than
            one, tokens' gradients are exchanged: those sent and those received exist together.
        layer, hidden, sequence, checkpointing, flash, tensor_parallel, load_factor, precision: as of
            ``activations.activation_bytes_per_token``.
    """
    moments = _moments(
        layer, hidden, sequence, checkpointing, flash, tensor_parallel, load_factor, precision, expert_parallel
    )
    peak: Number = 0.0
    for moment in moments:
        peak = np.maximum(peak, moment.tokens)
    return peak


def working_bytes(
    layer: Layer,
    hidden: int,
    sequence: Number,
    tokens: Number,
    *,
    checkpointing: str = "none",
    flash: bool = True,
    tensor_parallel: int = 1,
    expert_parallel: Number = 1,
    load_factor: Number = 1.0,
    precision: str = "bf16",
) -> Number:
    """Peak of the backward pass of one layer on one GPU, beyond what all layers keep and the gradients that stay.

    A weight's new gradient exists beside the one that it is added to, in every microbatch but the
    first; the routed experts' up, gate and down are one stacked weight each.

    Args:
        tokens: of one microbatch on this GPU; may be an array.
        expert_parallel: as of :func:`working_bytes_per_token`.
        layer, hidden, sequence, checkpointing, flash, tensor_parallel, load_factor, precision: as of
            ``activations.activation_bytes_per_token``.
    """
    moments = _moments(
        layer, hidden, sequence, checkpointing, flash, tensor_parallel, load_factor, precision, expert_parallel
    )
    peak: Number = 0.0
    for moment in moments:
        peak = np.maximum(peak, moment.tokens * tokens + moment.weights)
    return peak


def logits_bytes_per_token(
    architecture: Architecture, *, precision: str = "bf16", vocab_parallel: int = 1
) -> dict[str, float]:
    """Bytes that the two ends of a model keep a local token of a microbatch.

    ``embedding`` (first stage): the tokens' numbers; what it gives is the first layer's input, which
    that layer counts. ``output`` (last stage): the last layer's result, as is and normalised; the
    logits and a float32 logarithm a token, from which the loss's gradient is made.

    Args:
        architecture: the model. precision: of ``static_memory.PRECISIONS``.
        vocab_parallel: ranks that share the vocabulary.
    """
    element = precision_of(precision).weight_bytes
    vocab = (architecture.output_vocab or architecture.vocab) / vocab_parallel
    output = element * (2 * architecture.hidden + vocab) + 2 * FLOAT32
    return {"embedding": float(INT64), "output": output + INT64}


def logits_working_bytes(
    architecture: Architecture, tokens: Number, *, precision: str = "bf16", vocab_parallel: int = 1
) -> Number:
    """Transient peak of the loss and of the output projection's backward pass, on one GPU.

    Either the logits' gradient with some rows of it in float32, or, when the logits are free, the gradients of
    what the projection reads and of the projection itself. Where the projection is the embedding and both
    are on this GPU, its gradient waits there for the embedding's; that is not in it.

    Args:
        architecture: the model. tokens: of one microbatch on this GPU; may be an array.
        precision: of ``static_memory.PRECISIONS``. vocab_parallel: ranks that share the vocabulary.
    """
    element = precision_of(precision).weight_bytes
    vocab = (architecture.output_vocab or architecture.vocab) / vocab_parallel
    of_loss = (element * tokens + FLOAT32 * np.minimum(tokens, LOSS_ROWS)) * vocab
    return np.maximum(of_loss, element * architecture.hidden * (tokens + vocab))


def logits_working_bytes_per_token(
    architecture: Architecture, *, precision: str = "bf16", vocab_parallel: int = 1
) -> float:
    """What grows with the tokens in :func:`logits_working_bytes`: the logits' gradient."""
    element = precision_of(precision).weight_bytes
    return element * max((architecture.output_vocab or architecture.vocab) / vocab_parallel, architecture.hidden)


def _moments(
    layer: Layer,
    hidden: int,
    sequence: Number,
    checkpointing: str,
    flash: bool,
    tensor_parallel: int,
    load_factor: Number,
    precision: str,
    expert_parallel: Number,
) -> list[_Moment]:
    """Where the backward pass may have its peak."""
    element = precision_of(precision).weight_bytes
    stream = element * hidden
    full = checkpointing == "full"
    own = kept_tensors(
        layer,
        hidden,
        sequence,
        checkpointing="none" if full else checkpointing,
        flash=flash,
        tensor_parallel=tensor_parallel,
        load_factor=load_factor,
        precision=precision,
    )
    last = _feed_forward_moments(layer, hidden, own, load_factor, tensor_parallel, expert_parallel, element)
    first: list[_Moment] = []
    if isinstance(layer.mixer, Attention):
        first = _attention_moments(
            layer.mixer, hidden, sequence, own, flash, checkpointing == "selective", tensor_parallel, element
        )
    kept_last = _norm_bytes(own, "feed_forward") + sum(sum(own[part].values()) for part in _FEED_FORWARD)
    kept_first = _norm_bytes(own, "attention") + sum(own["attention"].values())
    # With full checkpointing a half is computed again beside its own input, and once the last half is
    # done its input is free. Otherwise all that the last half kept is free when the first one's turn comes.
    before_last = kept_last - stream if full else 0
    before_first = kept_first - stream - (stream if last else 0) if full else -kept_last
    # Who called holds the gradient that came in, while the first half has one that both added to.
    before_first = before_first + (stream if last else 0)
    moments = [_Moment(stream, 0)]
    for before, half in ((before_last, last), (before_first, first)):
        moments += [_Moment(stream + before + moment.tokens, moment.weights) for moment in half]
    return moments


def _norm_bytes(own: dict[str, dict[str, Number]], half: str) -> Number:
    return sum(size for name, size in own["norms"].items() if name.startswith(f"{half}_"))


def _feed_forward_moments(
    layer: Layer,
    hidden: int,
    own: dict[str, dict[str, Number]],
    load_factor: Number,
    tensor_parallel: int,
    expert_parallel: Number,
    element: int,
) -> list[_Moment]:
    """Of the feed-forward half, beyond the gradient of its output: routed experts, dense block, shared experts."""
    moments: list[_Moment] = []
    freed: Number = 0.0
    experts = layer.experts
    if experts is not None:
        copies = experts.top_k * load_factor
        inner = element * experts.ffn / tensor_parallel * copies
        width = experts.expert_hidden or hidden
        rows = element * width * copies
        weight = element * width * experts.ffn / tensor_parallel * experts.experts / expert_parallel
        gated = experts.matrices == 3
        sent = element * width * experts.top_k
        moments += [
            # The exchange of gradients before the last product.
            _Moment(np.where(np.asarray(expert_parallel) > 1, sent + rows, 0), 0),
            # The last product: gradients of what experts gave back and of the weighted product.
            _Moment(rows + inner, weight),
            # The activation: gradients of the weighted product with and without its weight, the
            # activation again and, gated, the gate's gradient; the weighted product is free.
            _Moment((3 if gated else 2) * inner, 0),
            # The first products: a gradient of the received rows from each, when all but one of the
            # activations, or both, are free.
            _Moment(2 * rows - 2 * inner if gated else rows - inner, weight),
        ]
        freed = sum(sum(own[part].values()) for part in ("router", "routed_experts", "dispatch"))
    shared = FeedForward(experts.shared_ffn, experts.shared_matrices) if experts and experts.shared_ffn else None
    for part, block in (("dense", layer.dense), ("shared_experts", shared)):
        if block is None:
            continue
        # The gradient of the normalised tokens that the parts before gave is held meanwhile.
        before = (element * hidden if moments else 0) - freed
        moments += [
            _Moment(before + moment.tokens, moment.weights)
            for moment in _dense_moments(block, hidden, tensor_parallel, element)
        ]
        freed = freed + sum(own[part].values())
    return moments


def _dense_moments(dense: FeedForward, hidden: int, tensor_parallel: int, element: int) -> list[_Moment]:
    inner = element * dense.ffn / tensor_parallel
    weight = inner * hidden
    stream = element * hidden
    if dense.matrices == 2:
        # The last product; the activation, whose result is its own backward pass's; the first product.
        return [_Moment(inner, weight), _Moment(2 * inner, 0), _Moment(stream, weight)]
    return [_Moment(inner, weight), _Moment(2 * inner, 0), _Moment(2 * stream - 2 * inner, weight)]


def _attention_moments(
    attention: Attention,
    hidden: int,
    sequence: Number,
    own: dict[str, dict[str, Number]],
    flash: bool,
    recompute: bool,
    tensor_parallel: int,
    element: int,
) -> list[_Moment]:
    """Of the attention half, beyond the gradient of its output."""
    tensors = attention_tensors(
        attention, sequence, flash=flash, core=True, tensor_parallel=tensor_parallel, element=element
    )
    inputs = tensors["queries"] + tensors["keys"] + tensors["values"]
    mixed = tensors["mixed"]
    if flash:
        # The kernel: gradients of its output and of its inputs; before, its output again.
        core = mixed + inputs + (mixed + tensors["log_sums"] if recompute else 0)
    else:
        # The softmax: gradients of the probabilities and of the scores; the gradient of the values
        # has taken their place, and the output is free. Before, copies of the inputs and the
        # probabilities again.
        again = inputs + tensors["probabilities"] if recompute else 0
        core = 2 * tensors["probabilities"] - mixed + again
    projections = {
        name: element * rows * columns / tensor_parallel
        for name, (rows, columns) in mixer_projections(attention, hidden).items()
    }
    # The first projections: gradients of queries, keys and values, when these and the rest are free.
    first = element * hidden + inputs - sum(own["attention"].values())
    return [
        _Moment(mixed, projections.pop("output", 0.0)),
        _Moment(core, 0),
        _Moment(first, max(projections.values())),
    ]
