"""Embedding and cross-entropy over a divided vocabulary are those over a whole one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from ciera_piper_core.models.loss import ROWS, token_loss
from ciera_piper_core.models.tensor_collectives import TensorRanks
from ciera_piper_core.models.tensor_cuts import share_cut
from ciera_piper_core.models.vocabulary_parallel import CutEmbedding, cut_token_loss
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [12, 11, 2])
def test_loss_and_gradient_are_those_of_whole_logits(vocab: int, dtype: torch.dtype, tmp_path: Path) -> None:
    def body(context: Context) -> tuple[float, float]:
        assert context.group.data is not None
        ranks = TensorRanks.of(context.group.data)
        generator = torch.Generator().manual_seed(1)
        # More tokens than are widened at a time, and logits whose exponentials overflow.
        logits = (torch.randn(2, ROWS, vocab, generator=generator) * 100).to(dtype)
        targets = torch.randint(vocab, (2, ROWS), generator=generator)
        whole = logits.clone().requires_grad_()
        expected = token_loss(whole, targets)
        torch.autograd.backward(expected * 3)
        cut = share_cut(-1, ranks.shares(vocab))
        mine = cut.part(logits, ranks.rank).requires_grad_()
        loss = cut_token_loss(mine, targets, ranks, cut)
        torch.autograd.backward(loss * 3)
        assert whole.grad is not None
        assert mine.grad is not None
        right = cut.part(whole.grad, ranks.rank)
        return float((loss - expected).abs() / expected), float((mine.grad - right).norm() / whole.grad.norm())

    for of_loss, of_gradient in run_world(3, body, tmp_path):
        assert of_loss < 1e-6
        assert of_gradient < 1e-6 if dtype == torch.float32 else of_gradient < 1e-2


def test_every_token_is_found_on_its_rank(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        ranks = TensorRanks.of(context.group.data)
        weight = torch.arange(10.0).view(5, 2)
        cut = share_cut(-2, ranks.shares(5))
        embedding = CutEmbedding(torch.nn.Parameter(cut.part(weight, ranks.rank)), cut, ranks)
        tokens = torch.tensor([[0, 4, 2], [3, 3, 1]])
        found = embedding(tokens)
        assert torch.equal(found, F.embedding(tokens, weight))
        found.sum().backward()
        assert embedding.weight.grad is not None
        counts = torch.bincount(tokens.flatten(), minlength=5)[:, None].expand(5, 2).float()
        assert torch.equal(embedding.weight.grad, cut.part(counts, ranks.rank))

    run_world(2, body, tmp_path)
