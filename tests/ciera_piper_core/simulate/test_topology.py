"""Networks: which links lie between two ranks, how wide they are, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ciera_piper_core.simulate import LINK_KINDS
from ciera_piper_core.simulate.topology import (
    Dragonfly,
    Entry,
    FatTree,
    Network,
    RailFatTree,
    Routes,
    SingleNode,
    SingleSwitch,
)

ENTRY = Entry(nics=2, nic_bytes_s=10.0)


def between(routes: Routes, sender: int, receiver: int) -> list[tuple[str, float]]:
    """Kind and rate of the links from one rank's unit to another's."""
    links = routes.table[routes.unit[sender], routes.unit[receiver]]
    return [(LINK_KINDS[routes.kind[link]], float(routes.bytes_s[link])) for link in links if link >= 0]


def routes_of(network: Network, nodes: int) -> Routes:
    """Two ranks a node, each with a NIC of its own."""
    ranks = np.arange(2 * nodes)
    return network.routes(ranks // 2, ranks % 2, ENTRY)


def test_adaptive_dragonfly_pools_links_of_switches_and_groups() -> None:
    network = Dragonfly(2, 3, 4, link_bytes_s=7.0, local_links=2, global_links=5)
    routes = routes_of(network, 18)
    local, out = 2 * 2 * 7.0, 3 * 5 * 7.0
    assert between(routes, 0, 3) == []
    assert between(routes, 0, 4) == [("switch", local)] * 2
    assert between(routes, 0, 30) == [("switch", local)] * 2 + [("global", out)] * 2
    assert network.taper_of(ENTRY) == pytest.approx(6 * 20 / out)
    assert network.max_nodes == 24


def test_a_taper_stands_for_the_global_links() -> None:
    routes = routes_of(Dragonfly(2, 3, 4, link_bytes_s=7.0, taper=1.5), 18)
    assert between(routes, 0, 30)[-1] == ("global", 6 * 20 / 1.5)


def test_one_group_of_one_switch_has_no_links() -> None:
    assert len(routes_of(Dragonfly(4, 1, 1, link_bytes_s=1.0), 4).kind) == 0


def test_links_out_are_not_links_in() -> None:
    routes = routes_of(Dragonfly(1, 4, 1, link_bytes_s=1.0), 4)
    there, back = routes.table[0, 1], routes.table[1, 0]
    assert not set(there.tolist()) & set(back.tolist())
    assert there[0] == routes.table[0, 2][0]
    assert there[1] == routes.table[3, 1][1]


def test_minimal_dragonfly_passes_the_switch_that_holds_the_link() -> None:
    """Groups of three switches: group 0 reaches group 2 from its switch 2, and enters it at switch 0."""
    network = Dragonfly(1, 3, 3, link_bytes_s=1.0, local_links=2, global_links=4, routing="minimal")
    routes = network.routes(np.arange(9), np.zeros(9, dtype=np.int64), ENTRY)
    local, out = ("switch", 2.0), ("global", 4.0)
    assert between(routes, 0, 1) == [local]
    assert between(routes, 0, 7) == [local, out, local]
    assert between(routes, 2, 6) == [out]
    assert between(routes, 2, 8) == [out, local]
    assert between(routes, 1, 6) == [local, out]
    # The way from switch 0 to switch 2 is the same link, whatever lies behind it.
    assert routes.table[0, 7][0] == routes.table[0, 2][0]
    assert len(np.unique(routes.table[routes.table >= 0])) == len(routes.kind)


def test_fat_tree_of_two_and_three_levels() -> None:
    two = routes_of(FatTree(2, leaf_taper=2.0), 8)
    assert between(two, 0, 3) == []
    assert between(two, 0, 15) == [("switch", 2 * 20 / 2)] * 2
    three = routes_of(FatTree(2, 2, pod_taper=4.0), 8)
    assert between(three, 0, 4) == [("switch", 40.0)] * 2
    assert between(three, 0, 15) == [("switch", 40.0)] * 2 + [("global", 2 * 40 / 4)] * 2


def test_rails_meet_in_the_spine_only() -> None:
    """Two units of two nodes; NIC 0 and NIC 1 of a node are on different leaves."""
    routes = routes_of(RailFatTree(2, unit_taper=2.0), 4)
    leaf, unit = ("switch", 2 * 10.0), ("global", 2 * 20 / 2)
    assert between(routes, 0, 2) == []
    assert between(routes, 0, 3) == [leaf, leaf]
    assert between(routes, 0, 4) == [leaf, leaf, unit, unit]
    assert (routes.domain[0], routes.domain[0]) == (routes.domain[2], routes.domain[0])
    assert routes.domain[0] != routes.domain[1]


@pytest.mark.parametrize("network", [SingleNode(), SingleSwitch()])
def test_without_a_network_no_link_lies_between(network: Network) -> None:
    routes = routes_of(network, 3)
    assert between(routes, 0, 5) == []
    assert len(set(routes.domain.tolist())) == 1


@pytest.mark.parametrize(
    ("network", "nodes"),
    [
        (SingleNode(), 1),
        (SingleSwitch(), math.inf),
        (FatTree(4), math.inf),
        (FatTree(4, nodes=9), 9),
        (RailFatTree(4, nodes=9), 9),
    ],
)
def test_networks_say_how_many_nodes_they_connect(network: Network, nodes: float) -> None:
    assert network.max_nodes == nodes
    assert network.name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dragonfly(0, 1, 1, 1.0), "nodes_per_switch must be above 0"),
        (lambda: Dragonfly(1, 1, 1, math.inf), "link_bytes_s must be above 0 and finite"),
        (lambda: Dragonfly(1, 1, 1, 1.0, taper=0.0), "taper must be above 0"),
        (lambda: Dragonfly(1, 1, 1, 1.0, routing="valiant"), "adaptive or minimal, not 'valiant'"),  # type: ignore[arg-type]
        (lambda: Dragonfly(1, 1, 1, 1.0, routing="minimal", taper=2.0), "leave it out"),
        (lambda: FatTree(0), "nodes_per_leaf must be above 0"),
        (lambda: FatTree(1, -1), "must not be negative"),
        (lambda: RailFatTree(1, leaf_taper=-1), "leaf_taper must be above 0"),
        (lambda: RailFatTree(1, nodes=-1), "must not be negative"),
    ],
)
def test_impossible_networks_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
