"""Tests of sequence-sharded expert blocks: ranks with the same tokens get the plain layer's results and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.moe.sequence_sharded import SequenceSharded, bounds
from tests.ciera_piper_core.moe.expert_worlds import (
    by_value,
    dispatcher,
    group_of,
    loaded,
    plain_layer,
    relative,
    subgroups,
    target_of,
    tokens_of,
)
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

WORLD, SAME = 4, 2


@pytest.mark.parametrize("sequences", [(2, 2), (1, 0)])
def test_results_and_gradients_are_the_plain_layers(tmp_path: Path, sequences: tuple[int, int]) -> None:
    # Neighbours have the same tokens; 12 tokens a sequence, or none at all.
    inputs = [tokens_of(pair, sequences=count) for pair, count in enumerate(sequences)]

    def body(context: Context) -> bytes:
        group, same = group_of(context), subgroups(WORLD, SAME)
        spread = SequenceSharded(plain_layer(), group, dispatcher("dedup", group, even_placement(WORLD, 2)), same)
        pair = context.group.rank // SAME
        x = inputs[pair].clone().requires_grad_()
        y = spread(x)
        (y * target_of(pair, y)).sum().backward()
        counts = spread.take_counts()
        dist.all_reduce(counts)
        experts = {name: weight.grad for name, weight in spread.experts.named_parameters()}
        return by_value((y.detach(), x.grad, spread.router.weight.grad, experts, spread.local_experts, counts))

    results = loaded(run_world(WORLD, body, tmp_path))
    plain = plain_layer()
    of_routers = []
    for pair, x in enumerate(inputs):
        x = x.clone().requires_grad_()
        y = plain(x)
        before = plain.router.weight.grad
        before = torch.zeros_like(plain.router.weight) if before is None else before.clone()
        (y * target_of(pair, y)).sum().backward()
        of_routers.append(plain.router.weight.grad - before)
        for rank in range(pair * SAME, (pair + 1) * SAME):
            if x.numel():
                assert relative(results[rank][0], y.detach()) < 1e-6
                assert relative(results[rank][1], x.grad) < 1e-6
                # Whole on every rank: nobody has to add them up over ranks with the same tokens.
                assert relative(results[rank][2], of_routers[pair]) < 1e-6
    for _, _, _, experts, held, counts in results:
        for name, gradient in experts.items():
            whole = plain.experts.get_parameter(name).grad
            assert relative(gradient, whole[list(held)]) < 1e-6
        # Each choice once, though two ranks have its token.
        assert int(counts.sum()) == sum(x.shape[0] * x.shape[1] for x in inputs) * 2


def test_parts_cover_all_rows_and_the_last_may_be_empty() -> None:
    assert [bounds(5, part, 4) for part in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]
    assert [bounds(0, part, 2) for part in range(2)] == [(0, 0), (0, 0)]
