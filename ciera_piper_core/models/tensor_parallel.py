"""Cuts the matrices of a plain transformer over ranks, from outside: attention, dense and shared blocks, vocabulary.

After Megatron-LM: heads and inner widths are divided, so that a half of a layer needs one sum over
the ranks forward and one backward. What is not divided (norms, routers, MLA's projections to its
latents) is copied, reads copied activations, and so gets the same, whole gradient on every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.models.attention import CausalAttention
from ciera_piper_core.models.attention_core import attend
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.feed_forward import FeedForward
from ciera_piper_core.models.rotary import rotate_
from ciera_piper_core.models.tensor_collectives import REGION, TensorRanks, spread, summed
from ciera_piper_core.models.tensor_cuts import Cut, attention_cuts, feed_forward_cuts, inner_shares, share_cut
from ciera_piper_core.models.transformer import TransformerLayer
from ciera_piper_core.models.vocabulary_parallel import CutEmbedding, CutOutput
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.models.transformer import Transformer
    from ciera_piper_core.moe import grouped


def cut_refusal(architecture: Architecture, ranks: int) -> str | None:
    """Why the matrices of that model cannot be cut over so many ranks (one line, what to change), or None."""
    for number, layer in enumerate(architecture.layers):
        if isinstance(layer.mixer, Attention):
            shape = AttentionShape.from_attention(layer.mixer, architecture.hidden)
            if not shape.can_shard(ranks):
                return (
                    f"layer {number}: {shape.heads} heads with {shape.kv_heads} key/value heads do not divide over"
                    f" tp={ranks}; choose a tp that divides them"
                )
        dense = layer.dense.ffn if layer.dense else 0
        shared, routed = (layer.experts.shared_ffn, layer.experts.ffn) if layer.experts else (0, 0)
        try:
            for width, grouped in ((dense, False), (shared, False), (routed, True)):
                if width:
                    inner_shares(width, ranks, grouped=grouped)
        except ValueError as error:
            return f"layer {number}: {error}; choose a smaller tp"
    return None


def cut_model(model: Transformer, group: dist.ProcessGroup) -> dict[str, Cut]:
    """Replace the modules of ``model``, in place, by this rank's parts; routed experts stay (``cut_experts``).

    The model then maps the same tokens on every rank of the group to this rank's part of the logits,
    for ``vocabulary_parallel.cut_token_loss``. Parameters keep their names.

    Returns:
        by name of the parameter, how it is cut; all others are copied.

    Raises:
        ValueError: heads that do not divide, or widths that are too small.
    """
    ranks = TensorRanks.of(group)
    cuts: dict[str, Cut] = {}
    for number, layer in model.layers.items():
        assert isinstance(layer, TransformerLayer)
        prefix = f"layers.{number}."
        if layer.attention is not None:
            shape = layer.attention.shape
            layer.attention = CutAttention(layer.attention, ranks)
            named = attention_cuts(shape, ranks.size)
            cuts |= {f"{prefix}attention.weights.{name}": cut for name, cut in named.items()}
        for name in ("shared_experts", "dense"):
            block = getattr(layer, name)
            if block is not None:
                setattr(layer, name, CutFeedForward(block, ranks))
                named = _feed_forward_cuts(block, ranks)
                cuts |= {f"{prefix}{name}.{matrix}": cut for matrix, cut in named.items()}
    _cut_vocabulary(model, ranks, cuts)
    return cuts


def cut_experts(experts: grouped.Experts, group: dist.ProcessGroup) -> dict[str, Cut]:
    """Keep this rank's share of the inner width of a stack of experts, in place; how, by matrix.

    What they compute is then partial, and reads tokens and weights through ``tensor_collectives``.

    Raises:
        ValueError: the width is too small.
    """
    ranks = TensorRanks.of(group)
    cuts = _feed_forward_cuts(experts, ranks)
    for name, cut in cuts.items():
        setattr(experts, name, _part(getattr(experts, name), cut, ranks))
    return cuts


class CutAttention(CausalAttention):
    """An attention block's share of the heads; maps copied tokens to copied tokens."""

    def __init__(self, plain: CausalAttention, ranks: TensorRanks) -> None:
        """Take over ``plain``'s weights: of those that are divided, this rank's."""
        like = plain.weights["output"]
        super().__init__(
            plain.shape.shard(ranks.size),
            dtype=like.dtype,
            device="meta",
            core=plain.core,
            positions=plain.positions,
        )
        self.ranks = ranks
        self.cuts = attention_cuts(plain.shape, ranks.size)
        for name, weight in plain.weights.items():
            self.weights[name] = _part(weight, self.cuts[name], ranks) if name in self.cuts else weight
        self.latent_norms = plain.latent_norms

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, sequence, hidden)`` to the same shape."""
        with region("attention.qkv"):
            q, k, v = self.qkv(x)
        mixed = attend(self.core, q, k, v)
        with region("attention.output"):
            partial = F.linear(mixed.transpose(1, 2).flatten(2), self.weights["output"])
        return summed(partial, self.ranks)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """This rank's queries, keys and values; see ``CausalAttention.qkv``."""
        shape, ranks = self.shape, self.ranks
        if shape.mla is not None:
            return self._latent_qkv(x)
        weight = self.weights["qkv"]
        if self.cuts["qkv"].copied:
            weight = _CopiedHeads.apply(weight, ranks, self.cuts["qkv"])  # type: ignore[no-untyped-call]
        qkv = F.linear(spread(x, ranks), weight)
        if self.positions:
            qkv = rotate_(qkv, shape.heads + shape.kv_heads, shape.qk_dim, shape.qk_dim)
        heads = torch.unflatten(qkv, 2, (-1, shape.qk_dim)).transpose(1, 2)
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        return q, k, v

    def _latent_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As in the plain block; what all heads share is spread where the heads begin to read it."""
        shape, mla, weights, ranks = self.shape, self.shape.mla, self.weights, self.ranks
        assert mla is not None
        if mla.q_lora:
            latent = self._normalised("q_up", F.linear(x, weights["q_down"]))
            q = F.linear(spread(latent, ranks), weights["q_up"])
        else:
            q = F.linear(spread(x, ranks), weights["q"])
        latent, k_rope = torch.split(F.linear(x, weights["kv_down"]), [mla.kv_lora, mla.qk_rope], dim=2)
        if self.positions:
            q = rotate_(q, shape.heads, shape.qk_dim, mla.qk_rope)
            k_rope = rotate_(k_rope.contiguous(), 1, mla.qk_rope, mla.qk_rope)
        kv = F.linear(spread(self._normalised("kv_up", latent), ranks), weights["kv_up"])
        kv = torch.unflatten(kv, 2, (shape.heads, -1)).transpose(1, 2)
        k_nope, v = torch.split(kv, [mla.qk_nope, mla.v_head], dim=3)
        k_rope = spread(k_rope, ranks).unsqueeze(1).expand(-1, shape.heads, -1, -1)
        k = torch.cat([k_nope, k_rope], dim=3)
        # Copied: as a view it would keep the keys that it lies beside a second time.
        return torch.unflatten(q, 2, (shape.heads, -1)).transpose(1, 2), k, v.contiguous()


class CutFeedForward(FeedForward):
    """A dense block's share of the inner width; maps copied tokens to copied tokens."""

    def __init__(self, plain: FeedForward, ranks: TensorRanks) -> None:
        """Take over this rank's part of ``plain``'s weights."""
        ffn, hidden = plain.up.shape
        matrices = 2 if plain.gate is None else 3
        share = inner_shares(ffn, ranks.size, grouped=False)[ranks.rank]
        super().__init__(hidden, share, matrices, dtype=plain.up.dtype, device="meta")
        self.ranks = ranks
        for name, cut in _feed_forward_cuts(plain, ranks).items():
            setattr(self, name, _part(getattr(plain, name), cut, ranks))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., hidden)`` to the same shape."""
        return summed(super().forward(spread(x, self.ranks)), self.ranks)


class _CopiedHeads(torch.autograd.Function):
    """Weights some of whose heads are on several ranks, each with other readers: their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ranks: TensorRanks, cut: Cut) -> Tensor:
        ctx.ranks, ctx.cut = ranks, cut
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        queries, *copied = ctx.cut.ranges[ctx.ranks.rank]
        # Laid out as in the whole, after the queries, so that one sum serves all: a few heads are not much.
        first = min(one.start for ranges in ctx.cut.ranges for one in ranges[1:])
        everyone = gradient.new_zeros(ctx.cut.size - first, gradient.shape[1])
        at = len(queries)
        for one in copied:
            everyone[one.start - first : one.stop - first] = gradient[at : at + len(one)]
            at += len(one)
        with region(REGION):
            torch.distributed.all_reduce(everyone, group=ctx.ranks.group)
        parts = [gradient[: len(queries)], *(everyone[one.start - first : one.stop - first] for one in copied)]
        return torch.cat(parts), None, None


def _cut_vocabulary(model: Transformer, ranks: TensorRanks, cuts: dict[str, Cut]) -> None:
    embedding, output = model.embedding, model.output
    tied = embedding is not None and output is not None and embedding.weight is output.weight
    parts: torch.nn.Parameter | None = None
    if embedding is not None:
        cut = share_cut(-2, ranks.shares(len(embedding.weight)))
        parts = _part(embedding.weight, cut, ranks)
        model.embedding = CutEmbedding(parts, cut, ranks)  # type: ignore[assignment]
        cuts["embedding.weight"] = cut
    if output is not None:
        if model.norm is None:
            raise ValueError("an output projection is cut together with the norm before it, which is not here")
        cut = share_cut(-2, ranks.shares(len(output.weight)))
        # Tied: the embedding's part, which stays the same parameter.
        weight = parts if tied and parts is not None else _part(output.weight, cut, ranks)
        model.output = CutOutput(weight, cut)  # type: ignore[assignment]
        # The projection is a plain product with the module's weight, so what it reads is spread here.
        model.norm.register_forward_hook(lambda _module, _inputs, result: spread(result, ranks))
        if not tied:
            cuts["output.weight"] = cut


def _feed_forward_cuts(block: FeedForward | grouped.Experts, ranks: TensorRanks) -> dict[str, Cut]:
    names = ("up", "down") if block.gate is None else ("up", "gate", "down")
    # A stack of experts has a dimension more.
    return feed_forward_cuts(inner_shares(block.up.shape[-2], ranks.size, grouped=block.up.dim() == 3), names)


def _part(weight: Tensor, cut: Cut, ranks: TensorRanks) -> torch.nn.Parameter:
    return torch.nn.Parameter(cut.part(weight.detach(), ranks.rank), requires_grad=weight.requires_grad)
