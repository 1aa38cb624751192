"""Machines by name, from files of users, and from what the planner knows; faults named."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ciera_piper_core.platforms import load_platform
from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.emulated import EXAMPLE, lab_machine
from ciera_piper_core.simulate.machine import BANDWIDTHS
from ciera_piper_core.simulate.platforms import NETWORKS, from_platform, from_table, load_machine, names
from ciera_piper_core.simulate.terms import MEANINGS, UNITS
from ciera_piper_core.simulate.topology import Dragonfly, Entry, FatTree, RailFatTree, SingleSwitch

PAGE = Path(__file__).resolve().parents[3] / "docs/alltoall.md"

NODE = {"gpus": 4, "port_bytes_s": 3e10, "nics": 2, "nic_bytes_s": 1e10}
COMPLETE: dict[str, Any] = {"node": NODE, "network": {"kind": "fat tree", "nodes_per_leaf": 4}}


@pytest.mark.parametrize("name", ["frontier", "dgx-a100", "dgx-h200", "cpu-node"])
def test_built_in_machines_are_the_planners(name: str) -> None:
    machine, platform = load_machine(name), load_platform(name)
    assert name in names()
    assert machine.max_gpus == platform.max_gpus
    assert machine.node.nic_bytes_s == platform.nic_bytes_s * platform.nic_share
    assert machine.node.port_bytes_s == platform.intra_node_bytes_s * platform.intra_node_share
    assert set(machine.known) == set(BANDWIDTHS)
    assert machine.terms.counted
    assert machine.terms.measured == ()
    for term in machine.terms.counted:
        assert machine.terms.how(term).text != "not counted"


def test_frontier_is_a_dragonfly_of_four_nodes_a_switch() -> None:
    machine = load_machine("frontier")
    network = machine.network
    assert isinstance(network, Dragonfly)
    assert (network.nodes_per_switch, network.switches_per_group, network.routing) == (4, 32, "adaptive")
    assert network.taper_of(Entry(4, 20e9)) == 1.753
    assert network.max_nodes * machine.node.gpus >= machine.max_gpus


def test_the_others_have_their_networks() -> None:
    assert isinstance(load_machine("dgx-a100").network, FatTree)
    assert isinstance(load_machine("dgx-h200").network, RailFatTree)
    assert isinstance(load_machine("cpu-node").network, SingleSwitch)


PEAKS = {16: 1.80, 32: 8.06, 64: 4.94, 128: 5.56, 256: 4.40, 512: 3.54}
"""Piper's Fig 8, by nodes."""


def speedups(nodes: int) -> list[float]:
    """Of the best variant over the flat algorithm, for 2 MiB a rank to 4 GiB."""
    sizes = [2.0**power for power in range(21, 33)]
    machine = load_machine("frontier")
    times = {
        name: UniformModel.build(machine, name, 8 * nodes).at(sizes).seconds  # type: ignore[arg-type]
        for name in ("flat", "halo_v0", "halo_v1", "halo_v2")
    }
    best = [min(row) for row in zip(*(times[name] for name in times if name != "flat"), strict=True)]
    return [float(flat / other) for flat, other in zip(times["flat"], best, strict=True)]


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_frontier_is_on_par_up_to_eight_nodes(nodes: int) -> None:
    assert max(abs(speedup - 1) for speedup in speedups(nodes)) <= 0.25


def test_frontier_gains_from_16_nodes_up_as_much_as_the_paper_on_the_mean() -> None:
    peaks = {nodes: max(speedups(nodes)) for nodes in PEAKS}
    assert min(min(speedups(nodes)) for nodes in PEAKS) > 1.1
    assert max(peaks.values()) < 9
    assert peaks[16] == pytest.approx(PEAKS[16], rel=0.1)
    ratios = [math.log(peaks[nodes] / PEAKS[nodes]) for nodes in PEAKS]
    assert abs(sum(ratios) / len(ratios)) < math.log(1.25)


def test_a_complete_file_needs_no_base(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        """
        max_gpus = 64
        [node]
        gpus = 4
        port_bytes_s = 3e10
        nics = 2
        nic_bytes_s = 1e10
        nic_of_gpu = [0, 1, 1, 0]
        [network]
        kind = "dragonfly"
        nodes_per_switch = 2
        switches_per_group = 4
        groups = 2
        link_bytes_s = 1e10
        routing = "minimal"
        [terms]
        message_inter_s = { value = 3e-6, source = "measured: ping-pong of 8 bytes" }
        """
    )
    machine = load_machine(str(path))
    assert machine.name == "lab"
    assert machine.max_gpus == 64
    assert machine.node.nic_of_gpu == (0, 1, 1, 0)
    assert isinstance(machine.network, Dragonfly)
    assert machine.terms.measured == ("message_inter_s",)
    assert machine.known["topology"].status == "specified"


def test_a_base_fills_what_is_not_given() -> None:
    terms = {"phase_start_s": {"value": 5e-6, "source": "measured: here"}}
    machine = from_table("mine", {"base": "frontier", "node": {"nics": 8}, "terms": terms})
    frontier = load_machine("frontier")
    assert (machine.node.nics, machine.node.gpus) == (8, 8)
    assert machine.network == frontier.network
    assert machine.terms.message_inter_s == frontier.terms.message_inter_s
    assert machine.terms.measured == ("phase_start_s",)
    assert machine.known == frontier.known


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": {}}, "unknown key 'nodes'; known: base, max_gpus"),
        ({"network": None}, r"needs \[node\] and \[network\], or a base"),
        ({"network": {"kind": "torus"}}, "network kind must be one of dragonfly, fat tree"),
        ({"network": {"kind": "fat tree"}}, "'m': network needs nodes_per_leaf"),
        ({"network": {"kind": "single switch", "nodes": 3}}, "has no 'nodes'; it takes nothing but its kind"),
        ({"network": {"kind": "fat tree", "nodes_per_leaf": 4, "leafs": 3}}, "network has no 'leafs'; known: nodes"),
        ({"network": {"kind": "fat tree", "nodes_per_leaf": 0}}, "'m': FatTree: nodes_per_leaf must be above 0"),
        (
            {"network": {"kind": "fat tree", "nodes_per_leaf": "four"}},
            "'m': network: nodes_per_leaf must be a whole number, not 'four'",
        ),
        ({"network": {"kind": "fat tree", "nodes_per_leaf": 4, "leaf_taper": True}}, "leaf_taper must be a number"),
        ({"network": "fat tree"}, "network must be a table, not 'fat tree'"),
        ({"name": 3}, "name must be text, not 3"),
        ({"max_gpus": 8.5}, "max_gpus must be a whole number, not 8.5"),
        ({"max_gpus": True}, "max_gpus must be a whole number, not True"),
        ({"node": {**NODE, "gpu": 3}}, "node has no 'gpu'"),
        ({"node": {**NODE, "gpus": 0}}, "'m': node: gpus must be above 0"),
        ({"node": {**NODE, "gpus": 8.5}}, "'m': node: gpus must be a whole number, not 8.5"),
        ({"node": {**NODE, "gpus": "8"}}, "'m': node: gpus must be a whole number, not '8'"),
        ({"node": {**NODE, "gpus": True}}, "'m': node: gpus must be a whole number, not True"),
        ({"node": {**NODE, "port_carries_network": 1}}, "port_carries_network must be true or false, not 1"),
        ({"node": {**NODE, "nic_of_gpu": [0, "1", 0, 1]}}, "must give 4 NIC numbers from 0 to 1"),
        ({"node": {**NODE, "nic_of_gpu": 1}}, "must give 4 NIC numbers from 0 to 1"),
        ({"node": {"gpus": 4}}, "'m': node needs port_bytes_s"),
        ({"terms": {"latency": {"value": 1, "source": "assumed: x"}}}, "unknown term 'latency'"),
        ({"terms": {"phase_start_s": 1.0}}, "phase_start_s needs a value and a source"),
        ({"terms": {"phase_start_s": {"value": 1, "source": "a guess"}}}, "must begin with measured, specified or"),
        ({"terms": {"phase_start_s": {"value": "x", "source": "assumed: x"}}}, "phase_start_s .* number, not 'x'"),
        ({"terms": {"phase_start_s": {"value": -1, "source": "assumed: x"}}}, "'m': the term phase_start_s must be"),
        ({"base": "atlantis"}, "neither a built-in platform"),
        ({"base": "mine.toml"}, "base is a built-in platform or a profile, not a machine file"),
    ],
)
def test_faults_of_a_file_are_named(change: dict[str, Any], message: str) -> None:
    table = {key: value for key, value in {**COMPLETE, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        from_table("m", table)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[node")
    for path in (broken, tmp_path / "missing.toml"):
        with pytest.raises(ValueError, match=r"machine file .* cannot be read"):
            load_machine(str(path))
    with pytest.raises(ValueError, match=r"cannot be read: No such file or directory$"):
        load_machine(str(tmp_path / "missing.toml"))
    with pytest.raises(ValueError, match="neither a built-in platform"):
        load_machine("atlantis")


def test_a_machine_whose_network_nobody_measured_has_one_node() -> None:
    alone = replace(load_platform("cpu-node"), nic_bytes_s=0.0)
    machine = from_platform(alone)
    assert machine.network.max_nodes == 1
    with pytest.raises(ValueError, match="no place for 4 ranks"):
        machine.job(4)


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        ("dragonfly", Dragonfly),
        ("fat-tree", FatTree),
        ("fat-tree, rail optimised", RailFatTree),
        ("a ring", SingleSwitch),
    ],
)
def test_a_platforms_few_numbers_make_a_network(topology: str, kind: type) -> None:
    platform = replace(
        load_platform("cpu-node"), topology=topology, single_hop_nodes=4, group_nodes=8, taper=2.0, max_gpus=128
    )
    network = from_platform(platform).network
    assert isinstance(network, kind)
    assert kind in NETWORKS.values()
    if isinstance(network, FatTree):
        assert (network.leaves_per_pod, network.pod_taper) == (2, 2.0)


def test_the_page_explains_each_term_and_its_machine_file_can_be_read() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, unit in UNITS.items():
        assert f"| `{name}` | {unit} | {MEANINGS[name]} |" in page
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    machine = from_table("page", tomllib.loads(text))
    assert machine.name == "our-cluster"
    assert machine.terms.measured == ("message_inter_s",)


def test_the_shape_of_a_lab_is_a_machine() -> None:
    assert load_machine(EXAMPLE) == lab_machine(EXAMPLE)
    with pytest.raises(ValueError, match="shape is written as nodes=4"):
        load_machine("nodes=4,ranks-per-node=2")
