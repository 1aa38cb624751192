"""The transformer once more, token by token and expert by expert in float64: what the fast one is checked against."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ciera_piper_core.models.architecture import Attention, Experts, Layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ciera_piper_core.models.architecture import Architecture


class Oracle:
    """Logits of an architecture.

    Attributes:
        weights: the module's, by its names, in float64.
        counts: tokens that each expert of each layer got, in the last run.
    """

    def __init__(self, architecture: Architecture, weights: Mapping[str, Tensor]) -> None:
        self.architecture = architecture
        self.weights = weights
        self.counts: list[list[int]] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        """``(batch, sequence, vocab)`` for ``(batch, sequence)``."""
        self.counts = []
        stream = [[self.weights["embedding.weight"][token] for token in row] for row in tokens.tolist()]
        for number, layer in enumerate(self.architecture.layers):
            stream = self._layer(layer, f"layers.{number}.", stream)
        name = "embedding.weight" if self.architecture.tied_embeddings else "output.weight"
        return torch.stack(
            [torch.stack([self.weights[name] @ self._norm("norm.weight", x) for x in row]) for row in stream]
        )

    def _layer(self, layer: Layer, at: str, stream: list[list[Tensor]]) -> list[list[Tensor]]:
        if isinstance(layer.mixer, Attention):
            stream = [
                [x + y for x, y in zip(row, self._attention(layer.mixer, at, row), strict=True)] for row in stream
            ]
        if layer.experts is None and layer.dense is None:
            return stream
        self.counts.append([0] * (layer.experts.experts if layer.experts else 0))
        return [[x + self._feed_forward(layer, at, x) for x in row] for row in stream]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean() + 1e-6) * self.weights[name]

    def _attention(self, attention: Attention, at: str, row: list[Tensor]) -> list[Tensor]:
        w = {
            name.removeprefix(f"{at}attention.weights."): weight
            for name, weight in self.weights.items()
            if name.startswith(f"{at}attention.weights.")
        }
        qs, ks, vs = [], [], []
        for position, x in enumerate(row):
            q, k, v = self._qkv(attention, at, w, self._norm(f"{at}attention_norm.weight", x), position)
            qs.append(q)
            ks.append(k)
            vs.append(v)
        outputs = []
        for position, q in enumerate(qs):
            last = position if attention.causal else len(row) - 1
            first = max(0, position - attention.window + 1) if attention.window else 0
            heads = []
            for head in range(attention.heads):
                shared = head // (attention.heads // attention.kv_heads)
                seen = range(first, last + 1)
                scores = torch.stack([q[head] @ ks[key][shared] / math.sqrt(attention.qk_dim) for key in seen])
                shares = scores.softmax(0)
                heads.append(sum(shares[i] * vs[key][shared] for i, key in enumerate(seen)))
            outputs.append(w["output"] @ torch.cat(heads))  # type: ignore[arg-type]
        return outputs

    def _qkv(
        self, attention: Attention, at: str, w: dict[str, Tensor], x: Tensor, position: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        mla = attention.mla
        if mla is None:
            rows = [attention.heads * attention.qk_dim, attention.kv_heads * attention.qk_dim]
            q, k, v = (w["qkv"] @ x).split([*rows, attention.kv_heads * attention.v_dim])
            q, k = q.view(attention.heads, -1), k.view(attention.kv_heads, -1)
            return (
                _turned(q, position, attention.qk_dim),
                _turned(k, position, attention.qk_dim),
                v.view(attention.kv_heads, -1),
            )
        if mla.q_lora:
            q = w["q_up"] @ self._norm(f"{at}attention.latent_norms.q_up.weight", w["q_down"] @ x)
        else:
            q = w["q"] @ x
        latent, rope = (w["kv_down"] @ x).split([mla.kv_lora, mla.qk_rope])
        kv = (w["kv_up"] @ self._norm(f"{at}attention.latent_norms.kv_up.weight", latent)).view(attention.heads, -1)
        rope = _turned(rope[None], position, mla.qk_rope).expand(attention.heads, -1)
        k = torch.cat([kv[:, : mla.qk_nope], rope], dim=1)
        return _turned(q.view(attention.heads, -1), position, mla.qk_rope), k, kv[:, mla.qk_nope :]

    def _feed_forward(self, layer: Layer, at: str, x: Tensor) -> Tensor:
        x = self._norm(f"{at}feed_forward_norm.weight", x)
        total = torch.zeros_like(x)
        for part in ("shared_experts", "dense"):
            if f"{at}{part}.up" in self.weights:
                up, down = self.weights[f"{at}{part}.up"], self.weights[f"{at}{part}.down"]
                total = total + down @ _activated(up @ x, self.weights.get(f"{at}{part}.gate"), x)
        if layer.experts is not None:
            total = total + self._routed(layer.experts, f"{at}routed_experts.", x)
        return total

    def _routed(self, experts: Experts, at: str, x: Tensor) -> Tensor:
        odds = (self.weights[f"{at}router.weight"] @ x).softmax(0)
        chosen = sorted(range(experts.experts), key=lambda expert: -odds[expert].item())[: experts.top_k]
        whole = sum(odds[expert] for expert in chosen) if experts.top_k > 1 else 1.0
        total = torch.zeros_like(x)
        for expert in chosen:
            self.counts[-1][expert] += 1
            gate = self.weights.get(f"{at}experts.gate")
            inner = _activated(self.weights[f"{at}experts.up"][expert] @ x, None if gate is None else gate[expert], x)
            total = total + odds[expert] / whole * (self.weights[f"{at}experts.down"][expert] @ inner)
        return total


def _activated(up: Tensor, gate: Tensor | None, x: Tensor) -> Tensor:
    if gate is None:
        return up.clamp(min=0)
    gated = gate @ x
    return gated / (1 + torch.exp(-gated)) * up


def _turned(heads: Tensor, position: int, rotated: int) -> Tensor:
    """Each head's last ``rotated`` channels, in pairs half of them apart."""
    half = rotated // 2
    kept, first, second = heads.split([heads.shape[1] - rotated, half, half], dim=1)
    angles = torch.tensor([position / 10_000 ** (2 * i / rotated) for i in range(half)], dtype=heads.dtype)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([kept, first * cos - second * sin, first * sin + second * cos], dim=1)
