"""Tests of rotary positions: what they mean for scores, what they leave alone, and their gradient."""

from __future__ import annotations

import torch

from ciera_piper_core.models.rotary import POSITIONS, rotate_


def rotated(x: torch.Tensor, heads: int, width: int, turned: int) -> torch.Tensor:
    return rotate_(x.clone(), heads, width, turned)


def test_scores_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64).expand(2, 1, 12, 16)
    scores = (rotated(q, 1, 16, 16) @ rotated(k, 1, 16, 16).mT)[0]
    for distance in range(-5, 6):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    assert not torch.allclose(scores[0, 0], scores[5, 0])


def test_long_sequences_turn_part_by_part_as_one() -> None:
    x = torch.randn(1, POSITIONS + 5, 8, dtype=torch.float64)
    angles = torch.arange(POSITIONS + 5)[:, None] / 10_000.0 ** torch.tensor([0.0, 0.5], dtype=torch.float64)
    turned = torch.view_as_complex(torch.stack([x[..., 4:6], x[..., 6:]], dim=-1)) * torch.polar(
        torch.ones_like(angles), angles
    )
    result = rotated(x, 1, 8, 4)
    torch.testing.assert_close(result[..., 4:], torch.cat([turned.real, turned.imag], dim=-1))


def test_only_the_named_channels_of_the_named_heads_turn() -> None:
    x = torch.randn(2, 5, 3 * 8)
    result = rotated(x, 2, 8, 4).unflatten(2, (3, 8))
    before = x.unflatten(2, (3, 8))
    assert torch.equal(result[:, :, 2], before[:, :, 2])
    assert torch.equal(result[:, :, :, :4], before[:, :, :, :4])
    assert torch.equal(result[:, 0], before[:, 0])
    assert (result[:, 1:, :2, 4:] != before[:, 1:, :2, 4:]).any(0).any(0).all()
    torch.testing.assert_close(result.norm(dim=-1), before.norm(dim=-1))


def test_it_works_in_place_and_keeps_nothing() -> None:
    kept: list[torch.Tensor] = []
    x = torch.randn(2, 5, 16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        y = x * 1
        z = rotate_(y, 2, 8, 8)
    assert z.data_ptr() == y.data_ptr()
    assert not kept


def test_the_gradient_is_the_transposed_rotation() -> None:
    x = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: rotated(t, 2, 8, 6), x)
