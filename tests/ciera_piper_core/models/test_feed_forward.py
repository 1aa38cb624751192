"""Tests of the feed-forward parts alone: dense blocks, and routed experts with uneven and stated counts, and drops."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ciera_piper_core.models.architecture import Experts
from ciera_piper_core.models.feed_forward import FeedForward, RoutedExperts
from ciera_piper_core.moe.grouped_reference import reference_expert
from ciera_piper_core.ranges import recording
from ciera_piper_core.training.recipe import ROUTERS, Routing


def routed(experts: Experts, routing: Routing | None = None) -> tuple[RoutedExperts, torch.Tensor]:
    generator = torch.Generator().manual_seed(13)
    module = RoutedExperts(experts, 32, dtype=torch.float32, routing=routing)
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


@pytest.mark.parametrize("kind", ROUTERS)
def test_no_tokens_give_no_tokens(kind: str) -> None:
    module, x = routed(Experts(6, 2, 16), Routing(kind))  # type: ignore[arg-type]
    empty = x[:0].requires_grad_()
    output = module(empty)
    assert output.shape == (0, 32)
    output.sum().backward()
    assert module.router.weight.grad is not None
    assert torch.count_nonzero(module.router.weight.grad) == 0


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("factor", [0.4, 1.25])
def test_outputs_and_gradients_are_those_of_the_routes_one_by_one(kind: str, factor: float) -> None:
    module, x = routed(Experts(6, 2, 16), Routing(kind, balance_weight=0, capacity_factor=factor))  # type: ignore[arg-type]
    x = x.view(2, 20, 32).requires_grad_()
    output = module(x)
    assert output.shape == x.shape
    routes = module.router(x)
    weights = dict(module.experts.named_parameters())
    tokens, rows = x.flatten(0, 1), []
    for token in range(40):
        row = torch.zeros(32, dtype=torch.float64)
        for weight, expert in zip(routes.weights[token], routes.experts[token].tolist(), strict=True):
            if expert >= 0:
                of_expert = {name: stack[expert] for name, stack in weights.items()}
                row = row + weight * reference_expert(of_expert, tokens[token : token + 1])[0]
        rows.append(row)
    expected = torch.stack(rows).view_as(x)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-6)
    leaves = [x, *module.parameters()]
    mine = torch.autograd.grad(output.square().sum(), leaves)
    right = torch.autograd.grad(expected.square().sum(), leaves)
    for measured, gradient in zip(mine, right, strict=True):
        assert (measured - gradient).norm() < 1e-5 * gradient.norm()


def test_a_token_without_experts_adds_nothing() -> None:
    module, x = routed(Experts(6, 1, 16), Routing("capacity", balance_weight=0, capacity_factor=0.01))
    dropped = (module.router(x).experts < 0).all(dim=1)
    assert 0 < dropped.sum() < len(x)
    assert torch.count_nonzero(module(x)[dropped]) == 0


def test_stated_counts_may_be_fewer_where_choices_are_dropped() -> None:
    routing = Routing("capacity", balance_weight=0, capacity_factor=0.4)
    module, x = routed(Experts(6, 2, 16), routing)
    experts = module.router(x).experts
    counts = torch.bincount(experts[experts >= 0], minlength=6).tolist()
    assert sum(counts) < 80
    torch.testing.assert_close(module(x, counts), module(x))
    with FakeTensorMode():
        fake = RoutedExperts(Experts(6, 2, 16), 32, dtype=torch.float32, routing=routing)
        assert fake(torch.empty(40, 32), counts).shape == (40, 32)


def test_both_passes_mark_their_parts() -> None:
    module, x = routed(Experts(6, 2, 16))
    x.requires_grad_()
    parts = {"moe.router", "moe.dispatch", "moe.experts", "moe.combine"}
    with recording() as spans:
        output = module(x)
    assert parts <= {span.name for span in spans}
    with recording() as spans:
        output.sum().backward()
    assert {span.name for span in spans} == parts - {"moe.experts"}
