"""Placements: given, from platforms, and as ranks find them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.alltoall.placement import (
    Placement,
    assembled,
    even_placement,
    local_rank,
    node_identity,
    placement_from_environment,
    placement_from_nodes,
    placement_from_platform,
)
from ciera_piper_core.platforms import load_platform
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_every_rank_has_its_place(node_of_rank: list[int]) -> None:
    placement = placement_from_nodes(node_of_rank)
    assert placement.world == len(node_of_rank)
    for rank in range(placement.world):
        assert placement.nodes[placement.node_of(rank)][placement.local_index(rank)] == rank
        for other in range(placement.world):
            together = placement.node_of(rank) == placement.node_of(other)
            assert together == (node_of_rank[rank] == node_of_rank[other])
    assert sorted(placement.order) == list(range(placement.world))
    assert placement.by_block == (node_of_rank == sorted(node_of_rank))


def test_even_nodes() -> None:
    placement = even_placement(6, 2)
    assert placement.nodes == ((0, 1), (2, 3), (4, 5))
    assert placement.even
    assert placement.ranks_per_node == 2
    assert placement.describe() == "3 nodes of 2 ranks (given)"
    assert Placement(((0, 1), (2,))).describe() == "2 nodes of 1 to 2 ranks (given)"
    assert not Placement(((0, 1), (2,))).even
    assert even_placement(1, 1).describe() == "1 node of 1 rank (given)"
    with pytest.raises(ValueError, match="7 ranks do not make whole nodes of 2"):
        even_placement(7, 2)


@pytest.mark.parametrize(
    ("nodes", "nics", "message"),
    [
        ((), None, "at least one node"),
        (((0,), ()), None, "a rank on each"),
        (((0, 1), (1,)), None, "each rank from 0 to 2 once"),
        (((0, 2),), None, "each rank from 0 to 1 once"),
        (((0, 1),), (0,), "1 NICs for 2 ranks"),
        (((0, 1),), (0, -1), "counted from 0"),
    ],
)
def test_what_is_no_placement_is_refused(
    nodes: tuple[tuple[int, ...], ...], nics: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Placement(nodes, nics)


def test_a_platform_says_how_many_share_a_node_and_a_nic() -> None:
    placement = placement_from_platform(load_platform("frontier"), 20)
    assert [len(node) for node in placement.nodes] == [8, 8, 4]
    assert placement.nic_of_rank is not None
    assert placement.nic_of_rank[:9] == (0, 0, 1, 1, 2, 2, 3, 3, 0)
    assert placement.source == "platform frontier"


def test_ranks_that_share_a_host_and_its_network_share_a_node(tmp_path: Path) -> None:
    def body(context: Context) -> Placement:
        group = dist.new_group([1, 2])
        if context.group.rank in (1, 2):
            assert placement_from_environment(group).nodes == ((0, 1),)
        assert context.group.data is not None
        return placement_from_environment(context.group.data)

    for placement in run_world(3, body, tmp_path):
        assert placement.nodes == ((0, 1, 2),)
        assert placement.source == "environment"


def test_local_ranks_decide_the_order_within_a_node() -> None:
    placement = assembled([("b", 1, ()), ("a", 0, ()), ("b", 0, ()), ("a", 1, ())])
    assert placement.nodes == ((2, 0), (1, 3))
    # One launcher's variable for all ranks, or one that is missing, says nothing.
    assert assembled([("a", 0, ()), ("a", 0, ())]).nodes == ((0, 1),)
    assert assembled([("a", 1, ()), ("a", None, ())]).nodes == ((0, 1),)


def test_ranks_spread_over_nics_that_are_equally_near() -> None:
    everyone = [("a", None, (0, 1))] * 4
    assert assembled(everyone).nic_of_rank == (0, 1, 0, 1)
    assert assembled([*everyone, ("b", None, ())]).nic_of_rank is None


def test_a_rail_has_the_same_nic_on_every_node() -> None:
    alike = [("a", 0, (1,)), ("a", 1, (0,)), ("b", 0, (1,)), ("b", 1, (0,))]
    assert assembled(alike).nodes == ((0, 1), (2, 3))
    crosswise = [("a", 0, (1,)), ("a", 1, (0,)), ("b", 0, (0,)), ("b", 1, (1,))]
    placement = assembled(crosswise)
    assert placement.nodes == ((1, 0), (2, 3))
    assert placement.nic_of_rank == (1, 0, 0, 1)


def test_launchers_variables() -> None:
    assert local_rank({"SLURM_LOCALID": "3", "LOCAL_RANK": "1"}) == 1
    assert local_rank({"SLURM_LOCALID": "3"}) == 3
    assert local_rank({"LOCAL_RANK": ""}) is None


def test_a_process_knows_its_node_again() -> None:
    assert node_identity() == node_identity()
    assert "net:" in node_identity()
