"""Tests of models made smaller: the ratios that stay, for every model of the catalogue, and that they can be built."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ciera_piper_core.models import catalogue
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer, Recurrence
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.models.scaling import SCALES, TARGETS, scale
from ciera_piper_core.models.transformer import Transformer

BUILT = [name for name in catalogue.names() if not catalogue.load(name).encoder]


@pytest.mark.parametrize("to", ["tiny", "small", "medium"])
@pytest.mark.parametrize("name", BUILT)
def test_ratios_stay(name: str, to: str) -> None:
    whole = catalogue.load(name)
    small = scale(whole, to)  # type: ignore[arg-type]
    assert small.name == f"{name}-{to}"
    assert (small.hidden, len(small.layers)) == (TARGETS[to].hidden, TARGETS[to].layers)  # type: ignore[index]
    mine, theirs = small.experts, whole.experts
    assert mine.top_k * theirs.experts == theirs.top_k * mine.experts
    assert mine.experts >= 8
    assert mine.top_k >= min(2, theirs.top_k)
    shrunk = small.hidden / whole.hidden
    assert abs(mine.ffn - theirs.ffn * shrunk) <= 4
    assert (mine.shared_ffn == 0) == (theirs.shared_ffn == 0)
    assert abs(mine.shared_ffn - theirs.shared_ffn * shrunk) <= 8
    assert (mine.matrices, mine.shared_matrices) == (theirs.matrices, theirs.shared_matrices)
    assert small.attention.head_kind == whole.attention.head_kind
    assert small.attention.heads // small.attention.kv_heads == whole.attention.heads // whole.attention.kv_heads
    assert small.attention.kv_heads % 2 == 0
    assert small.tied_embeddings == whole.tied_embeddings


@pytest.mark.parametrize("name", BUILT)
def test_what_is_counted_is_what_is_built(name: str) -> None:
    small = scale(catalogue.load(name), "small")
    built = sum(weight.numel() for weight in Transformer(small, device="meta").parameters())
    assert model_parameters(small, mtp=False).total == built


def test_patterns_of_layers_stay() -> None:
    patterns = {
        ("deepseek-v3", "tiny"): "dMMM",
        ("deepseek-v3", "medium"): "d" + 15 * "M",
        ("llama-4-maverick", "tiny"): "dMdM",
        ("glam-1.2t", "small"): "dMdMdMdM",
        ("mixtral-8x7b", "tiny"): "MMMM",
    }
    for (name, to), pattern in patterns.items():
        layers = scale(catalogue.load(name), to).layers  # type: ignore[arg-type]
        assert "".join("M" if layer.experts else "d" for layer in layers) == pattern, name
    assert all(layer.dense and layer.experts for layer in scale(catalogue.load("arctic"), "tiny").layers)


def test_latent_attention_keeps_its_proportions() -> None:
    whole, small = (catalogue.load("deepseek-v3"), scale(catalogue.load("deepseek-v3"), "medium"))
    mine, theirs = small.attention.mla, whole.attention.mla
    assert mine is not None
    assert theirs is not None
    for width in ("q_lora", "kv_lora"):
        assert getattr(mine, width) == pytest.approx(getattr(theirs, width) / 7, abs=4)
    assert mine.qk_rope % 2 == 0
    assert mine.qk_rope / mine.qk_nope == pytest.approx(0.5, rel=0.1)
    assert mine.v_head / (mine.qk_rope + mine.qk_nope) == pytest.approx(2 / 3, rel=0.1)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b", "m10b-e16"])
def test_tiny_models_learn(name: str) -> None:
    model = Transformer(scale(catalogue.load(name), "tiny"), dtype=torch.float32)
    initialise(model, 0)
    text = torch.frombuffer(bytearray(b"a short text, over and over. " * 5), dtype=torch.uint8).long()[:129].view(3, 43)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = token_loss(model(text[:, :-1]), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_full_size_and_the_vocabulary() -> None:
    whole = catalogue.load("olmoe-1b-7b")
    assert scale(whole, "full") is whole
    assert scale(whole, "full", vocab=300).vocab == 300
    assert scale(whole, "tiny").vocab == 256
    assert scale(whole, "tiny", vocab=1000).vocab == 1000


def test_a_model_smaller_than_the_scale_does_not_grow() -> None:
    layer = Layer(Attention(4, 4, 8, 8), Experts(4, 2, 16))
    small = scale(Architecture("little", 32, 50, (layer,) * 2), "small")
    assert (small.hidden, len(small.layers), small.experts.experts) == (32, 2, 4)


def test_what_cannot_be_built_is_refused() -> None:
    attention = Attention(4, 4, 8, 8)
    layers = {
        "has cross-attention": Layer(attention, cross=attention),
        "has a mixer mamba": Layer(Recurrence("mamba", 10, 0, 5)),
        "has an attention that cannot": Layer(replace(attention, gated=True)),
        "experts of another width": Layer(attention, Experts(4, 2, 16, expert_hidden=8)),
        "further matrices": Layer(attention, dense=FeedForward(8), extra_matrix_parameters=3),
    }
    for message, layer in layers.items():
        with pytest.raises(ValueError, match=message):
            scale(Architecture("odd", 32, 50, (layer,)), "tiny")
    with pytest.raises(ValueError, match="has an encoder"):
        scale(catalogue.load("switch-base-128"), "tiny")
    with pytest.raises(ValueError, match=f"unknown scale 'huge'; known: {', '.join(SCALES)}"):
        scale(catalogue.load("olmoe-1b-7b"), "huge")  # type: ignore[arg-type]
