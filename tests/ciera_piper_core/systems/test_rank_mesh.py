"""Tests of the mesh of ranks: coordinates, members, groups and placements along its axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import Placement, even_placement
from ciera_piper_core.systems.rank_mesh import RankMesh
from ciera_piper_core.systems.system import Ranks
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def ranks_of(context: Context, placement: Placement) -> Ranks:
    assert context.group.data is not None
    return Ranks(context.group.data, placement, torch.device("cpu"))


def test_neighbours_on_the_last_axis_are_neighbours_in_rank(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[tuple[int, ...], ...]:
        mesh = RankMesh(ranks_of(context, even_placement(4, 2)), {"dp": 2, "ep": 2, "tp": 1})
        # Sums tell who is in a group.
        sums = []
        for axes in (("ep",), ("dp",), ("dp", "ep"), ("tp",)):
            one = torch.tensor([10**context.group.rank])
            dist.all_reduce(one, group=mesh.group(*axes))
            sums.append(int(one))
            assert dist.get_rank(mesh.group(*axes)) == mesh.index(*axes)
            assert dist.get_world_size(mesh.group(*axes)) == mesh.size(*axes)
        assert mesh.group("ep", "dp") is mesh.group("dp", "ep")
        assert mesh.coordinate("dp") == context.group.rank // 2
        with pytest.raises(ValueError, match="no axis 'pp'; it has: dp, ep, tp"):
            mesh.coordinate("pp")
        mesh.close()
        return tuple(sums), mesh.members("ep"), mesh.members("dp")

    assert run_world(4, body, tmp_path) == [
        ((11, 101, 1111, 1), (0, 1), (0, 2)),
        ((11, 1010, 1111, 10), (0, 1), (1, 3)),
        ((1100, 101, 1111, 100), (2, 3), (0, 2)),
        ((1100, 1010, 1111, 1000), (2, 3), (1, 3)),
    ]


def test_a_group_knows_where_its_ranks_are(tmp_path: Path) -> None:
    def body(context: Context) -> tuple[tuple[tuple[int, ...], ...], ...]:
        whole = Placement(((1, 0), (2, 3)), nic_of_rank=(0, 1, 2, 3))
        mesh = RankMesh(ranks_of(context, whole), {"dp": 2, "ep": 2})
        assert mesh.placement("ep").nic_of_rank == tuple(mesh.members("ep"))
        return mesh.placement("ep").nodes, mesh.placement("dp").nodes, mesh.placement("dp", "ep").nodes

    everywhere = (((0,), (1,)), ((1, 0), (2, 3)))
    assert run_world(4, body, tmp_path) == [
        (((1, 0),), *everywhere),
        (((1, 0),), *everywhere),
        (((0, 1),), *everywhere),
        (((0, 1),), *everywhere),
    ]


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        with pytest.raises(ValueError, match="dp=3, ep=1 make 3 ranks, not 2"):
            RankMesh(ranks_of(context, even_placement(2, 1)), {"dp": 3, "ep": 1})

    run_world(2, body, tmp_path)
