"""Tests of the plain model of a recipe: its settings reach the model, and its weights follow from the seed."""

from __future__ import annotations

import torch

from ciera_piper_core.moe.router import Router
from ciera_piper_core.training.build import build_model, empty_model
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.training.small_recipe import small_recipe


def test_settings_reach_the_model() -> None:
    recipe = small_recipe(routing=Routing("loss_free"), checkpointing="full")
    model = empty_model(recipe, dtype=torch.bfloat16, device="meta")
    assert all(weight.is_meta and weight.dtype == torch.bfloat16 for weight in model.parameters())
    assert all(layer.checkpointing == "full" for layer in model.layers.values())
    routers = [part for part in model.modules() if isinstance(part, Router)]
    assert [router.routing.kind for router in routers] == ["loss_free"]


def test_weights_follow_from_the_seed() -> None:
    first, again, other = (build_model(small_recipe(seed=seed)) for seed in (1, 1, 2))
    for name, weight in first.named_parameters():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, again.get_parameter(name))
        assert weight.dim() < 2 or not torch.equal(weight, other.get_parameter(name))
