"""The mesh numbers ranks as a plan says, and has no place without a rank."""

from __future__ import annotations

import pytest

from ciera_piper_core.pipeline.mesh import MeshShape


def test_expert_groups_are_neighbours_and_stages_farthest_apart() -> None:
    shape = MeshShape(pp=2, dp=2, ep=3)
    assert [shape.rank(0, 0, ep) for ep in range(3)] == [0, 1, 2]
    assert shape.rank(0, 1, 0) == 3
    assert shape.rank(1, 0, 0) == 6
    assert (shape.world, shape.data_width, list(shape.sizes)) == (12, 6, ["pp", "dp", "ep"])


@pytest.mark.parametrize("shape", [MeshShape(2, 3, 4), MeshShape(1, 1, 1), MeshShape(3, 1, 2)])
def test_every_rank_has_a_place_of_its_own(shape: MeshShape) -> None:
    places = [shape.coordinates(rank) for rank in range(shape.world)]
    assert len(set(places)) == shape.world
    assert [shape.rank(*place) for place in places] == list(range(shape.world))


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="dp must be"):
        MeshShape(1, 0, 1)
