"""The end of a step: applied, or left out with all that belongs to it."""

from __future__ import annotations

import math

import pytest
import torch

from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.training.batches import Batches
from ciera_piper_core.training.recipe import Routing
from ciera_piper_core.training.update import apply_gradients
from tests.ciera_piper_core.training.small_recipe import one_rank, small_recipe, text


def after_a_pass() -> Plain:
    recipe = small_recipe(precision="fp16", routing=Routing("loss_free"))
    system = Plain(recipe, one_rank(), {})
    system.accumulate(Batches(text(), recipe).batch(0))
    return system


def ended(system: Plain, scaled_norm: float) -> float:
    gradients = system.weights.gradients()
    return apply_gradients(system.model, system.weights, gradients, scaled_norm, system.scaler, clip_norm=0.0)


def state_of(system: Plain) -> dict[str, torch.Tensor]:
    biases = {name: buffer for name, buffer in system.model.named_buffers() if name.endswith("bias")}
    assert biases
    return {name: part.detach().clone() for name, part in {**system.weights.masters, **biases}.items()}


def test_a_step_that_is_left_out_changes_neither_weights_nor_biases() -> None:
    system = after_a_pass()
    before, scale = state_of(system), system.scaler.scale
    assert ended(system, math.inf) == math.inf
    assert system.scaler.scale == scale / 2
    for name, part in state_of(system).items():
        assert torch.equal(part, before[name]), name


def test_a_step_that_is_applied_moves_both() -> None:
    system = after_a_pass()
    before, scale = state_of(system), system.scaler.scale
    assert ended(system, 3.0 * scale) == pytest.approx(3.0)
    for name, part in state_of(system).items():
        assert not torch.equal(part, before[name]), name
