"""Tests of the normalisation: against torch's own, and of what it keeps."""

from __future__ import annotations

import pytest
import torch

from ciera_piper_core.models.norm import RMSNorm


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_values_and_gradients_are_torchs(dtype: torch.dtype, allowed: float) -> None:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(3, 5, 64, generator=generator).to(dtype).requires_grad_()
    norm = RMSNorm(64, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(64, generator=generator) + 0.5)
    output = norm(x)
    assert output.dtype == dtype
    theirs = torch.nn.functional.rms_norm(x.double(), (64,), norm.weight.double(), 1e-6)
    torch.testing.assert_close(output.double(), theirs, rtol=allowed, atol=allowed)
    upstream = torch.randn(x.shape, generator=generator).to(dtype)
    mine = torch.autograd.grad(output, [x, norm.weight], upstream)
    right = torch.autograd.grad(theirs, [x, norm.weight], upstream.double())
    for measured, expected in zip(mine, right, strict=True):
        torch.testing.assert_close(measured, expected, rtol=allowed, atol=10 * allowed)


def test_it_keeps_its_input_and_a_number_a_token() -> None:
    kept: list[torch.Tensor] = []
    x = torch.randn(7, 64, dtype=torch.bfloat16, requires_grad=True)
    norm = RMSNorm(64, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        norm(x)
    assert sum(t.nbytes for t in kept if t is not norm.weight) == x.nbytes + 4 * 7
