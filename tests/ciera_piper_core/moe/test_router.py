"""Tests of the router: weights, choice by each kind, capacity over one sequence, precision, gradients, counts, skew."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ciera_piper_core.alltoall.dispatch import DROPPED
from ciera_piper_core.moe.balance import AuxiliaryScale, balance_loss
from ciera_piper_core.moe.router import Router
from ciera_piper_core.training.recipe import ROUTERS, Routing


def make(top_k: int, dtype: torch.dtype = torch.float32, routing: Routing | None = None) -> tuple[Router, torch.Tensor]:
    generator = torch.Generator().manual_seed(10)
    router = Router(6, top_k, 16, dtype=dtype, routing=routing)
    with torch.no_grad():
        router.weight.copy_(torch.randn(6, 16, generator=generator))
    return router, torch.randn(20, 16, generator=generator).to(dtype).requires_grad_()


@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_a_token_goes_to_its_likeliest_experts(top_k: int) -> None:
    router, tokens = make(top_k)
    routes = router(tokens)
    odds = (tokens @ router.weight.T).softmax(-1)
    best, experts = odds.sort(dim=-1, descending=True)
    torch.testing.assert_close(routes.probabilities, odds)
    assert torch.equal(routes.experts, experts[:, :top_k])
    expected = best[:, :1] if top_k == 1 else best[:, :top_k] / best[:, :top_k].sum(-1, keepdim=True)
    torch.testing.assert_close(routes.weights, expected)


def test_one_expert_a_token_still_teaches_the_router() -> None:
    router, tokens = make(1)
    (gradient,) = torch.autograd.grad(router(tokens).weights.sum(), router.weight)
    assert gradient.abs().max() > 0


def test_scores_are_single_precision_whatever_the_tokens() -> None:
    router, tokens = make(2, torch.bfloat16)
    routes = router(tokens)
    assert routes.weights.dtype == routes.probabilities.dtype == torch.float32
    torch.testing.assert_close(routes.probabilities, (tokens.float() @ router.weight.float().T).softmax(-1))
    of_tokens, of_weight = torch.autograd.grad(routes.weights.square().sum(), [tokens, router.weight])
    assert of_tokens.dtype == of_weight.dtype == torch.bfloat16


def test_gradients_are_autograds() -> None:
    router, tokens = make(3, torch.float64)
    leaves = [tokens, router.weight]
    mine = torch.autograd.grad(router(tokens).weights.square().sum(), leaves)
    odds = (tokens @ router.weight.T).softmax(-1).topk(3).values
    right = torch.autograd.grad((odds / odds.sum(-1, keepdim=True)).square().sum(), leaves)
    for measured, expected in zip(mine, right, strict=True):
        torch.testing.assert_close(measured, expected)


def test_more_experts_a_token_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="a token cannot go to 7 of 6 experts"):
        Router(6, 7, 16, dtype=torch.float32)


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_sequence_is_routed_the_same_whatever_else_is_in_the_batch(kind: str) -> None:
    router, tokens = make(2, routing=Routing(kind, capacity_factor=0.5))  # type: ignore[arg-type]
    batch = tokens.view(4, 5, 16)
    together = router(batch)
    alone = [router(sequence) for sequence in batch]
    assert torch.equal(together.experts, torch.cat([routes.experts for routes in alone]))
    torch.testing.assert_close(together.weights, torch.cat([routes.weights for routes in alone]))


def test_an_expert_takes_the_first_of_each_sequence_up_to_its_capacity() -> None:
    factor, batch, sequence, top_k = 0.5, 2, 10, 2
    router, tokens = make(top_k, routing=Routing("capacity", capacity_factor=factor))
    free, _ = make(top_k)
    routes, wanted = router(tokens.view(batch, sequence, 16)), free(tokens)
    room = math.ceil(factor * sequence * top_k / 6)
    assert router.capacity(sequence) == room == 2
    dropped = 0
    for number in range(batch):
        taken = [0] * 6
        for token in range(number * sequence, (number + 1) * sequence):
            for choice, expert in enumerate(wanted.experts[token].tolist()):
                fits = taken[expert] < room
                taken[expert] += fits
                dropped += not fits
                assert int(routes.experts[token, choice]) == (expert if fits else DROPPED)
                expected = wanted.weights[token, choice] if fits else torch.zeros(())
                torch.testing.assert_close(routes.weights[token, choice], expected)
    assert 0 < dropped < routes.experts.numel()


def test_a_dropped_choice_teaches_nothing() -> None:
    router, tokens = make(1, routing=Routing("capacity", balance_weight=0, capacity_factor=0.01))
    routes = router(tokens)
    kept = routes.experts.squeeze(1) != DROPPED
    assert kept.sum() == len(router(tokens).experts.unique()) - 1 < len(tokens)
    (gradient,) = torch.autograd.grad(routes.weights.sum(), tokens)
    assert torch.count_nonzero(gradient[~kept]) == 0
    assert (gradient[kept].abs().sum(-1) > 0).all()


def test_ample_capacity_is_top_k() -> None:
    router, tokens = make(2, routing=Routing("capacity", balance_weight=0, capacity_factor=3.0))
    assert router.capacity(20) == 20
    free, _ = make(2)
    for mine, expected in zip(router(tokens), free(tokens), strict=True):
        assert torch.equal(mine, expected)


def test_experts_choose_their_best_tokens_of_each_sequence() -> None:
    batch, sequence = 2, 10
    router, tokens = make(2, routing=Routing("expert_choice", capacity_factor=1.0))
    routes = router(tokens.view(batch, sequence, 16))
    assert routes.experts.shape == (batch * sequence, 6)
    room = router.capacity(sequence)
    assert room == math.ceil(10 * 2 / 6) == 4
    odds = (tokens @ router.weight.T).softmax(-1).view(batch, sequence, 6)
    for number in range(batch):
        chosen = routes.experts.view(batch, sequence, 6)[number]
        for expert in range(6):
            took = (chosen[:, expert] == expert).nonzero().flatten()
            assert sorted(took.tolist()) == sorted(odds[number, :, expert].topk(room).indices.tolist())
            assert (chosen[:, expert] == DROPPED).sum() == sequence - room
    torch.testing.assert_close(routes.weights, odds.view(-1, 6) * (routes.experts != DROPPED))


def test_a_bias_moves_choices_and_no_weights() -> None:
    router, tokens = make(2, routing=Routing("loss_free"))
    assert router.bias is not None
    assert "bias" in router.state_dict()
    router.bias[3] = 2.0
    routes = router(tokens)
    assert (routes.experts == 3).any(dim=1).all(), "probabilities are below 1, so a bias of 2 beats them"
    odds = (tokens @ router.weight.T).softmax(-1).gather(1, routes.experts)
    torch.testing.assert_close(routes.weights, odds / odds.sum(-1, keepdim=True))
    (of_weight,) = torch.autograd.grad(routes.weights.square().sum(), router.weight)
    assert of_weight.abs().max() > 0


def test_the_auxiliary_loss_reaches_the_router_times_its_scale() -> None:
    scale = AuxiliaryScale(0.25)
    generator = torch.Generator().manual_seed(10)
    router = Router(6, 2, 16, dtype=torch.float64, routing=Routing(balance_weight=0.3), auxiliary=scale)
    plain = Router(6, 2, 16, dtype=torch.float64)
    with torch.no_grad():
        router.weight.copy_(torch.randn(6, 16, generator=generator))
        plain.weight.copy_(router.weight)
    batch = torch.randn(3, 8, 16, generator=generator, dtype=torch.float64)
    (mine,) = torch.autograd.grad(router(batch).weights.square().sum(), router.weight)
    routes = plain(batch)
    loss = balance_loss(routes.probabilities.view(3, 8, 6), routes.experts.view(3, 8, 2))
    (right,) = torch.autograd.grad(routes.weights.square().sum() + 0.25 * 0.3 * loss, plain.weight)
    torch.testing.assert_close(mine, right)


def test_no_tokens_have_no_auxiliary_loss() -> None:
    router, _ = make(2, routing=Routing(balance_weight=1.0))
    empty = torch.empty(0, 16, requires_grad=True)
    router(empty).weights.sum().backward()
    assert router.weight.grad is not None
    assert torch.count_nonzero(router.weight.grad) == 0


@pytest.mark.parametrize("kind", ROUTERS)
def test_choices_served_are_counted_once(kind: str) -> None:
    router, tokens = make(2, routing=Routing(kind, capacity_factor=0.5))  # type: ignore[arg-type]
    if kind != "loss_free":
        assert router.counts is None
        with pytest.raises(ValueError, match="this router does not count"):
            router.take_counts()
        router.count()
    batch = tokens.view(2, 10, 16)
    with torch.no_grad():
        experts = router(batch).experts
    served = experts[experts != DROPPED]
    checkpoint(lambda x: router(x).weights, batch, use_reentrant=False).sum().backward()
    counts = router.take_counts()
    assert torch.equal(counts, torch.bincount(served, minlength=6)), "recomputation or evaluation was counted, too"
    assert torch.count_nonzero(router.take_counts()) == 0


def test_skew_follows_zipf_in_an_order_of_its_seed() -> None:
    router = Router(6, 2, 16, dtype=torch.float32, routing=Routing(skew=1.0), skew_seed=3)
    with torch.no_grad():
        router.weight.zero_()
    odds = router(torch.ones(1, 16)).probabilities[0]
    zipf = 1 / torch.arange(1, 7, dtype=torch.float32)
    torch.testing.assert_close(odds.sort(descending=True).values, zipf / zipf.sum())
    orders = set()
    for seed in (1, 2, 3, 3):
        scores = Router(6, 2, 16, dtype=torch.float32, routing=Routing(skew=1.0), skew_seed=seed).skew_scores
        assert scores is not None
        orders.add(tuple(scores.tolist()))
    assert len(orders) == 3
    assert "skew_scores" not in router.state_dict()


def test_memory_made_anew_is_filled_again() -> None:
    router = Router(6, 2, 16, dtype=torch.float32, device="meta", routing=Routing("loss_free", skew=1.0))
    router.to_empty(device="cpu")
    router.reset_buffers()
    expected = Router(6, 2, 16, dtype=torch.float32, routing=Routing("loss_free", skew=1.0))
    for name, buffer in expected.named_buffers():
        assert torch.equal(dict(router.named_buffers())[name], buffer), name


def test_a_skew_has_every_expert_wherever_the_weight_is() -> None:
    router = Router(8, 2, 16, dtype=torch.float32, routing=Routing(skew=1.0))
    wanted = router.skew_scores
    # As ZeRO-3 leaves it between passes.
    router.weight.data = torch.empty(0)
    router.reset_buffers()
    assert wanted is not None
    assert router.skew_scores is not None
    assert torch.equal(router.skew_scores, wanted)
