"""The expected share of rows that cross between nodes, by formula, by hand and by counting."""

from __future__ import annotations

import itertools

import pytest

from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic, expected_share


def test_top_8_over_4_nodes() -> None:
    assert expected_share(4, 8) == pytest.approx(0.45, abs=5e-4)


def test_one_choice_or_one_node_saves_nothing_or_all() -> None:
    assert expected_share(7, 1) == pytest.approx(1)
    assert expected_share(1, 8) == pytest.approx(1 / 8)


@pytest.mark.parametrize(("nodes", "top_k", "experts"), [(2, 2, 4), (3, 2, 6), (2, 3, 8), (4, 4, 8)])
def test_distinct_experts_are_counted_exactly(nodes: int, top_k: int, experts: int) -> None:
    """All sets of experts, seen from a token on node 0."""
    crossing = copies = 0
    for chosen in itertools.combinations(range(experts), top_k):
        remote = [expert * nodes // experts for expert in chosen if expert * nodes // experts]
        crossing += len(set(remote))
        copies += len(remote)
    assert expected_share(nodes, top_k, experts) == pytest.approx(crossing / copies)


def test_many_experts_are_as_good_as_independent_ones() -> None:
    assert expected_share(4, 8, 4 * 10**5) == pytest.approx(expected_share(4, 8), rel=1e-4)


@pytest.mark.parametrize(("nodes", "top_k", "experts"), [(0, 1, None), (1, 0, None), (4, 2, 6), (2, 5, 4)])
def test_impossible_routing_is_refused(nodes: int, top_k: int, experts: int | None) -> None:
    with pytest.raises(ValueError, match=r"choices|experts"):
        expected_share(nodes, top_k, experts)


def test_traffic_adds_up_and_knows_its_share() -> None:
    one = DispatchTraffic(logical_between=1000, sent_between=400, routing_between=20, sent_within=5)
    both = one + DispatchTraffic(logical_between=1000, sent_between=500)
    assert both == DispatchTraffic(2000, 0, 900, 5, 20, 0)
    assert both.share_between == pytest.approx(0.46)
    assert DispatchTraffic().share_between is None
