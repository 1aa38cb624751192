"""Tests of ZeRO++'s collectives: sums and gathers within the bounds of their formulas, alike on all ranks, small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.allgather.fsdp_groups import GatheredParameter
from ciera_piper_core.alltoall.placement import Placement, even_placement
from ciera_piper_core.systems.quantisation import rounding_bound
from ciera_piper_core.systems.quantised_collectives import (
    GradientPart,
    NodeGroups,
    QuantisedAllGather,
    QuantisedReduceScatter,
    decode_gradients,
    encode_gradients,
    gradient_parts,
    reduction_bound,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

PARTS = (GradientPart(96, 32), GradientPart(8, 0), GradientPart(51, 20), GradientPart(1, 4))
VALUES = sum(part.values for part in PARTS)
PLACEMENTS = {
    "two nodes": even_placement(4, 2),
    "ranks not by node": Placement(((0, 2), (3, 1))),
    "one node": even_placement(4, 4),
    "four nodes": even_placement(4, 1),
}


def gradients(world: int, dtype: torch.dtype) -> torch.Tensor:
    """``(from, to, values)``: of very different sizes, as gradients of experts are."""
    generator = torch.Generator().manual_seed(5)
    sizes = torch.logspace(-3, 1, world)[:, None, None]
    return (torch.randn(world, world, VALUES, generator=generator) * sizes).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_reduce_scatter_is_within_its_bound(tmp_path: Path, placement: Placement, dtype: torch.dtype) -> None:
    everyone = gradients(4, dtype)

    def body(context: Context) -> tuple[float, float, int, int]:
        ranks = dist.group.WORLD
        nodes = NodeGroups(ranks, placement)
        reduce = QuantisedReduceScatter(PARTS, nodes)
        rank = context.site.rank
        out = torch.empty(VALUES, dtype=dtype)
        reduce(out, everyone[rank].flatten(), ranks, dist.ReduceOp.SUM)
        mine = everyone[:, rank].float()
        bound = reduction_bound(mine, placement, PARTS) + out.float().abs() * torch.finfo(dtype).eps
        error = (out.float() - mine.sum(0)).abs()
        assert (error <= bound).all(), f"rank {rank}: {(error / bound).max()}"
        mean = torch.empty_like(out)
        reduce(mean, everyone[rank].flatten(), ranks, dist.ReduceOp.AVG)
        assert torch.allclose(mean.float() * 4, out.float(), rtol=2 * torch.finfo(dtype).eps)
        # What is not quantised is exact but for the order of sums.
        vector = slice(96, 104)
        assert torch.allclose(
            out[vector].float(), mine.sum(0)[vector], rtol=1e-2 if dtype is not torch.float32 else 1e-5
        )
        nodes.close()
        return float(error.sum()), float(bound.sum()), reduce.sent_bytes, reduce.plain_bytes

    for error, bound, sent, plain in run_world(4, body, tmp_path):
        # A bound that is never near would hold for anything.
        assert error > bound / 20
        assert sent < plain


def test_vectors_and_matrices_are_told_apart_and_the_message_is_as_long_as_counted() -> None:
    parameters = [
        GatheredParameter("norm", (40,), 10, torch.float32),
        GatheredParameter("up", (8, 96, 40), 2 * 96 * 40, torch.float32),
        GatheredParameter("router", (8, 40), 80, torch.float32),
    ]
    parts = gradient_parts(parameters, world=4)
    assert [part.block for part in parts] == [0, 8 * 96 * 40 // 96, 8]
    assert [part.block for part in gradient_parts(parameters, 4, block=64)] == [0, 64, 64]
    rows = torch.randn(3, sum(part.values for part in parts))
    message = encode_gradients(rows, parts)
    assert message.shape == (3, 10 * 4 + (7680 // 2 + 4 * 24) + (80 // 2 + 4 * 10))
    assert (decode_gradients(message, parts, torch.float32)[:, :10] == rows[:, :10]).all()


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gather_is_within_its_bound_and_the_same_on_all_ranks(tmp_path: Path, dtype: torch.dtype, block: int) -> None:
    shards = torch.randn(3, 1001, generator=torch.Generator().manual_seed(2)).to(dtype)

    def body(context: Context) -> torch.Tensor:
        ranks = dist.group.WORLD
        gather = QuantisedAllGather(block)
        out = gather.allocate((3 * 1001,), dtype=dtype, device=torch.device("cpu"))
        mine = out.view(3, -1)[context.site.rank]
        mine.copy_(shards[context.site.rank])
        gather(out, mine, ranks)
        assert gather.sent_bytes < gather.plain_bytes * (0.7 if dtype is torch.bfloat16 else 0.4)
        return out.view(3, -1)

    first, *others = run_world(3, body, tmp_path)
    for other in others:
        assert torch.equal(first, other)
    used = block or 8000
    bound = rounding_bound(shards, used, 8) + shards.float().abs() * torch.finfo(dtype).eps
    assert ((first.float() - shards.float()).abs() <= bound).all()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ranks = dist.group.WORLD
        with pytest.raises(ValueError, match="nodes of one size"):
            NodeGroups(ranks, Placement(((0, 1), (2,))))
        nodes = NodeGroups(ranks, even_placement(3, 3))
        reduce = QuantisedReduceScatter(PARTS, nodes)
        with pytest.raises(ValueError, match="without gradient"):
            reduce(torch.empty(8), torch.empty(24), ranks, dist.ReduceOp.SUM)
        with pytest.raises(ValueError, match="sums or averages"):
            reduce(torch.empty(VALUES), torch.zeros(3 * VALUES), ranks, dist.ReduceOp.MAX)

    run_world(3, body, tmp_path)
