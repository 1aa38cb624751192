"""Tests of the gradient norm: each parameter once, over meshes, DTensors and ranks without any; clipping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

from ciera_piper_core.training.gradient_norm import Spread, clip_factor, gradient_norm, scale_gradients
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def gradients(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def norm_of(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def test_on_one_rank_it_is_the_norm_of_all() -> None:
    tensors = gradients((3, 4), (5,), ())
    assert gradient_norm([Spread(tensors[:1]), Spread(tensors[1:])]) == pytest.approx(norm_of(tensors), rel=1e-12)
    assert gradient_norm([Spread([])]) == 0


def test_sums_are_double_precision() -> None:
    many = [torch.full((1,), 1e-4)] * 4 + [torch.full((1,), 1e4)]
    assert gradient_norm([Spread(many)]) ** 2 - 1e8 == pytest.approx(4e-8, rel=0.5)
    assert gradient_norm([Spread([torch.full((1,), 1e30)])]) == pytest.approx(1e30)
    assert math.isnan(gradient_norm([Spread([torch.tensor([math.nan])])]))


def test_experts_and_stages_count_once(tmp_path: Path) -> None:
    """Two stages of two expert peers: dense gradients are the same on peers, experts' are not."""
    dense, experts = gradients((4, 4), (6,)), gradients((2, 8), (2, 8), (2, 8), (2, 8))
    # One huge gradient of an expert that rank 0 does not have.
    experts[3] *= 1000

    def body(context: Context) -> float:
        rank = context.site.rank
        stage = rank // 2
        peers = [dist.new_group([0, 1]), dist.new_group([2, 3])][stage]
        stages = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
        parts = [Spread([dense[stage]], (stages,)), Spread([experts[rank]], (peers, stages))]
        return gradient_norm(parts)

    norms = run_world(4, body, tmp_path)
    assert len(set(norms)) == 1
    assert norms[0] == pytest.approx(norm_of([*dense, *experts]), rel=1e-12)


def test_a_rank_without_parameters_takes_part(tmp_path: Path) -> None:
    (only,) = gradients((3, 3))

    def body(context: Context) -> float:
        return gradient_norm([Spread([only] if context.site.rank else [], (dist.group.WORLD,))])

    assert run_world(2, body, tmp_path) == [pytest.approx(norm_of([only]))] * 2


def test_shards_are_summed_over_the_ranks_that_share_them(tmp_path: Path) -> None:
    first, second = gradients((5, 3), (4, 4))

    def body(context: Context) -> tuple[float, bool]:
        mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("copies", "shards"))
        spread = [
            distribute_tensor(first, mesh, [Replicate(), Shard(0)]),
            distribute_tensor(second, mesh, [Shard(1), Shard(0)]),
        ]
        norm = gradient_norm([Spread(spread)])
        scale_gradients(spread, 0.5)
        halved = all(
            torch.equal(half.full_tensor(), whole / 2) for half, whole in zip(spread, (first, second), strict=True)
        )
        return norm, halved

    for norm, halved in run_world(4, body, tmp_path):
        assert norm == pytest.approx(norm_of([first, second]), rel=1e-12)
        assert halved


def test_clipping_is_torchs() -> None:
    mine, theirs = gradients((4, 4), (3,)), gradients((4, 4), (3,))
    weights = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in theirs]
    for weight, gradient in zip(weights, theirs, strict=True):
        weight.grad = gradient
    torch.nn.utils.clip_grad_norm_(weights, 1.5)
    scale_gradients(mine, clip_factor(gradient_norm([Spread(mine)]), 1.5))
    for measured, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(measured, expected)
    assert clip_factor(0.5, 1.0) == 1
    assert clip_factor(100.0, 0) == 1
