"""Tests of the emulated cluster as a machine."""

from __future__ import annotations

import pytest

from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.emulated import lab_machine


def test_a_lab_has_the_rate_that_programs_see() -> None:
    machine = lab_machine("nodes=4,ranks-per-node=2,rate=400mbit")
    assert machine.max_gpus == 8
    assert machine.node.gpus == 2
    assert machine.node.nic_bytes_s == pytest.approx(50e6 * 0.9564, rel=1e-3)
    # 2 ranks of a node send 6/8 of 4 MiB each over its link.
    seconds = float(UniformModel.build(machine, "flat", 8).at(4 << 20).seconds)
    assert seconds == pytest.approx(2 * 6 / 8 * (4 << 20) / 47.82e6, rel=1e-3)


def test_a_delay_is_read_over() -> None:
    assert lab_machine("nodes=2, ranks-per-node=3, rate=1gbit, delay=50us").node.gpus == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nodes=4",
        "nodes=4,ranks-per-node=2,rate=400",
        "nodes=x,ranks-per-node=2,rate=1gbit",
        "nodes=4,ranks-per-node=2,rate=1gbit,gpus=2",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="shape is written as nodes=4"):
        lab_machine(text)
