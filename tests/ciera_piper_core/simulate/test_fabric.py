"""Links of a job: which flow takes which, and which of them can never matter."""

from __future__ import annotations

import numpy as np
import pytest

from ciera_piper_core.simulate import LINK_KINDS
from ciera_piper_core.simulate.fabric import Fabric
from ciera_piper_core.simulate.flows import schedule
from ciera_piper_core.simulate.fluid import predict
from tests.ciera_piper_core.simulate.machines import SMALL


def all_pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.nonzero(~np.eye(ranks, dtype=bool))
    return src.astype(np.int32), dst.astype(np.int32)


def fabric_of(name: str, ranks: int = 16) -> Fabric:
    machine = SMALL[name]
    return machine.fabric(machine.job(ranks))


def kinds(fabric: Fabric, src: int, dst: int) -> list[str]:
    links = fabric.paths(np.array([src]), np.array([dst]))[0]
    return [LINK_KINDS[fabric.kind[link]] for link in links if link >= 0]


def test_a_flow_inside_a_node_takes_ports_alone() -> None:
    assert kinds(fabric_of("dragonfly"), 0, 3) == ["intra-node"] * 2


def test_a_flow_between_nodes_takes_nics_and_the_network() -> None:
    fabric = fabric_of("dragonfly")
    assert kinds(fabric, 0, 4) == ["NIC"] * 2
    assert kinds(fabric, 0, 8) == ["NIC"] * 2 + ["switch"] * 2


def test_a_port_may_carry_the_network_too() -> None:
    fabric = fabric_of("shared port")
    assert kinds(fabric, 0, 3) == ["intra-node"] * 2
    assert kinds(fabric, 0, 4) == ["intra-node"] * 2 + ["NIC"] * 2
    assert kinds(fabric, 0, 8) == ["intra-node"] * 2 + ["NIC"] * 2 + ["switch"] * 2


def test_ranks_of_one_nic_share_its_link() -> None:
    fabric = fabric_of("switch")
    paths = fabric.paths(np.array([0, 1, 2]), np.array([4, 5, 4]))
    assert paths[0].tolist() == paths[1].tolist()
    assert paths[0, 0] != paths[2, 0]
    assert paths[0, 1] == paths[2, 1]
    assert fabric.lanes == 8


@pytest.mark.parametrize("name", SMALL)
def test_flows_of_the_same_ends_take_the_same_links_and_others_do_not(name: str) -> None:
    fabric = fabric_of(name)
    src, dst = all_pairs(16)
    ends = list(zip(*(end.tolist() for end in fabric.ends(src, dst)), strict=True))
    paths = [tuple(path) for path in fabric.paths(src, dst).tolist()]
    by_ends = dict(zip(ends, paths, strict=True))
    assert [by_ends[pair] for pair in ends] == paths
    assert len(set(by_ends.values())) == len(by_ends)


@pytest.mark.parametrize("name", SMALL)
def test_links_that_are_left_out_never_mattered(name: str) -> None:
    machine = SMALL[name]
    job = machine.job(16)
    matrix = np.random.default_rng(5).uniform(1, 9, (16, 16))
    plan = schedule("flat", job, matrix)
    pruned = predict(machine, plan).seconds
    whole = Fabric.without_idle_links
    try:
        Fabric.without_idle_links = lambda self: self  # type: ignore[method-assign]
        assert predict(machine, plan).seconds == pytest.approx(pruned, rel=1e-9)
    finally:
        Fabric.without_idle_links = whole  # type: ignore[method-assign]


def test_wide_links_are_left_out_and_narrow_ones_stay() -> None:
    src, dst = all_pairs(16)
    tapered, full = fabric_of("tapered").without_idle_links(), fabric_of("dragonfly").without_idle_links()
    assert "global" in {LINK_KINDS[kind] for kind in tapered.kind[np.unique(tapered.paths(src, dst))[1:]]}
    assert full.paths(src, dst).shape[1] == 4
    assert fabric_of("switch").without_idle_links().paths(src, dst).shape[1] == 2
