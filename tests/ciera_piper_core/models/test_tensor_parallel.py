"""A transformer whose matrices are cut over ranks against the plain one: losses, gradients, and what cannot be cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.models.tensor_collectives import TensorRanks
from ciera_piper_core.models.tensor_cuts import inner_shares
from ciera_piper_core.models.tensor_parallel import cut_experts, cut_model, cut_refusal
from ciera_piper_core.models.transformer import Transformer
from ciera_piper_core.models.vocabulary_parallel import cut_token_loss
from ciera_piper_core.moe import grouped
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

HIDDEN, BATCH, SEQUENCE = 32, 2, 16
GQA = Attention(4, 2, 8, 8)
MHA = Attention(4, 4, 8, 8, window=5)
ONE_KEY_HEAD = Attention(4, 1, 8, 8)
LATENT = Attention(4, 4, 12, 8, mla=MLA(q_lora=16, kv_lora=12, qk_nope=8, qk_rope=4, v_head=8))
LATENT_FULL_QUERY = Attention(4, 4, 12, 8, mla=MLA(q_lora=0, kv_lora=12, qk_nope=8, qk_rope=4, v_head=8))


def architecture(attention: Attention, vocab: int = 50, tied: bool = False, matrices: int = 3) -> Architecture:
    """A dense layer, then experts beside shared ones."""
    layers = (
        Layer(attention, dense=FeedForward(48, matrices)),
        Layer(attention, Experts(4, 2, 16, matrices, shared_ffn=40, shared_matrices=matrices)),
    )
    return Architecture("small", HIDDEN, vocab, layers, tied_embeddings=tied)


def plain_model(made_of: Architecture, **options: Any) -> Transformer:
    """The same on every rank."""
    model = Transformer(made_of, dtype=torch.float32, **options)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
    return model


def data(vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(vocab, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1], tokens[:, 1:]


def differences(context: Context, made_of: Architecture, **options: Any) -> dict[str, float]:
    """Of the loss and of each gradient, relative to its norm, between the cut model and the plain one."""
    tokens, targets = data(made_of.vocab)
    plain = plain_model(made_of, **options)
    expected = token_loss(plain(tokens), targets)
    torch.autograd.backward(expected)
    right = {name: weight.grad for name, weight in plain.named_parameters()}

    assert context.group.data is not None
    ranks = TensorRanks.of(context.group.data)
    model = plain_model(made_of, **options)
    cuts = cut_model(model, ranks.group)
    head = "output.weight" if "output.weight" in cuts else "embedding.weight"
    loss = cut_token_loss(model(tokens), targets, ranks, cuts[head])
    torch.autograd.backward(loss)
    found = {"loss": float((loss - expected).abs() / expected)}
    assert {name for name, _ in model.named_parameters()} == set(right)
    for name, weight in model.named_parameters():
        whole = right[name]
        assert whole is not None
        assert weight.grad is not None, name
        mine = cuts[name].part(whole, ranks.rank) if name in cuts else whole
        assert weight.shape == mine.shape
        found[name] = float((weight.grad - mine).norm() / whole.norm())
        parts = context.group.gather_objects(weight.grad)
        if name in cuts:
            assert (cuts[name].whole(parts) - whole).norm() <= 1e-5 * whole.norm()
            counted = sum(float(view.square().sum()) for view in cuts[name].counted(weight.grad, ranks.rank))
            total = sum(context.group.gather_objects(counted))
            assert total == pytest.approx(float(whole.square().sum()))
        else:
            # Copies stay copies, to the bit.
            assert all(torch.equal(part, parts[0]) for part in parts)
    return found


@pytest.mark.parametrize(
    "attention",
    [GQA, MHA, ONE_KEY_HEAD, LATENT, LATENT_FULL_QUERY],
    ids=["gqa", "mha-window", "one-key-head", "mla", "mla-full-query"],
)
@pytest.mark.parametrize("world", [2, 4])
def test_loss_and_gradients_are_those_of_the_plain_model(world: int, attention: Attention, tmp_path: Path) -> None:
    results = run_world(world, lambda context: differences(context, architecture(attention)), tmp_path)
    assert max(max(found.values()) for found in results) < 1e-5


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"tied": True}, {}),
        ({"vocab": 51}, {}),
        ({"vocab": 3, "tied": True}, {}),
        ({"matrices": 2}, {"flash": False}),
        ({}, {"checkpointing": "full"}),
        ({}, {"checkpointing": "selective"}),
    ],
    ids=["tied", "uneven-vocabulary", "rank-without-vocabulary", "relu-unfused", "full-recompute", "selective"],
)
def test_so_are_they_of_other_models(changes: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    results = run_world(4, lambda context: differences(context, architecture(GQA, **changes), **options), tmp_path)
    assert max(max(found.values()) for found in results) < 1e-5


def test_parts_of_experts_add_up_to_the_whole(tmp_path: Path) -> None:
    def body(context: Context) -> float:
        assert context.group.data is not None
        experts = grouped.Experts(3, HIDDEN, 24, dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        for weight in experts.parameters():
            torch.nn.init.normal_(weight, std=0.1, generator=generator)
        rows = torch.randn(10, HIDDEN, generator=generator)
        ends = grouped.group_ends([4, 0, 6])
        whole = grouped.grouped_experts(experts, rows, ends)
        cuts = cut_experts(experts, context.group.data)
        assert cuts.keys() == {"up", "gate", "down"}
        assert experts.up.shape == (3, 16 - 8 * context.group.rank, HIDDEN)
        part = grouped.grouped_experts(experts, rows, ends).detach()
        return float((sum(context.group.gather_objects(part)) - whole).abs().max())

    assert max(run_world(2, body, tmp_path)) < 1e-5


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        (2, None),
        (3, "layer 0: 4 heads with 2 key/value heads do not divide over tp=3"),
        (8, "layer 0: 4 heads with 2 key/value heads do not divide over tp=8"),
    ],
)
def test_heads_that_do_not_divide_are_refused(ranks: int, reason: str | None) -> None:
    refusal = cut_refusal(architecture(GQA), ranks)
    assert refusal is None if reason is None else reason in str(refusal)


def test_widths_are_cut_between_blocks_and_refused_where_there_are_too_few() -> None:
    assert inner_shares(168, 2, grouped=True) == (88, 80)
    assert inner_shares(12, 2, grouped=True) == (8, 4)
    assert inner_shares(168, 4, grouped=False) == (48, 40, 40, 40)
    # Only the grouped product minds small blocks.
    assert inner_shares(24, 4, grouped=False) == (8, 8, 4, 4)
    assert inner_shares(6, 4, grouped=False) == (2, 2, 1, 1)
    attention = Attention(4, 4, 8, 8)
    thin = Architecture("thin", HIDDEN, 50, (Layer(attention, Experts(4, 2, 24)),))
    assert cut_refusal(thin, 2) is None
    assert cut_refusal(thin, 4) == (
        "layer 0: an inner width of 24 has 3 blocks of 8, too few for 4 ranks; choose a smaller tp"
    )
