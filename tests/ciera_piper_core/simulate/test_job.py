"""Ranks on nodes: even, given, refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ciera_piper_core.simulate.job import Job


def test_even_nodes_and_a_last_one_that_is_not_full() -> None:
    job = Job.even(10, 4)
    assert job.node.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert job.local.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert (job.ranks, job.nodes, job.is_even) == (10, 3, False)
    assert job.ranks_of_node.tolist() == [4, 4, 2]
    assert Job.even(8, 4).is_even


def test_nodes_may_hold_any_ranks() -> None:
    job = Job.of_nodes([(3, 0), (2,), (1, 4)], nic_of_rank=[1, 0, 0, 0, 1])
    assert job.node.tolist() == [0, 2, 1, 0, 2]
    assert job.local.tolist() == [1, 0, 0, 0, 1]
    assert job.nic_of_rank is not None
    assert job.nic_of_rank.tolist() == [1, 0, 0, 0, 1]


def test_a_placement_of_the_algorithms_is_taken_as_it_is() -> None:
    placement = SimpleNamespace(nodes=((0, 1), (2, 3)), nic_of_rank=None)
    assert Job.from_placement(placement).node.tolist() == [0, 0, 1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [[(0, 1), (1, 2)], [(0,), (2,)], [(0, 1), ()]], ids=["twice", "missing", "empty"])
def test_each_rank_is_on_one_node(nodes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="each rank from 0 on must be on one node"):
        Job.of_nodes(nodes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Job.even(0, 2), "at least one rank"),
        (lambda: Job.even(2, 0), "at least one rank"),
        (lambda: Job(np.array([0, 2]), np.array([0, 0])), "without a gap"),
        (lambda: Job(np.array([0, 0]), np.array([0, 1]), np.array([0])), "1 NIC numbers for 2 ranks"),
        (lambda: Job(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)), "at least one rank"),
    ],
)
def test_nonsense_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
