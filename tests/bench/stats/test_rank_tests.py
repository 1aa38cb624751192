"""Rank tests: against scipy, by counting every way to deal out the samples, and with ties."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, rankdata, wilcoxon

from bench.stats.rank_tests import least_p_value, mann_whitney, midranks, signed_rank


@given(st.lists(st.lists(st.integers(-3, 3), min_size=6, max_size=6), min_size=1, max_size=5))
def test_midranks_are_those_of_scipy(rows: list[list[int]]) -> None:
    ranks, tie_term = midranks(np.array(rows, dtype=float))
    assert ranks.tolist() == [rankdata(row).tolist() for row in rows]
    assert tie_term.tolist() == [sum(row.count(v) ** 3 - row.count(v) for v in set(row)) for row in rows]


@pytest.mark.parametrize(("n_x", "n_y"), [(1, 1), (1, 5), (2, 3), (6, 6), (15, 15), (9, 20), (50, 50)])
def test_without_ties_it_is_the_exact_test(n_x: int, n_y: int) -> None:
    random = np.random.default_rng(n_x * 100 + n_y)
    x, y = random.normal(size=(20, n_x)), random.normal(size=(20, n_y)) + 0.7
    expected = [mannwhitneyu(a, b, method="exact").pvalue for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(mann_whitney(x, y), expected, rtol=1e-9)


def test_many_samples_have_the_normal_distribution() -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(5, 80)), random.normal(size=(5, 90)) + 0.3
    expected = [mannwhitneyu(a, b, method="asymptotic").pvalue for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(mann_whitney(x, y), expected, rtol=1e-9)


def test_many_ties_have_the_normal_distribution_that_they_leave() -> None:
    random = np.random.default_rng(2)
    x, y = random.integers(0, 5, (10, 30)).astype(float), random.integers(1, 6, (10, 40)).astype(float)
    expected = [mannwhitneyu(a, b, method="asymptotic").pvalue for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(mann_whitney(x, y), expected, rtol=1e-9)


def by_counting(x: list[int], y: list[int]) -> float:
    """The two-sided p-value from every way to deal out the samples."""
    ranks = rankdata([*x, *y])
    mean = len(x) * (len(ranks) + 1) / 2
    far = abs(ranks[: len(x)].sum() - mean)
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(x))]
    return sum(abs(total - mean) >= far - 1e-9 for total in sums) / len(sums)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_few_samples_with_ties_are_counted_out(x: list[int], y: list[int]) -> None:
    found = mann_whitney(np.array([x], dtype=float), np.array([y], dtype=float))[0]
    assert found == pytest.approx(by_counting(x, y))


@given(st.integers(1, 40), st.integers(1, 40))
def test_sides_that_do_not_overlap_have_the_least_p_value(n_x: int, n_y: int) -> None:
    x, y = np.arange(n_x)[None, :] * 1.0, 100.0 + np.arange(n_y)[None, :]
    assert mann_whitney(x, y)[0] == pytest.approx(least_p_value(n_x, n_y))
    assert mann_whitney(y, x)[0] == pytest.approx(least_p_value(n_x, n_y))


@pytest.mark.parametrize("n", [1, 2, 5, 12, 40])
def test_signed_ranks_are_exact(n: int) -> None:
    differences = np.random.default_rng(n).normal(size=(20, n)) + 0.4
    expected = [wilcoxon(row, method="exact").pvalue for row in differences]
    np.testing.assert_allclose(signed_rank(differences), expected, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_signed_ranks_with_ties_and_zeros_are_counted_out(values: list[int]) -> None:
    kept = [value for value in values if value]
    found = signed_rank(np.array([values], dtype=float))[0]
    ranks = rankdata(np.abs(kept)) if kept else np.array([])
    low = min(sum(r for r, v in zip(ranks, kept, strict=True) if (v > 0) == up) for up in (True, False)) if kept else 0
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(kept))]
    expected = min(1.0, 2 * sum(total <= low + 1e-9 for total in sums) / len(sums))
    assert found == pytest.approx(expected)


def test_many_signed_ranks_have_the_normal_distribution() -> None:
    differences = np.random.default_rng(3).normal(size=(5, 100)) + 0.2
    expected = [wilcoxon(row, method="asymptotic", correction=True).pvalue for row in differences]
    np.testing.assert_allclose(signed_rank(differences), expected, rtol=1e-9)


def test_equal_samples_are_no_difference() -> None:
    same = np.ones((1, 40))
    assert mann_whitney(same, same)[0] == 1.0
    assert mann_whitney(same[:, :6], same[:, :6])[0] == 1.0
    assert signed_rank(np.zeros((1, 9)))[0] == 1.0


def test_least_p_values() -> None:
    assert least_p_value(6, 6) == pytest.approx(2 / math.comb(12, 6))
    assert least_p_value(1, 1) == 1.0
    assert least_p_value(0, 5) == 1.0
    assert least_p_value(8, 8, paired=True) == pytest.approx(2 / 256)
    # Beyond what a float can count.
    assert least_p_value(2000, 2000) == least_p_value(2000, 2000, paired=True) == 0.0
