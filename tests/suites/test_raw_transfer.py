"""Raw transfers: who is whose neighbour, and what capacity comes out for each kind of placement."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bench.suite import Context, Site
from suites import raw_transfer
from suites.raw_transfer import placement_capacity
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from suites.placement_bound import Capacity


@pytest.fixture(autouse=True)
def _small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to run every line; the ranks are forked, so they see it too."""
    monkeypatch.setattr(raw_transfer, "ROUNDS", 2)
    monkeypatch.setattr(raw_transfer, "NODE_ROUND_BYTES", (4 << 20) + 1000)


def placed(nodes: list[int], link: int | None = None) -> list[Site]:
    """A site for each rank on the node that is given for it."""
    return [
        Site(
            rank=rank,
            world=len(nodes),
            local_rank=nodes[:rank].count(node),
            ranks_per_node=max(nodes.count(each) for each in nodes),
            node=node,
            nodes=len(set(nodes)),
            scope="lab" if link else "loopback",
            node_link_bits_per_s=link,
        )
        for rank, node in enumerate(nodes)
    ]


def capacities(nodes: list[int], folder: Path, link: int | None = None) -> list[Capacity]:
    return run_world(len(nodes), placement_capacity, folder, placed(nodes, link))


@pytest.mark.parametrize(
    ("nodes", "within_node", "expected"),
    [
        ([0, 0, 0], True, [(1, 2), (2, 0), (0, 1)]),
        ([0, 0, 1, 1], True, [(1, 1), (0, 0), (3, 3), (2, 2)]),
        ([0, 0, 1, 1], False, [(2, 2), (3, 3), (0, 0), (1, 1)]),
        ([0, 1, 0], True, [(2, 2), None, (0, 0)]),
        ([0, 1, 0], False, [(1, 1), (0, 0), None]),
    ],
)
def test_neighbours(nodes: list[int], within_node: bool, expected: list[tuple[int, int] | None]) -> None:
    assert [raw_transfer._neighbours(nodes, rank, within_node) for rank in range(len(nodes))] == expected


@pytest.mark.parametrize("world", [2, 3])
def test_one_host_has_a_fabric_and_no_link(world: int, tmp_path: Path) -> None:
    found = capacities([0] * world, tmp_path)
    assert found == [found[0]] * world, "all ranks must agree"
    assert 1e6 < found[0].fabrics < 1e13
    assert (found[0].node_link, found[0].nodes, found[0].rank_port) == (None, 1, None)


def test_a_declared_link_is_taken_as_it_is(tmp_path: Path) -> None:
    found = capacities([0, 0, 1, 1], tmp_path, link=10**9)
    assert found == [found[0]] * 4
    assert (found[0].node_link, found[0].nodes, found[0].declared) == (1.25e8, 2, True)
    assert found[0].fabrics > 1e6


def test_an_undeclared_link_is_measured_over_the_data_group(tmp_path: Path) -> None:
    found = capacities([0, 0, 1, 1], tmp_path)
    assert found == [found[0]] * 4
    assert found[0].node_link is not None
    assert 1e6 < found[0].node_link < 1e13
    assert not found[0].declared


def test_uneven_nodes_and_lone_ranks_take_part(tmp_path: Path) -> None:
    found = capacities([0, 0, 1], tmp_path)
    assert found[0].fabrics > 1e6
    assert found[0].node_link is not None
    assert found[0].node_link > 1e6


def test_nodes_of_one_rank_have_no_fabric(tmp_path: Path) -> None:
    found = capacities([0, 1], tmp_path, link=10**9)
    assert (found[0].fabrics, found[0].node_link) == (0, 1.25e8)


@pytest.mark.parametrize(("nodes", "equal"), [([0, 0], True), ([0, 1], False)])
def test_a_nodes_time_is_its_slowest_ranks(nodes: list[int], equal: bool, tmp_path: Path) -> None:
    def body(context: Context) -> list[float]:
        return raw_transfer._best_round(context, lambda: time.sleep(0.05 * context.group.rank), 1000)

    for first, second in run_world(2, body, tmp_path, placed(nodes)):
        assert second <= 1000 / 0.05
        assert (first == second) is equal


def test_it_is_measured_once_for_each_group(tmp_path: Path) -> None:
    def twice(context: Context) -> bool:
        return placement_capacity(context) is placement_capacity(context)

    assert run_world(2, twice, tmp_path) == [True, True]
