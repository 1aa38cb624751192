"""Tests of the attention core: fused, written out and padded ways against plain softmax attention."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.models.attention_core import Core, attend

SHAPES = {"mha": (4, 4, 16, 16), "gqa": (6, 2, 16, 16), "narrow values": (4, 4, 24, 16), "one kv head": (4, 1, 16, 16)}


def inputs(kind: str) -> list[torch.Tensor]:
    """Queries, keys and values, as views of what projections give."""
    heads, kv_heads, qk_dim, v_dim = SHAPES[kind]
    generator = torch.Generator().manual_seed(6)
    return [
        torch.randn(2, 11, n, width, generator=generator).transpose(1, 2).requires_grad_()
        for n, width in ((heads, qk_dim), (kv_heads, qk_dim), (kv_heads, v_dim))
    ]


def plain(core: Core, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.double(), k.double(), v.double()
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    back = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    seen = torch.ones_like(back, dtype=torch.bool) if not core.causal else back >= 0
    if core.window:
        seen &= back < core.window
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(("causal", "window"), [(True, 0), (False, 0), (True, 3), (True, 50)])
@pytest.mark.parametrize("flash", [True, False], ids=["flash", "scores"])
@pytest.mark.parametrize("kind", SHAPES)
def test_every_way_gives_plain_attention(kind: str, flash: bool, causal: bool, window: int, recompute: bool) -> None:
    core = Core(flash, causal, window, recompute)
    leaves = inputs(kind)
    output = attend(core, *leaves)
    expected = plain(core, *leaves)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(7))
    measured = torch.autograd.grad(output, leaves, upstream)
    right = torch.autograd.grad(expected, leaves, upstream.double())
    for mine, theirs in zip(measured, right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_window_without_an_order_is_refused() -> None:
    with pytest.raises(ValueError, match="use it with causal attention only"):
        Core(causal=False, window=4)
