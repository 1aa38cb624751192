"""Tests of expert products: grouped and looped against the plain reference, with ragged and empty experts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.moe.grouped import Experts, group_ends, grouped_experts, looped_experts
from ciera_piper_core.moe.grouped_reference import reference_expert
from ciera_piper_core.ranges import recording

HIDDEN, FFN = 32, 48
METHODS = ["grouped", "looped"]


def make(counts: list[int], matrices: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Experts, torch.Tensor]:
    """Random experts and tokens."""
    generator = torch.Generator().manual_seed(3)
    experts = Experts(len(counts), HIDDEN, FFN, matrices, dtype=dtype)
    with torch.no_grad():
        for weight in experts.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return experts, torch.randn(sum(counts), HIDDEN, generator=generator).to(dtype)


def compute(method: str, experts: Experts, tokens: torch.Tensor, counts: list[int]) -> torch.Tensor:
    if method == "grouped":
        return grouped_experts(experts, tokens, group_ends(counts))
    return looped_experts(experts, tokens, counts)


def reference(experts: Experts, tokens: torch.Tensor, counts: list[int]) -> torch.Tensor:
    parts = torch.split(tokens, counts)
    stacks = dict(experts.named_parameters())
    outputs = [
        reference_expert({name: stack[expert] for name, stack in stacks.items()}, part)
        for expert, part in enumerate(parts)
    ]
    return torch.cat(outputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("matrices", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str
)
def test_products_agree_with_the_reference(method: str, matrices: int, dtype: torch.dtype, allowed: float) -> None:
    counts = [5, 0, 17, 1]
    experts, tokens = make(counts, matrices, dtype)
    output = compute(method, experts, tokens, counts)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), reference(experts, tokens, counts), rtol=allowed, atol=allowed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("matrices", [2, 3])
def test_gradients_agree_with_the_reference(method: str, matrices: int) -> None:
    counts = [0, 5, 0, 17, 1, 0]
    experts, tokens = make(counts, matrices)
    tokens.requires_grad_()
    upstream = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(4))
    leaves = [tokens, *experts.parameters()]
    measured = torch.autograd.grad(compute(method, experts, tokens, counts), leaves, upstream)
    expected = torch.autograd.grad(reference(experts, tokens, counts), leaves, upstream.double())
    for mine, right in zip(measured, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    for of_weight in measured[1:]:
        assert torch.count_nonzero(of_weight[[0, 2, 5]]) == 0, "an expert without tokens has a gradient"


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any))
def test_grouped_and_looped_agree_for_any_counts(counts: list[int]) -> None:
    experts, tokens = make(counts)
    grouped, looped = (compute(method, experts, tokens, counts) for method in METHODS)
    torch.testing.assert_close(grouped, looped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_no_tokens_at_all(method: str) -> None:
    experts, tokens = make([0, 0, 0])
    assert compute(method, experts, tokens, [0, 0, 0]).shape == (0, HIDDEN)


def test_where_groups_end() -> None:
    ends = group_ends([3, 0, 2])
    assert (ends.tolist(), ends.dtype) == ([3, 3, 5], torch.int32)


def test_experts_have_two_or_three_matrices() -> None:
    assert Experts(2, HIDDEN, FFN, 2, dtype=torch.float32).gate is None
    with pytest.raises(ValueError, match="an expert has 2 or 3 matrices, not 4"):
        Experts(2, HIDDEN, FFN, 4, dtype=torch.float32)


def test_both_halves_are_marked() -> None:
    counts = [2, 0, 3]
    experts, tokens = make(counts)
    for method, times in (("grouped", 1), ("looped", 2)):
        with recording() as spans:
            compute(method, experts, tokens, counts)
        assert [span.name for span in spans] == ["experts.up", "experts.down"] * times
