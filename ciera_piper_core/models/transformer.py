"""The mixture-of-experts transformer: a plain module, built from an architecture, that knows of no other rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.models.attention import CausalAttention
from ciera_piper_core.models.attention_core import Core
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.feed_forward import FeedForward, RoutedExperts
from ciera_piper_core.models.norm import RMSNorm
from ciera_piper_core.moe.balance import AuxiliaryScale
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ciera_piper_core.models.architecture import Architecture, Layer
    from ciera_piper_core.training.recipe import Routing

Checkpointing = Literal["none", "selective", "full"]


class TransformerLayer(torch.nn.Module):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``; either half may be missing.

    The feed-forward half adds up routed experts, shared experts and a dense block, whichever the
    layer has; all read the same normalised tokens.

    Attributes:
        checkpointing: what the backward pass computes again.
            ``none``: nothing.
            ``selective``: the core of attention (scores, softmax, mixing of values), from queries,
            keys and values, which are kept; so is its output.
            ``full``: each half, from its input; only the two inputs are kept.

    Raises:
        ValueError: the layer has a part that is counted but not built: a recurrence, cross-attention, a
            gated attention, projections of unknown shape, experts of another width than the model's.
    """

    def __init__(
        self,
        layer: Layer,
        hidden: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        flash: bool = True,
        checkpointing: Checkpointing = "none",
        routing: Routing | None = None,
        auxiliary: AuxiliaryScale | None = None,
        number: int = 0,
    ) -> None:
        """
        Args:
            routing: of the experts; None for the k best without auxiliary loss.
            auxiliary: scale of the auxiliary loss, which a model's layers share.
            number: of the layer; a skew of the routing favours other experts in each.
        """
        super().__init__()
        if checkpointing not in get_args(Checkpointing):
            known = ", ".join(get_args(Checkpointing))
            raise ValueError(f"unknown checkpointing {checkpointing!r}; known: {known}")
        self.checkpointing = checkpointing
        mixer, experts, dense = layer.mixer, layer.experts, layer.dense
        _refuse_unbuilt(layer)
        self.attention: CausalAttention | None = None
        if isinstance(mixer, Attention):
            self.attention_norm = RMSNorm(hidden, dtype=dtype, device=device)
            shape = AttentionShape.from_attention(mixer, hidden)
            core = Core(flash, mixer.causal, mixer.window, recompute=checkpointing == "selective")
            self.attention = CausalAttention(shape, dtype=dtype, device=device, core=core, positions=True)
        self.feed_forward_norm: RMSNorm | None = None
        if experts is not None or dense is not None:
            self.feed_forward_norm = RMSNorm(hidden, dtype=dtype, device=device)
        self.routed_experts: RoutedExperts | None = None
        if experts is not None:
            self.routed_experts = RoutedExperts(
                experts, hidden, dtype=dtype, device=device, routing=routing, auxiliary=auxiliary, skew_seed=number
            )
        self.shared_experts: FeedForward | None = None
        if experts is not None and experts.shared_ffn:
            self.shared_experts = FeedForward(
                hidden, experts.shared_ffn, experts.shared_matrices, dtype=dtype, device=device
            )
        self.dense = FeedForward(hidden, dense.ffn, dense.matrices, dtype=dtype, device=device) if dense else None

    def forward(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Map ``(batch, sequence, hidden)`` to the same shape.

        Args:
            x: the residual stream.
            counts: tokens of each expert, stated for tensors without data; see ``RoutedExperts.forward``.
        """
        if self.attention is not None:
            x = self._half("attention", self._mix, x)
        if self.feed_forward_norm is not None:
            x = self._half("dense", lambda stream: self._feed_forward(stream, counts), x)
        return x

    def _half(self, name: str, half: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self.checkpointing == "full" and torch.is_grad_enabled():
            # What torch does around it is of the same region.
            with region(name):
                recomputed: Tensor = checkpoint(half, x, use_reentrant=False, preserve_rng_state=False)
                return recomputed
        return half(x)

    def _mix(self, x: Tensor) -> Tensor:
        assert self.attention is not None
        with region("attention"):
            mixed: Tensor = self.attention(self.attention_norm(x))
            return x + mixed

    def _feed_forward(self, x: Tensor, counts: Sequence[int] | None) -> Tensor:
        assert self.feed_forward_norm is not None
        # The parts of routed experts are regions of their own; all else of this half is dense.
        with region("dense"):
            normalised: Tensor = self.feed_forward_norm(x)
            parts: list[Tensor] = [
                block(normalised) for block in (self.shared_experts, self.dense) if block is not None
            ]
            if self.routed_experts is not None:
                # With its sequences: what routing counts, it counts over one.
                parts.append(self.routed_experts(normalised, counts))
            added = parts[0]
            for part in parts[1:]:
                added = added + part
            return x + added


class Transformer(torch.nn.Module):
    """Embedding, layers, last norm and output projection; layers that predict further tokens are not built.

    Weights have no values until ``models.initialisation`` gives them.

    Parts may be taken out to make a pipeline stage: ``embedding``, ``norm`` and ``output`` set to
    None are skipped, and ``layers`` keep their names when some are deleted.

    Attributes:
        embedding: ``(vocab, hidden)``; also the output projection if they are tied.
        layers: by their number.
        norm, output: the last norm, and the projection to the vocabulary.
        auxiliary: scale of the gradient of the auxiliary loss; one object for all layers.

    Raises:
        ValueError: an encoder-decoder, or a layer that cannot be built.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        flash: bool = True,
        checkpointing: Checkpointing = "none",
        routing: Routing | None = None,
    ) -> None:
        """
        Args:
            routing: of all layers' experts; None for the k best without auxiliary loss.
        """
        super().__init__()
        if architecture.encoder:
            raise ValueError(f"architecture {architecture.name!r} has an encoder, which cannot be built")
        hidden = architecture.hidden
        self.auxiliary = AuxiliaryScale()
        self.embedding: torch.nn.Embedding | None
        self.embedding = torch.nn.Embedding(architecture.vocab, hidden, dtype=dtype, device=device)
        self.layers = torch.nn.ModuleDict(
            {
                str(number): TransformerLayer(
                    layer,
                    hidden,
                    dtype=dtype,
                    device=device,
                    flash=flash,
                    checkpointing=checkpointing,
                    routing=routing,
                    auxiliary=self.auxiliary,
                    number=number,
                )
                for number, layer in enumerate(architecture.layers)
            }
        )
        self.norm: RMSNorm | None = RMSNorm(hidden, dtype=dtype, device=device)
        self.output: torch.nn.Linear | None
        rows = architecture.output_vocab or architecture.vocab
        self.output = torch.nn.Linear(hidden, rows, bias=False, dtype=dtype, device=device)
        if architecture.tied_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Logits ``(batch, sequence, vocab)`` of the next tokens.

        Args:
            tokens: ``(batch, sequence)``, int64; in a stage without embedding its input, ``(batch, sequence, hidden)``.
            counts: tokens of each expert, stated for tensors without data; see ``RoutedExperts.forward``.
        """
        x = tokens
        if self.embedding is not None:
            with region("embedding"):
                x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x, counts)
        # The projection to the vocabulary belongs to the loss: there is one where there is the other.
        with region("loss"):
            if self.norm is not None:
                x = self.norm(x)
            return x if self.output is None else F.linear(x, self.output.weight)


def _refuse_unbuilt(layer: Layer) -> None:
    mixer, experts = layer.mixer, layer.experts
    unbuilt = {
        "cross-attention": layer.cross is not None,
        "a mixer that is no softmax attention": mixer is not None and not isinstance(mixer, Attention),
        "a gated attention": isinstance(mixer, Attention) and mixer.gated,
        "projections of unknown shape": isinstance(mixer, Attention) and mixer.projection_parameters is not None,
        "experts of another width": experts is not None and experts.expert_hidden != 0,
        "further matrices": layer.extra_matrix_parameters != 0,
    }
    for part, there in unbuilt.items():
        if there:
            raise ValueError(f"a layer with {part} cannot be built; it can be counted only")
