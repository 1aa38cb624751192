"""Tests of parameter counts: by hand for each part, and sums that must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer, Recurrence
from ciera_piper_core.models.attention_shape import AttentionShape
from ciera_piper_core.models.parameters import layer_parameters, model_parameters, projection_parameters

HIDDEN = 10


@pytest.mark.parametrize(
    ("mixer", "weights"),
    [
        (Attention(4, 4, 3, 3), 4 * HIDDEN * 12),
        # Queries 4 x 3, keys 2 x 3, values 2 x 5, output 4 x 5.
        (Attention(4, 2, 3, 5), HIDDEN * (12 + 6 + 10 + 20)),
        # The gate is as wide as the queries.
        (Attention(4, 4, 3, 3, gated=True), 5 * HIDDEN * 12),
        (Attention(4, 4, 3, 3, projection_parameters=7), 7),
        (Attention(4, 4, 7, 3, MLA(0, 6, 5, 2, 3)), HIDDEN * 28 + HIDDEN * 8 + 6 * 4 * 8 + 12 * HIDDEN),
        (Attention(4, 4, 7, 3, MLA(9, 6, 5, 2, 3)), 9 * (HIDDEN + 28) + HIDDEN * 8 + 6 * 4 * 8 + 12 * HIDDEN),
        (Recurrence("mamba", 77, 5, 3), 77),
    ],
    ids=["mha", "gqa", "gated", "given", "mla-full-rank", "mla", "recurrence"],
)
def test_projections(mixer: Attention | Recurrence, weights: int) -> None:
    assert projection_parameters(mixer, HIDDEN) == weights


@pytest.mark.parametrize("name", catalogue.names())
def test_projections_are_those_of_the_attention_block(name: str) -> None:
    architecture = catalogue.load(name)
    block = AttentionShape.from_architecture(architecture)
    assert projection_parameters(architecture.attention, architecture.hidden) == block.parameters()


def test_a_layer_by_hand() -> None:
    layer = Layer(
        Attention(4, 4, 3, 3, extra_parameters=8),
        experts=Experts(
            6,
            2,
            7,
            matrices=2,
            expert_extra_parameters=3,
            router_extra_parameters=6,
            shared_ffn=5,
            shared_extra_parameters=HIDDEN,
        ),
        dense=FeedForward(9, extra_parameters=4),
        cross=Attention(2, 2, 3, 3, causal=False),
        norm_parameters=30,
        extra_matrix_parameters=50,
    )
    counted = layer_parameters(layer, HIDDEN)
    one_expert = 2 * HIDDEN * 7 + 3
    assert counted.attention == 4 * HIDDEN * 12 + 8 + 4 * HIDDEN * 6
    assert counted.router == 6 * HIDDEN + 6
    assert counted.routed_experts == 6 * one_expert
    assert counted.shared_experts == 3 * HIDDEN * 5 + HIDDEN
    assert counted.dense == 3 * HIDDEN * 9 + 4
    assert counted.norms == 80
    assert counted.total == counted.replicated + counted.routed_experts
    assert counted.total - counted.active == 4 * one_expert


def test_experts_of_another_width_have_projections_to_it() -> None:
    layer = Layer(None, experts=Experts(6, 2, 7, expert_hidden=4, router_parameters=11))
    counted = layer_parameters(layer, HIDDEN)
    assert (counted.router, counted.routed_experts, counted.shared_experts) == (11, 6 * 3 * 4 * 7, 2 * HIDDEN * 4)


def test_heads_that_a_token_does_not_use_are_not_active() -> None:
    layer = Layer(Attention(4, 4, 3, 3, inactive_parameters=100))
    counted = layer_parameters(layer, HIDDEN)
    assert (counted.attention, counted.active) == (4 * HIDDEN * 12 + 100, 4 * HIDDEN * 12)


def model(**changes: object) -> Architecture:
    layer = Layer(Attention(4, 4, 3, 3), experts=Experts(6, 2, 7), norm_parameters=20)
    settings: dict[str, object] = {"layers": (layer,) * 3, "extra_parameters": 13} | changes
    return Architecture("x", hidden=HIDDEN, vocab=100, **settings)  # type: ignore[arg-type]


def test_a_model_is_the_sum_of_its_parts() -> None:
    architecture = model()
    counted, layer = model_parameters(architecture), layer_parameters(architecture.layers[0], HIDDEN)
    assert counted.total == 2 * 100 * HIDDEN + 3 * layer.total + 13
    assert counted.active == 2 * 100 * HIDDEN + 3 * layer.active + 13
    assert (counted.embedding, counted.output, counted.other) == (1000, 1000, 13)


def test_outputs() -> None:
    assert model_parameters(model(tied_embeddings=True)).output == 0
    assert model_parameters(model(output_vocab=90)).output == 90 * HIDDEN


def test_an_encoder_counts() -> None:
    plain = model()
    both = replace(plain, encoder=plain.layers[:1])
    added = layer_parameters(plain.layers[0], HIDDEN)
    assert model_parameters(both).total - model_parameters(plain).total == added.total
    assert model_parameters(both).active - model_parameters(plain).active == added.active


def test_layers_that_predict_further_tokens_count_when_asked() -> None:
    plain = model()
    predicting = replace(plain, mtp=plain.layers[:1])
    assert model_parameters(predicting, mtp=False) == model_parameters(plain)
    added = layer_parameters(plain.layers[0], HIDDEN)
    assert model_parameters(predicting).total - model_parameters(plain).total == added.total + 2 * HIDDEN**2


@given(st.integers(1, 300), st.data())
def test_active_parameters_grow_with_experts_a_token_and_end_at_the_total(experts: int, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, experts))
    layer = Layer(Attention(4, 2, 3, 5), experts=Experts(experts, top_k, 7, expert_extra_parameters=3))
    counted = model_parameters(model(layers=(layer,) * 2))
    assert counted.active <= counted.total
    assert (counted.active == counted.total) == (top_k == experts)
    # Exactly the experts that a token goes to.
    assert counted.total - counted.active == counted.routed_experts * (experts - top_k) // experts
