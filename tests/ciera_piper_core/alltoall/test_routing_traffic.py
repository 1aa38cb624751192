"""Top-k routing from a seed: distinct experts, popularity, and the same numbers everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from ciera_piper_core.alltoall import TRAFFIC_KINDS
from ciera_piper_core.alltoall.dispatch_traffic import expected_share
from ciera_piper_core.alltoall.routing_traffic import _distinct, routed_ranks


@pytest.mark.parametrize("kind", TRAFFIC_KINDS)
def test_every_token_has_top_k_choices(kind: str) -> None:
    tables = [routed_ranks(kind, rank, 4, 50, 6, 16, 5) for rank in range(4)]
    idle = [len(table) == 0 for table in tables]
    assert sum(idle) == (kind == "idle_rank")
    for table in tables:
        assert table.shape[1] == 6
        assert ((table >= 0) & (table < 4)).all()
        # A rank has four experts, and they are distinct.
        assert all(np.bincount(row, minlength=4).max() <= 4 for row in table)
    if kind == "idle_rank":
        assert not any((table == idle.index(True)).any() for table in tables)


def test_experts_are_distinct_even_if_all_are_taken() -> None:
    weights = np.array([1 << 20, 1, 1, 5], dtype=np.int64)
    drawn = _distinct(weights, 200, 4, key=9, stream=2)
    assert (np.sort(drawn, axis=1) == np.arange(4)).all()
    # The most popular one is drawn first, nearly always.
    assert (drawn[:, 0] == 0).mean() > 0.95


def test_uniform_routing_crosses_as_the_formula_says() -> None:
    ranks, top_k, experts = 8, 8, 64
    crossing = copies = 0
    for rank in range(ranks):
        nodes = routed_ranks("uniform", rank, ranks, 500, top_k, experts, 1) // 2
        remote = [set(row) - {rank // 2} for row in nodes.tolist()]
        crossing += sum(map(len, remote))
        copies += int((nodes != rank // 2).sum())
    assert crossing / copies == pytest.approx(expected_share(4, top_k, experts), rel=0.02)


def test_a_hot_rank_gets_about_half_while_it_has_experts_left() -> None:
    tables = np.concatenate([routed_ranks("hot_rank", rank, 8, 400, 1, 64, 3) for rank in range(8)])
    assert np.bincount(tables[:, 0], minlength=8).max() / tables.size == pytest.approx(0.5, abs=0.03)


def test_the_same_seed_gives_the_same_numbers_and_ranks_differ() -> None:
    first = routed_ranks("zipf", 1, 4, 30, 2, 8, 11)
    assert np.array_equal(first, routed_ranks("zipf", 1, 4, 30, 2, 8, 11))
    assert not np.array_equal(first, routed_ranks("zipf", 2, 4, 30, 2, 8, 11))
    assert not np.array_equal(first, routed_ranks("zipf", 1, 4, 30, 2, 8, 12))
    # Fixed numbers: they hold on every machine, and in every later version.
    assert first[:3].tolist() == FIRST


FIRST = [[1, 2], [1, 3], [3, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("warm", 0, 2, 1, 1, 2, 0), "unknown routing 'warm'"),
        (("uniform", 0, 2, 1, 1, 3, 0), "not as many on each"),
        (("uniform", 0, 2, 1, 3, 2, 0), "top-3 routing needs more than 2"),
        (("idle_rank", 0, 2, 1, 2, 2, 0), "top-2 routing needs more than 1"),
    ],
)
def test_impossible_routing_is_refused(arguments: tuple[str, int, int, int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        routed_ranks(*arguments)
