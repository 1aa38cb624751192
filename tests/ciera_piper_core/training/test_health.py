"""Tests of what stops a training run: bad batches, losses and gradients, each with its step and place."""

from __future__ import annotations

import math

import pytest
import torch

from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.health import (
    NonFiniteError,
    check_batch,
    first_non_finite,
    require_finite,
    require_finite_norm,
)
from tests.ciera_piper_core.training.small_recipe import small_recipe

RECIPE = small_recipe(sequence=8, global_batch=2)
TOKENS = torch.arange(16).view(2, 8)


def test_a_batch_of_another_shape_or_type_is_refused() -> None:
    check_batch(torch.zeros(2, 9, dtype=torch.int64), RECIPE, 0)
    with pytest.raises(ValueError, match=r"step 3: a batch is int64 of shape \(2, 9\) .* not torch.int64 of \(2, 8\)"):
        check_batch(TOKENS, RECIPE, 3)
    with pytest.raises(ValueError, match=r"step 3: .* not torch\.float32"):
        check_batch(torch.full((2, 9), math.nan), RECIPE, 3)


@pytest.mark.parametrize("token", [-1, 256])
def test_a_token_that_is_none_is_named(token: int) -> None:
    batch = torch.zeros(2, 9, dtype=torch.int64)
    batch[1, 4] = token
    with pytest.raises(ValueError, match=f"step 5: token {token} at position 4 of sequence 1 is not below"):
        check_batch(batch, RECIPE, 5)


def test_the_layer_where_it_went_wrong_is_named() -> None:
    model = build_model(RECIPE)
    require_finite(1.0, 0, model)

    # An activation that overflows: weights are finite, and the first layer is not to blame.
    with torch.no_grad():
        model.layers["1"].attention_norm.weight.fill_(3e38)
    with pytest.raises(NonFiniteError, match=r"step 7: output of layers\.1\.attention.* is not finite") as raised:
        require_finite(math.nan, 7, model, lambda: model(TOKENS))
    assert raised.value.step == 7
    assert raised.value.where.startswith("layers.1.attention")


def test_a_weight_comes_before_what_it_spoils() -> None:
    model = build_model(RECIPE)
    with torch.no_grad():
        model.layers["1"].routed_experts.experts.up[3, 0, 0] = math.inf
    assert first_non_finite(model, lambda: model(TOKENS)) == ("layers.1.routed_experts.experts.up", "weight", 0)
    with pytest.raises(NonFiniteError, match=r"step 2: weight of layers\.1\.routed_experts\.experts\.up"):
        require_finite(math.inf, 2, model)


def test_nothing_is_left_on_the_model() -> None:
    model = build_model(RECIPE)
    assert first_non_finite(model, lambda: model(TOKENS)) == ("the loss", "value", 0)
    assert not any(part._forward_hooks for part in model.modules())


def test_a_gradient_is_named_on_the_rank_that_has_it() -> None:
    require_finite_norm(1.0, 0, {})
    gradients = {"a": torch.zeros(2), "b": torch.tensor([0.0, math.nan])}
    with pytest.raises(NonFiniteError, match="step 4: gradient of b is not finite"):
        require_finite_norm(math.nan, 4, gradients)
    with pytest.raises(NonFiniteError, match="step 4: gradient of weights of another rank"):
        require_finite_norm(math.nan, 4, {"a": torch.zeros(2)})
