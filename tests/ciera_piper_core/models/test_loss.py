"""Tests of the loss: against torch's cross-entropy, over several chunks of rows."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.models.loss import ROWS, token_loss


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, ROWS, 2 * ROWS + 3])
def test_loss_and_gradient_are_torchs(dtype: torch.dtype, tokens: int) -> None:
    generator = torch.Generator().manual_seed(9)
    logits = (4 * torch.randn(1, tokens, 33, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(33, (1, tokens), generator=generator)
    loss = token_loss(logits, targets)
    expected = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(2 * loss, logits)
    (right,) = torch.autograd.grad(2 * expected, logits)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, right, rtol=0.01 if dtype == torch.bfloat16 else 1e-4, atol=1e-6)
