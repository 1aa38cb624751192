"""Named terms: off by default, in range, and honest about where they are from."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.terms import MEANINGS, UNITS, Terms

MEASURED, ASSUMED = Term("measured", "run 7"), Term("assumed", "a guess")


def test_a_fresh_one_counts_nothing() -> None:
    terms = Terms()
    assert terms.counted == terms.measured == terms.assumed == ()
    assert terms.incast.factor(1e9) == terms.rail_incast.factor(1e9) == 1


def test_a_fitted_term_is_counted_as_measured() -> None:
    terms = Terms().with_value("message_inter_s", 3e-6, MEASURED).with_value("copy_bytes_s", 1e9, ASSUMED)
    assert terms.measured == ("message_inter_s",)
    assert terms.assumed == ("copy_bytes_s",)
    assert terms.how("message_inter_s") is MEASURED
    assert terms.how("phase_start_s").text == "not counted"
    assert "message_inter_s: 3e-06 s: measured: run 7" in terms.describe()


def test_half_an_incast_is_none() -> None:
    assert Terms(peers_that_halve=10).counted == ()
    assert Terms(incast_most=4).counted == ()
    assert Terms(peers_that_halve=10, incast_most=4).counted == ("peers_that_halve", "incast_most")
    assert Terms(rail_peers_that_halve=10, rail_incast_most=4).rail_incast.factor(20) == 3


def test_every_term_has_a_unit_and_a_meaning() -> None:
    assert list(UNITS) == list(MEANINGS)
    assert {each.name for each in fields(Terms)} == {*UNITS, "known"}
    assert len(Terms().describe()) == len(UNITS)


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_impossible_values_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"the term {name} must be"):
        Terms().with_value(name, value, ASSUMED)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_an_incast_never_speeds_up(value: float) -> None:
    with pytest.raises(ValueError, match="incast_most must be at least 1"):
        Terms(incast_most=value)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown term 'latency'; known: message_intra_s"):
        Terms(known={"latency": ASSUMED})
    with pytest.raises(ValueError, match="unknown term 'latency'"):
        Terms().with_value("latency", 1.0, ASSUMED)
