"""Dimensions of an attention block and the work that follows from them; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import MLA, Architecture, Attention


@dataclass(frozen=True)
class AttentionShape:
    """Dimensions of one attention block, whole or one tensor-parallel rank's share.

    Attributes:
        hidden: width of its input and output.
        heads, kv_heads: query heads, and the key/value heads that they share.
        qk_dim, v_dim: width of a head's query and key, and of its value.
        mla: low-rank widths, or None for a full-rank projection.
    """

    hidden: int
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    mla: MLA | None = None

    @classmethod
    def from_architecture(cls, architecture: Architecture) -> AttentionShape:
        """The block of the first layer with softmax attention."""
        return cls.from_attention(architecture.attention, architecture.hidden)

    @classmethod
    def from_attention(cls, attention: Attention, hidden: int) -> AttentionShape:
        """The projections of that attention, without biases, norms and gate."""
        a = attention
        return cls(hidden, a.heads, a.kv_heads, a.qk_dim, a.v_dim, a.mla)

    def shard(self, tensor_parallel: int) -> AttentionShape:
        """One rank's share of the heads.

        Key/value heads are copied where there are fewer than ranks. With MLA the projections down
        to the latents are not divided: every rank computes them whole.

        Raises:
            ValueError: the heads do not divide evenly.
        """
        if not self.can_shard(tensor_parallel):
            raise ValueError(
                f"{self.heads} heads with {self.kv_heads} key/value heads do not divide over {tensor_parallel} ranks"
            )
        return replace(self, heads=self.heads // tensor_parallel, kv_heads=max(1, self.kv_heads // tensor_parallel))

    def can_shard(self, tensor_parallel: int) -> bool:
        """Whether the heads divide evenly over so many ranks."""
        if tensor_parallel < 1 or self.heads % tensor_parallel:
            return False
        return self.kv_heads % tensor_parallel == 0 or tensor_parallel % self.kv_heads == 0

    def projections(self) -> dict[str, tuple[int, int]]:
        """Shape ``(out, in)`` of every weight, by name; each is applied to each token once."""
        output = {"output": (self.hidden, self.heads * self.v_dim)}
        if self.mla is None:
            qkv = (self.heads + self.kv_heads) * self.qk_dim + self.kv_heads * self.v_dim
            return {"qkv": (qkv, self.hidden)} | output
        queries = self.heads * self.qk_dim
        if self.mla.q_lora:
            query = {"q_down": (self.mla.q_lora, self.hidden), "q_up": (queries, self.mla.q_lora)}
        else:
            query = {"q": (queries, self.hidden)}
        keys_values = {
            "kv_down": (self.mla.kv_lora + self.mla.qk_rope, self.hidden),
            "kv_up": (self.heads * (self.mla.qk_nope + self.mla.v_head), self.mla.kv_lora),
        }
        return query | keys_values | output

    def parameters(self) -> int:
        """Number of weights."""
        return sum(rows * columns for rows, columns in self.projections().values())

    def forward_flops(self, batch: int, sequence: int) -> int:
        """Operations of all matrix products of a forward pass over ``batch`` causal sequences.

        A multiply-add counts two. Attention counts the lower triangle, ``s(s+1)/2`` pairs a head;
        softmax, padding of values and what a kernel computes again are not counted. The backward
        pass has two products for each of these, so twice the operations.
        """
        pairs = sequence * (sequence + 1) // 2
        attention = 2 * self.heads * (self.qk_dim + self.v_dim) * pairs
        return batch * (2 * self.parameters() * sequence + attention)
