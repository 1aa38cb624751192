"""Tests of measured collectives: which curve counts, and the link that a curve implies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ciera_piper_core.platforms.collective_curves import CollectiveCurve, CollectiveCurves
from ciera_piper_core.platforms.tables import SecondsCurve

ALPHA, RATE = 1e-6, 10e9
SIZES = np.array([1.0, 1e5, 1e7, 1e10])


def curve(
    op: str, ranks: int, nodes: int = 1, algorithm: str = "library", per_node_share: float = 1.0
) -> CollectiveCurve:
    """One whose time follows the textbook's formula, with the rate of each rank's link."""
    steps = {"all_reduce": 2, "send_recv": 0}.get(op, 1) * (ranks - 1)
    seconds = steps * ALPHA + steps / ranks * SIZES / (RATE * per_node_share)
    if op == "send_recv":
        seconds = ALPHA + SIZES / RATE
    return CollectiveCurve(op, algorithm, ranks, nodes, SecondsCurve(SIZES, seconds), f"{op} {ranks} on {nodes}")


@pytest.mark.parametrize("op", ["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "send_recv"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_link_of_a_textbook_curve_is_its_own(op: str, ranks: int) -> None:
    link = CollectiveCurves((curve(op, ranks),)).link(op, crosses=False)
    assert link is not None
    assert link.message_seconds == pytest.approx(ALPHA, rel=1e-3)
    assert link.bytes_s == pytest.approx(RATE, rel=1e-3)


def test_an_exchange_over_nodes_gives_the_nics_rate() -> None:
    """8 ranks on 2 nodes: 4 of 7 peers are elsewhere, 4 ranks share the node's 2 NICs."""
    link = CollectiveCurves((curve("all_to_all", 8, nodes=2),), nics_per_node=2).link("all_to_all", crosses=True)
    assert link is not None
    assert link.bytes_s == pytest.approx(RATE * 4 / 7 * 4 / 2, rel=1e-3)


def test_only_exact_ranks_and_nodes_are_found() -> None:
    curves = CollectiveCurves((curve("all_gather", 4), curve("all_gather", 4, nodes=2)))
    found = curves.find("all_gather", 4, 2)
    assert found is not None
    assert found.nodes == 2
    assert curves.find("all_gather", 3, 1) is None
    assert curves.find("all_reduce", 4, 1) is None


def test_an_algorithm_has_its_own_curves() -> None:
    curves = CollectiveCurves((curve("all_to_all", 8, algorithm="halo"), curve("all_to_all", 8, algorithm="flat")))
    flat, halo = (curves.find("all_to_all", 8, 1, name) for name in ("flat", "halo"))
    assert flat is not None
    assert halo is not None
    assert (flat.algorithm, halo.algorithm) == ("flat", "halo")
    assert curves.find("all_to_all", 8, 1, "two_phase") is None


def test_the_largest_group_speaks_for_others_and_the_first_of_equals_counts() -> None:
    curves = CollectiveCurves(
        (curve("all_gather", 2), curve("all_gather", 8), curve("all_gather", 8, algorithm="flat"))
    )
    largest = curves.representative("all_gather", crosses=False)
    assert largest is not None
    assert (largest.ranks, largest.algorithm) == (8, "library")
    assert curves.representative("all_gather", crosses=True) is None
    emulated = replace(curve("all_gather", 16), emulated=True)
    assert CollectiveCurves((emulated, largest)).representative("all_gather", crosses=False) == largest
    assert curves.link("all_gather", crosses=True) is None
