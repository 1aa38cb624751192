"""Shares in proportion to weights: exact totals, the largest remainders first, ties from where they are asked for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.apportion import MOST, ZIPF_SCALE, apportion, zipf_weights

weight_lists = st.lists(st.integers(0, ZIPF_SCALE), min_size=1, max_size=40).filter(any)


@given(st.integers(0, 10**9), weight_lists, st.integers(0, 39))
def test_shares_add_up_and_are_within_one_of_their_quota(total: int, weights: list[int], first: int) -> None:
    shares = apportion(total, np.array(weights, dtype=np.int64), first).tolist()
    assert sum(shares) == total
    quotas = [Fraction(total * weight, sum(weights)) for weight in weights]
    assert all(abs(share - quota) < 1 for share, quota in zip(shares, quotas, strict=True))
    # Nobody was rounded up before one with a larger remainder.
    up = [quota % 1 for share, quota in zip(shares, quotas, strict=True) if share > quota]
    down = [quota % 1 for share, quota in zip(shares, quotas, strict=True) if share < quota]
    assert not up or not down or min(up) >= max(down)


def test_ties_are_served_from_the_first_on() -> None:
    ones = np.ones(4, dtype=np.int64)
    assert apportion(6, ones).tolist() == [2, 2, 1, 1]
    assert apportion(6, ones, first=3).tolist() == [2, 1, 1, 2]


def test_zipf_weights_fall_as_one_over_the_place() -> None:
    assert zipf_weights(4).tolist() == [ZIPF_SCALE, ZIPF_SCALE // 2, ZIPF_SCALE // 3, ZIPF_SCALE // 4]


@pytest.mark.parametrize("total", [-1, MOST // ZIPF_SCALE + 1, 2**80])
def test_totals_without_exact_products_are_refused(total: int) -> None:
    with pytest.raises(ValueError, match="units cannot be shared out"):
        apportion(total, zipf_weights(3))
    assert apportion(MOST // ZIPF_SCALE, zipf_weights(3)).sum() == MOST // ZIPF_SCALE
