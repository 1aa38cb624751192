"""Gradients through an exchange: every rank takes part in both directions, whatever it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.autograd import differentiable, planned
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.ranges import recording
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context

NAMES = ("flat", "two_phase", "halo_v0", "halo_v1", "halo_v2")


@pytest.mark.parametrize("name", NAMES)
def test_gradients_return_by_the_reverse_exchange(name: str, tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        algorithm = make_all_to_all(name, group, even_placement(4, 2))
        # Rank i sends i rows to each: rank 0 none at all.
        send = torch.full((4 * rank, 3), float(rank), dtype=torch.float64, requires_grad=True)
        out = differentiable(algorithm, send, [rank] * 4, [0, 1, 2, 3])
        assert out.dtype == torch.float64
        assert out[:, 0].tolist() == [1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
        with recording() as spans:
            (out * (rank + 1)).sum().backward()
        assert "alltoall.counts" not in [span.name for span in spans], "counts are known from the way there"
        assert send.grad is not None
        assert send.grad[:, 0].tolist() == [float(peer + 1) for peer in range(4) for _ in range(rank)]

    run_world(4, body, tmp_path)


def test_a_rank_without_a_gradient_of_its_own_takes_part(tmp_path: Path) -> None:
    def body(context: Context) -> float | None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        algorithm = make_all_to_all("halo_v1", group, even_placement(4, 2))
        send = torch.ones(4, 1, requires_grad=rank != 2)
        differentiable(algorithm, send, None, None).sum().backward()
        return None if send.grad is None else float(send.grad.sum())

    assert run_world(4, body, tmp_path) == [4.0, 4.0, None, 4.0]


def test_gradients_may_be_of_any_layout_and_none_are_recorded_where_none_are_wanted(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        group = context.group.data
        assert group is not None
        algorithm = make_all_to_all("two_phase", group, even_placement(4, 2))
        send = torch.arange(8.0).view(2, 4).t().requires_grad_()
        out = differentiable(algorithm, send, None, None)
        # The gradient of a sum is one number, expanded.
        out.sum().backward()
        assert torch.equal(send.grad, torch.ones(4, 2))
        with torch.no_grad():
            assert not differentiable(algorithm, send, None, None).requires_grad
        assert not differentiable(algorithm, torch.ones(4, dtype=torch.int64), None, None).requires_grad

    run_world(4, body, tmp_path)


def test_a_plan_serves_many_exchanges(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        algorithm = make_all_to_all("halo_v2", group, even_placement(4, 2))
        plan = algorithm.plan([1, 2, 0, 1], [[1, 2, 0, 1][rank]] * 4)
        with recording() as spans:
            for number in range(3):
                out = planned(algorithm, plan, torch.full((4, 1), 10 * rank + number))
                expected = [10 * peer + number for peer in range(4) for _ in range([1, 2, 0, 1][rank])]
                assert out.flatten().tolist() == expected
        assert "alltoall.counts" not in [span.name for span in spans]

    run_world(4, body, tmp_path)


def test_gradients_agree_with_finite_differences(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        rank, group = context.group.rank, context.group.data
        assert group is not None
        algorithm = make_all_to_all("halo_v1", group, even_placement(4, 2))
        send = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(rank), requires_grad=True)
        # All ranks perturb the same element at the same time; only a rank's own loss is looked at, so
        # its own rows to itself are what it sees.
        loss = (differentiable(algorithm, send, None, None) ** 2)[rank].sum()
        loss.backward()
        assert send.grad is not None
        assert torch.allclose(send.grad[rank], 2 * send[rank].detach())

    run_world(4, body, tmp_path)
