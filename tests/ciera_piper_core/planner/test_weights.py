"""Tests of the weights by shape: against the module's and against the parameter counts of every model."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import Attention, Experts, Layer, Recurrence
from ciera_piper_core.models.parameters import layer_parameters
from ciera_piper_core.models.transformer import TransformerLayer
from ciera_piper_core.planner.weights import COMPONENTS, Weight, layer_weights
from tests.ciera_piper_core.fake_layers import LAYERS

UNBUILT = [
    Layer(Recurrence("mamba", 10_001, 17, 64), norm_parameters=64),
    Layer(Attention(4, 2, 16, 16, gated=True, projection_parameters=5000, inactive_parameters=90)),
    Layer(None, Experts(8, 2, 24, 2, 5, 6, shared_ffn=16, shared_extra_parameters=3, expert_hidden=32)),
    Layer(Attention(4, 4, 16, 16, gated=True), cross=Attention(4, 4, 16, 16), extra_matrix_parameters=100),
]


@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_those_of_the_module(name: str) -> None:
    layer, hidden = LAYERS[name]
    module = TransformerLayer(layer, hidden, device="meta")
    weights = layer_weights(layer, hidden)
    assert sum(weight.elements for weight in weights) == sum(weight.numel() for weight in module.parameters())
    of_module = sorted(tuple(weight.shape[-2:]) for weight in module.parameters() if weight.dim() > 1)
    of_counts = sorted({(weight.rows, weight.columns) for weight in weights if weight.rows > 1})
    assert sorted(set(of_module)) == of_counts
    assert all(weight.device == torch.device("meta") for weight in module.parameters())


@pytest.mark.parametrize("name", catalogue.names())
def test_every_layer_of_every_model_has_as_many_as_are_counted(name: str) -> None:
    architecture = catalogue.load(name)
    for layer in {*architecture.layers, *architecture.encoder, *architecture.mtp}:
        check(layer, architecture.hidden)


@pytest.mark.parametrize("layer", UNBUILT)
def test_parts_that_are_counted_but_not_built(layer: Layer) -> None:
    check(layer, 64)


def check(layer: Layer, hidden: int) -> None:
    weights = layer_weights(layer, hidden)
    counted = layer_parameters(layer, hidden)
    for component in COMPONENTS:
        found = sum(weight.elements for weight in weights if weight.component == component)
        assert found == getattr(counted, component), component


def test_elements() -> None:
    assert Weight("dense", 3, 4, 5).elements == 60
