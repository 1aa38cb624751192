"""Tests of the router: weights, choice, precision, gradients, and what it keeps."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.moe.router import Router


def make(top_k: int, dtype: torch.dtype = torch.float32) -> tuple[Router, torch.Tensor]:
    generator = torch.Generator().manual_seed(10)
    router = Router(6, top_k, 16, dtype=dtype)
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
