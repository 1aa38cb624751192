"""Bounds, rows and shares of dispatches, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ciera_piper_core.alltoall.dispatch_traffic import DispatchTraffic
from suites.dispatch_exchange import least_bytes_of_dispatch, rows_between, sent_share
from suites.placement_bound import LeastBytes

TABLES = [
    np.array([[0, 2, 3], [1, 1, 1]]),
    np.array([[1, 1, 1]]),
    np.zeros((0, 3), dtype=np.int64),
    np.array([[0, 1, 2]]),
]
"""Tokens of four ranks on two nodes of two."""


def test_a_row_for_each_choice() -> None:
    assert rows_between(TABLES).tolist() == [[1, 3, 1, 1], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]


def test_each_token_crosses_to_a_node_once_and_reaches_each_rank_once() -> None:
    # Rank 0: to 2 and 3 by one crossing, and to 1. Rank 3: to 0 and 1 by one crossing, and to 2.
    assert least_bytes_of_dispatch(TABLES, 10, [0, 0, 1, 1]) == LeastBytes(60, 10, 20)


def test_nothing_crosses_on_one_node() -> None:
    assert least_bytes_of_dispatch(TABLES, 10, [0] * 4) == LeastBytes(60, 0, 20)


@pytest.mark.parametrize(
    ("traffic", "share"),
    [
        ([DispatchTraffic(logical_between=100, sent_between=40, routing_between=2, logical_within=9)] * 2, 0.42),
        ([DispatchTraffic(logical_within=10, sent_within=5, routing_within=1), DispatchTraffic()], 0.6),
        ([DispatchTraffic()], 1.0),
    ],
)
def test_the_share_is_of_all_ranks_together(traffic: list[DispatchTraffic], share: float) -> None:
    assert sent_share(traffic) == pytest.approx(share)
