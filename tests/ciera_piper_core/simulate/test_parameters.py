"""Tests of the numbers that a fit moves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.machine import Machine, Node
from ciera_piper_core.simulate.parameters import PARAMETERS, UNCAPPED, uncapped, with_numbers, with_sources
from ciera_piper_core.simulate.terms import UNITS, Terms
from ciera_piper_core.simulate.topology import SingleSwitch

TERMS = Terms(
    message_intra_s=1e-6,
    message_inter_s=2e-6,
    phase_start_s=3e-6,
    nic_sharing_loss=0.25,
    peers_that_halve=128.0,
    incast_most=5.0,
    rail_peers_that_halve=512.0,
    rail_incast_most=2.0,
    copy_bytes_s=4e9,
    overlap_share=0.75,
)
MACHINE = Machine("m", Node(2, 1e9, 1, 1e8), SingleSwitch(), TERMS)


def test_numbers_go_there_and_back() -> None:
    numbers = {each.name: each.of(MACHINE) for each in PARAMETERS}
    back = with_numbers(replace(MACHINE, node=Node(2, 1.0, 1, 1.0), terms=replace(Terms(), **vars(TERMS))), numbers)
    for each in PARAMETERS:
        of, wanted = (back.node, MACHINE.node) if each.where == "node" else (back.terms, MACHINE.terms)
        assert getattr(of, each.name) == pytest.approx(getattr(wanted, each.name)), each.name


def test_numbers_of_nothing_are_nought() -> None:
    nothing = replace(MACHINE, terms=Terms())
    assert all(each.of(nothing) == 0 for each in PARAMETERS if each.where == "terms")
    assert with_numbers(MACHINE, {each.name: 0.0 for each in PARAMETERS if each.low == 0}).terms.counted == ()


def test_every_parameter_is_of_the_node_or_a_term() -> None:
    for each in PARAMETERS:
        owner = MACHINE.node if each.where == "node" else MACHINE.terms
        assert hasattr(owner, each.name)
        assert (each.name in UNITS) == (each.where == "terms")
        assert each.low <= each.of(MACHINE) <= each.high


def test_an_incast_that_is_not_counted_gets_room() -> None:
    free = uncapped(replace(MACHINE, terms=Terms()))
    assert (free.terms.incast_most, free.terms.rail_incast_most) == (UNCAPPED, UNCAPPED)
    assert free.terms.peers_that_halve == math.inf
    assert uncapped(MACHINE).terms == TERMS


def test_sources_are_told_apart() -> None:
    how = Term("measured", "here")
    told = with_sources(MACHINE, {"nic_bytes_s": how, "port_bytes_s": how, "message_inter_s": how})
    assert told.known == {"inter_node": how, "intra_node": how}
    assert told.terms.how("message_inter_s") == how
    assert told.terms.how("message_intra_s").status == "assumed"


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap_share must be from 0 to 1"):
        with_numbers(MACHINE, {"overlap_share": 1.5})
