"""Tests of balancing: the auxiliary loss against its formula, its attachment, and biases that follow the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.models.architecture import Architecture, Experts, Layer
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.transformer import Transformer
from ciera_piper_core.moe.balance import AuxiliaryScale, attach, balance_loss, update_biases
from ciera_piper_core.moe.router import Router
from ciera_piper_core.training.recipe import Routing
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_the_loss_is_its_formula_sequence_by_sequence() -> None:
    generator = torch.Generator().manual_seed(1)
    odds = torch.randn(3, 7, 5, generator=generator).softmax(-1)
    experts = odds.topk(2).indices
    expected = 0.0
    for sequence in range(3):
        for expert in range(5):
            share = float((experts[sequence] == expert).sum()) / 14
            expected += 5 * share * float(odds[sequence, :, expert].mean()) / 3
    assert balance_loss(odds, experts).item() == pytest.approx(expected, rel=1e-6)


def test_even_load_costs_1_and_one_expert_for_all_costs_their_number() -> None:
    even = torch.full((1, 8, 4), 0.25)
    assert balance_loss(even, torch.arange(8).view(1, 8, 1) % 4).item() == pytest.approx(1)
    hot = torch.zeros(1, 8, 4)
    hot[..., 2] = 1
    assert balance_loss(hot, torch.full((1, 8, 1), 2)).item() == pytest.approx(4)


def test_an_attached_loss_gets_the_scale_of_the_time_of_the_backward_pass() -> None:
    scale = AuxiliaryScale()
    x, auxiliary = torch.ones(3, requires_grad=True), torch.ones((), requires_grad=True)
    attached = attach(x, 5 * auxiliary, scale)
    assert torch.equal(attached, x)
    scale.value = torch.tensor(8.0)
    (2 * attached).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert auxiliary.grad is not None
    assert auxiliary.grad.item() == 40


def model() -> Transformer:
    layers = (Layer(None, Experts(4, 1, 16)), Layer(None, Experts(3, 2, 16)))
    routing = Routing("loss_free", bias_rate=0.5)
    made = Transformer(Architecture("two", 16, 8, layers), dtype=torch.float32, routing=routing)
    for router in made.modules():
        if isinstance(router, Router):
            assert router.counts is not None
    return made


def routers(made: Transformer) -> list[Router]:
    return [part for part in made.modules() if isinstance(part, Router)]


def test_biases_move_towards_the_mean_load() -> None:
    made = model()
    first, second = routers(made)
    assert first.counts is not None
    assert second.counts is not None
    first.counts.copy_(torch.tensor([9, 1, 5, 5]))
    second.counts.copy_(torch.tensor([0, 0, 3]))
    update_biases(made)
    assert first.bias is not None
    assert first.bias.tolist() == [-0.5, 0.5, 0, 0]
    assert second.bias is not None
    assert second.bias.tolist() == [0.5, 0.5, -0.5]
    assert torch.count_nonzero(first.counts) == 0
    first.counts.copy_(torch.tensor([9, 1, 5, 5]))
    update_biases(made, applied=False)
    assert first.bias.tolist() == [-0.5, 0.5, 0, 0], "a step that was left out moves nothing"
    assert torch.count_nonzero(first.counts) == 0
    update_biases(Transformer(Architecture("plain", 16, 8, (Layer(None, Experts(4, 1, 16)),)), dtype=torch.float32))


def test_biases_follow_the_load_of_all_ranks(tmp_path: Path) -> None:
    def body(context: Context) -> list[float]:
        made = model()
        first = routers(made)[0]
        assert first.counts is not None
        assert first.bias is not None
        # On either rank alone another expert is the busiest.
        first.counts.copy_(torch.tensor([[9, 0, 1, 0], [0, 4, 1, 5]][context.site.rank]))
        update_biases(made, (dist.group.WORLD,))
        return first.bias.tolist()  # type: ignore[no-any-return]

    results = run_world(2, body, tmp_path)
    assert results == [[-0.5, 0.5, 0.5, 0.0]] * 2


def test_biases_level_a_skewed_load() -> None:
    generator = torch.Generator().manual_seed(2)
    architecture = Architecture("one", 16, 8, (Layer(None, Experts(8, 2, 16)),))
    made = Transformer(architecture, dtype=torch.float32, routing=Routing("loss_free", bias_rate=0.002, skew=1.0))
    initialise(made, 2)
    (router,) = routers(made)

    def imbalance() -> float:
        router(torch.randn(8, 128, 16, generator=generator))
        assert router.counts is not None
        return (router.counts.max() / router.counts.double().mean()).item()

    before = imbalance()
    for _ in range(120):
        imbalance()
        update_biases(made)
    after = imbalance()
    assert before > 1.8
    assert after < 1.3
