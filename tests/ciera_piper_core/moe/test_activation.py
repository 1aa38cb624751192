"""Tests of the experts' activation: values, gradients and what it keeps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ciera_piper_core.moe.activation import activate


def plain(up: torch.Tensor, gate: torch.Tensor | None, weights: torch.Tensor | None) -> torch.Tensor:
    inner = F.relu(up) if gate is None else F.silu(gate) * up
    return inner if weights is None else inner * weights[:, None]


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "relu"])
def test_values_and_gradients_are_autograds(gated: bool, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(11)
    up, gate = torch.randn(2, 9, 12, generator=generator, dtype=torch.float64)
    leaves = [up.requires_grad_()]
    if gated:
        leaves.append(gate.requires_grad_())
    weights = torch.rand(9, generator=generator, dtype=torch.float64).requires_grad_() if weighted else None
    leaves += [weights] if weights is not None else []
    arguments = (up, gate if gated else None, weights)
    mine, right = activate(*arguments), plain(*arguments)
    torch.testing.assert_close(mine, right)
    upstream = torch.randn(9, 12, generator=generator, dtype=torch.float64)
    for measured, expected in zip(
        torch.autograd.grad(mine, leaves, upstream), torch.autograd.grad(right, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(measured, expected)


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "relu"])
def test_low_precision_stays_near(gated: bool) -> None:
    generator = torch.Generator().manual_seed(12)
    up, gate = torch.randn(2, 50, 64, generator=generator).bfloat16()
    weights = torch.rand(50, generator=generator).requires_grad_()
    leaves = [up.requires_grad_(), weights, *([gate.requires_grad_()] if gated else [])]
    mine = activate(up, gate if gated else None, weights)
    right = plain(up.double(), gate.double() if gated else None, weights.double())
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine.double(), right, rtol=0.02, atol=0.02)
    for measured, expected in zip(
        torch.autograd.grad(mine.float().sum(), leaves), torch.autograd.grad(right.sum(), leaves), strict=True
    ):
        assert measured.dtype == expected.dtype
        torch.testing.assert_close(measured, expected, rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
    ("gated", "weighted", "tensors"), [(True, True, 2), (True, False, 2), (False, True, 1), (False, False, 1)]
)
def test_what_is_kept(gated: bool, weighted: bool, tensors: int) -> None:
    kept: list[torch.Tensor] = []
    up, gate = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    weights = torch.rand(4) if weighted else None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        activate(up, gate if gated else None, weights)
    assert sum(t.shape == up.shape for t in kept) == tensors
