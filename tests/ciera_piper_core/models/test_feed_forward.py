"""Tests of the feed-forward parts alone: dense blocks, and routed experts with uneven and with stated counts."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.models.architecture import Experts
from ciera_piper_core.models.feed_forward import FeedForward, RoutedExperts


def routed(experts: Experts) -> tuple[RoutedExperts, torch.Tensor]:
    generator = torch.Generator().manual_seed(13)
    module = RoutedExperts(experts, 32, dtype=torch.float32)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return module, torch.randn(40, 32, generator=generator)


@pytest.mark.parametrize("matrices", [2, 3])
def test_a_dense_block(matrices: int) -> None:
    block = FeedForward(16, 24, matrices, dtype=torch.float32)
    for weight in block.parameters():
        torch.nn.init.normal_(weight)
    x = torch.randn(2, 3, 16)
    up = x @ block.up.T
    inner = up.relu() if block.gate is None else torch.nn.functional.silu(x @ block.gate.T) * up
    torch.testing.assert_close(block(x), inner @ block.down.T)
    with pytest.raises(ValueError, match="a feed-forward block has 2 or 3 matrices, not 4"):
        FeedForward(16, 24, 4, dtype=torch.float32)


@pytest.mark.parametrize("top_k", [1, 2])
def test_all_tokens_may_go_to_the_same_experts(top_k: int) -> None:
    module, x = routed(Experts(6, top_k, 16))
    with torch.no_grad():
        module.router.weight.zero_()
        module.router.weight[1:3] = 1
        module.router.weight[2] *= 0.5
    x = x.abs()
    counts = [0, 40, 40 if top_k == 2 else 0, 0, 0, 0]
    torch.testing.assert_close(module(x, counts), module(x))
    output = module(x)
    (gradient,) = torch.autograd.grad(output.square().sum(), module.experts.up)
    assert torch.count_nonzero(gradient[[0, 3, 4, 5]]) == 0
    assert torch.count_nonzero(gradient[1]) > 0


def test_no_tokens_give_no_tokens() -> None:
    module, x = routed(Experts(6, 2, 16))
    empty = x[:0].requires_grad_()
    output = module(empty)
    assert output.shape == (0, 32)
    output.sum().backward()
    assert module.router.weight.grad is not None
    assert torch.count_nonzero(module.router.weight.grad) == 0
