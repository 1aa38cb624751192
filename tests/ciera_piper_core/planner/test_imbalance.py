"""Load of the busiest expert-parallel rank: exact probabilities, bounds, and against a simulated router."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.planner.imbalance import Routing, inclusion_probabilities, most_factor, zipf_weights


def by_enumeration(weights: list[float], top_k: int) -> list[float]:
    """The probabilities from every order in which experts can be drawn."""
    chance = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), top_k):
        product, left = 1.0, sum(weights)
        for expert in order:
            product *= weights[expert] / left
            left -= weights[expert]
        for expert in order:
            chance[expert] += product
    return chance


@pytest.mark.parametrize(("weights", "top_k"), [([1, 1, 1], 2), ([5, 3, 1, 1], 2), ([9, 4, 2, 1, 0.5, 0.1], 3)])
def test_probabilities_are_those_of_drawing_one_after_the_other(weights: list[float], top_k: int) -> None:
    found = inclusion_probabilities(np.array(weights), top_k)
    np.testing.assert_allclose(found, by_enumeration(weights, top_k), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 48), st.data(), st.floats(0, 4))
def test_probabilities_add_up_and_fall_with_popularity(experts: int, data: st.DataObject, exponent: float) -> None:
    top_k = data.draw(st.integers(1, experts))
    found = inclusion_probabilities(zipf_weights(experts, exponent), top_k)
    assert found.sum() == pytest.approx(top_k)
    assert (found <= 1).all()
    assert (np.diff(found) <= 1e-9).all()


def test_a_simulated_router_has_this_load() -> None:
    experts, top_k, ranks = 64, 6, 8
    random = np.random.default_rng(0)
    keys = np.log(zipf_weights(experts, 1.2)) + random.gumbel(size=(100_000, experts))
    chosen = np.argpartition(-keys, top_k, axis=1)[:, :top_k]
    loads = np.bincount(chosen.ravel() // (experts // ranks), minlength=ranks)
    predicted = Routing(zipf=1.2).factors(experts, top_k, np.array([ranks]))[0]
    assert loads.max() / loads.mean() == pytest.approx(predicted, rel=0.01)


def test_zipf_takes_the_maximum_load_and_not_the_mean() -> None:
    degrees = np.array([1, 2, 4, 8, 16, 32, 64])
    factors = Routing(zipf=1.2).factors(256, 8, degrees)
    assert factors[0] == pytest.approx(1)
    assert (np.diff(factors) > 0).all()
    assert (factors <= degrees).all()
    assert Routing(zipf=1.2).dealt_factor(256, 8, 8) < factors[3]


def test_no_rank_gets_more_than_its_experts_can_take() -> None:
    # One expert a rank gets each token at most once: of 8 copies over 256 ranks, at most 32 times the mean.
    assert Routing(load_factor=100).factors(256, 8, np.array([256]))[0] == 32
    assert Routing(zipf=30).factors(256, 8, np.array([256]))[0] == pytest.approx(32)


@pytest.mark.parametrize("experts", [4, 6, 8])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_largest_load_is_that_of_tokens_which_all_go_to_one_rank(experts: int, top_k: int) -> None:
    for ranks in range(1, experts + 1):
        # The first rank holds the most; every token takes as many of its experts as it can.
        held = -(-experts // ranks)
        most = max(sum(expert < held for expert in chosen) for chosen in itertools.combinations(range(experts), top_k))
        found = most_factor(experts, top_k, np.array([ranks]))[0]
        assert found == pytest.approx(most / (top_k / ranks))
        assert Routing(load_factor=1e300).factors(experts, top_k, np.array([ranks]))[0] == pytest.approx(found)


def test_balanced_routing_over_an_uneven_placement() -> None:
    # 256 experts on 3 ranks: one has 86.
    assert Routing().factors(256, 8, np.array([3, 4])).tolist() == [pytest.approx(86 * 3 / 256), 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Routing(load_factor=0.5), "so 1 or more, not 0.5"),
        (lambda: Routing(zipf=-1), "from 0 (balanced) to 50, not -1"),
        (lambda: Routing(load_factor=2, zipf=1), "give one of them"),
        (lambda: Routing(load_factor=float("nan")), "a load factor must be a finite number, not nan"),
        (lambda: Routing(load_factor=float("inf")), "a load factor must be a finite number, not inf"),
        (lambda: inclusion_probabilities(np.array([1.0, 0.0]), 1), "must be positive"),
        (lambda: inclusion_probabilities(np.ones(4), 5), "1 to 4"),
    ],
)
def test_wrong_numbers_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()  # type: ignore[operator]
