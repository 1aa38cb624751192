"""Machines: jobs that fit, NICs and how GPUs share them, terms that can be switched off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.job import Job
from ciera_piper_core.simulate.machine import Machine, Node
from ciera_piper_core.simulate.terms import Terms
from ciera_piper_core.simulate.topology import FatTree, SingleNode, SingleSwitch
from tests.ciera_piper_core.simulate.machines import NODE, SMALL


def test_nodes_are_filled_one_after_the_other() -> None:
    machine = SMALL["switch"]
    assert machine.job(10).ranks_of_node.tolist() == [4, 4, 2]
    assert machine.job(10, 3).ranks_of_node.tolist() == [3, 3, 3, 1]
    assert machine.job(2).ranks_of_node.tolist() == [2]


@pytest.mark.parametrize(
    ("machine", "ranks", "per_node", "message"),
    [
        (SMALL["switch"], 4, 5, "has 1 to 4 GPUs a node, not 5"),
        (SMALL["switch"], 0, None, "GPUs a node"),
        (Machine("tiny", NODE, SingleSwitch(), max_gpus=8), 9, None, "has 8 GPUs on single switch, no place for 9"),
        (Machine("one", NODE, SingleNode()), 5, None, "has 4 GPUs on single node, no place for 5 ranks"),
        (Machine("three", NODE, FatTree(2, nodes=3)), 4, 1, "no place for 4 ranks with 1 a node"),
    ],
)
def test_what_does_not_fit_is_refused(machine: Machine, ranks: int, per_node: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine.job(ranks, per_node)


def test_gpus_share_nics_in_order_or_as_given() -> None:
    assert NODE.nic(np.arange(4)).tolist() == [0, 0, 1, 1]
    assert replace(NODE, nic_of_gpu=(1, 0, 0, 0)).nic(np.arange(4)).tolist() == [1, 0, 0, 0]
    assert replace(NODE, nics=8).nic(np.arange(4)).tolist() == [0, 2, 4, 6]


def test_shared_nics_lose_what_the_term_says() -> None:
    node = replace(NODE, nic_of_gpu=(0, 0, 0, 1))
    machine = Machine("m", node, SingleSwitch(), Terms(nic_sharing_loss=0.25))
    fabric = machine.fabric(machine.job(8))
    nics = fabric.bytes_s[fabric.first_nic : fabric.first_network]
    assert nics.tolist() == [10 / 1.5, 10.0] * 4
    assert machine.fluid.fabric(machine.job(8)).bytes_s[fabric.first_nic] == 10


def test_a_job_may_say_which_nic_each_rank_uses() -> None:
    machine = SMALL["switch"]
    fabric = machine.fabric(Job.of_nodes([(0, 1), (2, 3)], nic_of_rank=[0, 1, 1, 1]))
    assert fabric.lane.tolist() == [0, 1, 2, 2]
    with pytest.raises(ValueError, match="NICs 0 to 1, not 2"):
        machine.fabric(Job.of_nodes([(0, 1)], nic_of_rank=[0, 2]))


def test_a_job_that_does_not_fit_has_no_fabric() -> None:
    with pytest.raises(ValueError, match="has 4 GPUs a node, not 5"):
        SMALL["switch"].fabric(Job.even(5, 5))
    with pytest.raises(ValueError, match="2 nodes, but the network of 'one' has 1"):
        Machine("one", NODE, SingleNode()).fabric(Job.even(8, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 0}, "gpus must be above 0"),
        ({"nic_bytes_s": float("inf")}, "nic_bytes_s must be above 0 and finite"),
        ({"nic_of_gpu": (0, 1)}, "must give 4 NIC numbers from 0 to 1"),
        ({"nic_of_gpu": (0, 1, 2, 0)}, "must give 4 NIC numbers from 0 to 1"),
    ],
)
def test_impossible_nodes_are_refused(changes: dict[str, object], message: str) -> None:
    values = {"gpus": 4, "port_bytes_s": 1.0, "nics": 2, "nic_bytes_s": 1.0, **changes}
    with pytest.raises(ValueError, match=message):
        Node(**values)  # type: ignore[arg-type]


def test_it_says_how_everything_is_known() -> None:
    machine = Machine("m", NODE, SingleSwitch(), known={"topology": Term("specified", "a drawing")})
    lines = machine.describe()
    assert lines[0] == "network: single switch"
    assert "topology: specified: a drawing" in lines
    with pytest.raises(ValueError, match="unknown 'weather'"):
        Machine("m", NODE, SingleSwitch(), known={"weather": Term("assumed", "sun")})
    with pytest.raises(ValueError, match="max_gpus must be at least 1"):
        Machine("m", NODE, SingleSwitch(), max_gpus=0)
