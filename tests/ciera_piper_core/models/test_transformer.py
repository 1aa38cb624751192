"""Tests of the transformer: real passes against a slow oracle, checkpointing, tensors without data, refusals."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer, Recurrence
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.models.transformer import Transformer, TransformerLayer
from ciera_piper_core.moe.router import Router
from ciera_piper_core.ranges import recording
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core import fake_layers
from tests.ciera_piper_core.fake_layers import measure
from tests.ciera_piper_core.models.transformer_oracle import Oracle

HIDDEN, VOCAB = 32, 50

MHA = Attention(4, 4, 8, 8)
GQA = Attention(4, 2, 8, 8, window=4)
ENCODER = Attention(2, 1, 8, 8, causal=False)
LATENT = Attention(4, 4, 12, 8, MLA(16, 8, 8, 4, 8))
FULL_RANK_LATENT = Attention(2, 2, 12, 8, MLA(0, 8, 8, 4, 8))

ARCHITECTURES = {
    "mha": (Layer(MHA, dense=FeedForward(48)), Layer(MHA, Experts(5, 2, 24))),
    "gqa": (Layer(GQA, Experts(6, 3, 16)), Layer(GQA, Experts(6, 1, 16), dense=FeedForward(24))),
    "mla": (Layer(LATENT, dense=FeedForward(40)), Layer(LATENT, Experts(8, 2, 16, shared_ffn=24))),
    "mla-full-rank": (Layer(FULL_RANK_LATENT, Experts(4, 4, 16)),),
    "two-matrices": (
        Layer(MHA, Experts(4, 1, 16, 2)),
        Layer(ENCODER, Experts(4, 2, 16, 2, shared_ffn=16, shared_matrices=2)),
        Layer(MHA, dense=FeedForward(24, 2)),
    ),
    "halves": (Layer(MHA), Layer(None, Experts(3, 2, 16)), Layer(None, dense=FeedForward(16))),
}


def make(
    name: str, dtype: torch.dtype = torch.float32, *, tied: bool = False, **options: object
) -> tuple[Transformer, torch.Tensor, torch.Tensor]:
    """A model with random weights, tokens and targets."""
    generator = torch.Generator().manual_seed(5)
    architecture = Architecture(name, HIDDEN, VOCAB, ARCHITECTURES[name], tied_embeddings=tied)
    model = Transformer(architecture, dtype=dtype, **options)  # type: ignore[arg-type]
    initialise(model, 5)
    tokens, targets = torch.randint(VOCAB, (2, 2, 9), generator=generator)
    return model, tokens, targets


def step(
    model: Transformer, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients."""
    loss = token_loss(model(tokens), targets)
    names, weights = zip(*model.named_parameters(), strict=True)
    return loss.detach(), dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "scores"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_loss_and_gradients_agree_with_the_oracle(name: str, flash: bool) -> None:
    model, tokens, targets = make(name, flash=flash)
    loss, gradients = step(model, tokens, targets)
    weights = {key: weight.detach().double().requires_grad_() for key, weight in model.named_parameters()}
    oracle = Oracle(Architecture(name, HIDDEN, VOCAB, ARCHITECTURES[name]), weights)
    expected = torch.nn.functional.cross_entropy(oracle(tokens).flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    right = torch.autograd.grad(expected, list(weights.values()))
    for key, gradient in zip(weights, right, strict=True):
        assert gradient.abs().max() > 0, key
        error = (gradients[key].double() - gradient).norm() / gradient.norm()
        assert error < 1e-4, f"gradient of {key} is off by {error:.1e} of its norm"
    assert any(len(set(counts)) > 1 for counts in oracle.counts) or name == "mla-full-rank", "routing was even"


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_precisions_stay_near_single_precision(name: str, dtype: torch.dtype) -> None:
    precise, tokens, targets = make(name)
    expected, _ = step(precise, tokens, targets)
    model, _, _ = make(name, dtype)
    model.load_state_dict(precise.state_dict())
    loss, gradients = step(model, tokens, targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), abs=0.1)
    assert all(gradient.dtype == dtype and gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "scores"])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("name", ["gqa", "mla", "two-matrices"])
def test_checkpointing_changes_no_bit(name: str, checkpointing: str, flash: bool) -> None:
    model, tokens, targets = make(name, torch.float32, flash=flash)
    again, _, _ = make(name, torch.float32, flash=flash, checkpointing=checkpointing)
    loss, gradients = step(model, tokens, targets)
    same_loss, same_gradients = step(again, tokens, targets)
    assert torch.equal(loss, same_loss)
    assert all(torch.equal(gradients[key], same_gradients[key]) for key in gradients)


def test_full_checkpointing_computes_everything_again_and_selective_the_core() -> None:
    runs = {"none": {"core": 1, "moe": 1}, "selective": {"core": 2, "moe": 1}, "full": {"core": 2, "moe": 2}}
    for checkpointing, times in runs.items():
        layer = TransformerLayer(
            ARCHITECTURES["gqa"][0],
            HIDDEN,
            dtype=torch.float32,
            checkpointing=checkpointing,  # type: ignore[arg-type]
        )
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        x = torch.randn(1, 6, HIDDEN, requires_grad=True)
        with recording() as spans:
            layer(x).sum().backward()
        names = [span.name for span in spans]
        assert names.count("attention.core") == times["core"]
        # Inside of the experts, because a backward pass marks the parts of a layer, too.
        assert names.count("experts.up") == times["moe"]


def test_a_few_steps_learn() -> None:
    model, tokens, targets = make("mla", torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = token_loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_tied_embeddings_are_one_weight() -> None:
    model, tokens, targets = make("mha", tied=True)
    assert "output.weight" not in dict(model.named_parameters())
    loss, gradients = step(model, tokens, targets)
    weights = {key: weight.detach().double().requires_grad_() for key, weight in model.named_parameters()}
    oracle = Oracle(Architecture("mha", HIDDEN, VOCAB, ARCHITECTURES["mha"], tied_embeddings=True), weights)
    expected = torch.nn.functional.cross_entropy(oracle(tokens).flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (right,) = torch.autograd.grad(expected, weights["embedding.weight"])
    torch.testing.assert_close(gradients["embedding.weight"].double(), right, rtol=1e-3, atol=1e-6)


def test_stages_of_a_pipeline_make_the_whole_model() -> None:
    model, tokens, _ = make("mla")
    expected = model(tokens)
    first, last = make("mla")[0], make("mla")[0]
    del first.layers["1"], last.layers["0"]
    first.norm = first.output = last.embedding = None
    assert "layers.1.attention_norm.weight" in dict(last.named_parameters())
    torch.testing.assert_close(last(first(tokens)), expected, rtol=0, atol=0)


def test_stated_counts_give_the_same_as_the_routers_choice() -> None:
    layer = TransformerLayer(Layer(None, Experts(4, 4, 16)), HIDDEN, dtype=torch.float32)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    x = torch.randn(2, 5, HIDDEN, dtype=torch.float32)
    # With all experts chosen the counts are even whatever the router says.
    torch.testing.assert_close(layer(x, [10] * 4), layer(x))
    with pytest.raises(ValueError, match="are not what the router chose"):
        layer(x, [11, 9, 10, 10])
    with pytest.raises(ValueError, match="stated counts: 30 token copies for 3 experts; the router gives 40 to 4"):
        layer(x, [10] * 3)


@pytest.mark.parametrize("counts", [None, [6] * 4])
def test_tensors_without_data_pass(counts: list[int] | None) -> None:
    layer = Layer(LATENT, Experts(4, 2, 16))
    with FakeTensorMode():
        module = TransformerLayer(layer, HIDDEN)
        x = torch.empty(2, 6, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        module(x, counts).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer(MHA, cross=MHA), "cross-attention"),
        (Layer(Recurrence("mamba", 10, 0, 5)), "a mixer that is no softmax attention"),
        (Layer(replace(MHA, gated=True)), "a gated attention"),
        (Layer(replace(MHA, projection_parameters=7)), "projections of unknown shape"),
        (Layer(None, Experts(4, 2, 16, expert_hidden=8)), "experts of another width"),
        (Layer(MHA, extra_matrix_parameters=8), "further matrices"),
    ],
)
def test_what_cannot_be_built_is_refused(layer: Layer, message: str) -> None:
    with pytest.raises(ValueError, match=f"a layer with {message} cannot be built"):
        TransformerLayer(layer, HIDDEN)


def test_layers_share_the_scale_of_the_auxiliary_loss_and_no_skew() -> None:
    layers = (Layer(MHA, Experts(8, 2, 16)),) * 3
    model = Transformer(Architecture("three", HIDDEN, VOCAB, layers), routing=Routing(skew=1.0))
    routers = [part for part in model.modules() if isinstance(part, Router)]
    assert all(router.auxiliary is model.auxiliary for router in routers)
    assert len({tuple(router.skew_scores.tolist()) for router in routers if router.skew_scores is not None}) == 3
    copied = copy.deepcopy(model)
    assert {id(part.auxiliary) for part in copied.modules() if isinstance(part, Router)} == {id(copied.auxiliary)}


def test_balancing_keeps_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = measure("mixtral-8x7b", 2, 1024)
    monkeypatch.setattr(fake_layers, "TransformerLayer", functools.partial(TransformerLayer, routing=Routing()))
    balanced = measure("mixtral-8x7b", 2, 1024)
    assert balanced.kept == pytest.approx(plain.kept, rel=1e-4)
    assert balanced.working == pytest.approx(plain.working, rel=1e-3)


def test_every_part_of_a_pass_is_in_a_region() -> None:
    model, tokens, targets = make("mla")
    with recording() as spans:
        step(model, tokens, targets)
    names = {span.name for span in spans}
    assert {"embedding", "attention", "dense", "moe.router", "moe.experts", "loss"} <= names


def test_an_encoder_and_an_unknown_mode_are_refused() -> None:
    layer = Layer(MHA)
    with pytest.raises(ValueError, match="architecture 'two' has an encoder"):
        Transformer(Architecture("two", HIDDEN, VOCAB, (layer,), encoder=(layer,)))
    with pytest.raises(ValueError, match="unknown checkpointing 'some'; known: none, selective, full"):
        TransformerLayer(layer, HIDDEN, checkpointing="some")  # type: ignore[arg-type]
