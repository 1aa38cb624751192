"""Placements of experts: the paper's algorithm, and the search against it and against every placement there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ciera_piper_core.moe.migration.paper_swaps import hill_climbing_swaps
from ciera_piper_core.moe.migration.solver import Move, load_factor, solve
from ciera_piper_core.moe.migration.solver_reference import lowest_loads

if TYPE_CHECKING:
    from ciera_piper_core.moe.migration.paper_swaps import Floats, Ints


def zipf_counts(experts: int, exponent: float, seed: int) -> Floats:
    """Token copies of experts under Zipf's law, in a random order of popularity."""
    random = np.random.default_rng(seed)
    weights = np.arange(1, experts + 1) ** -exponent
    return random.multinomial(20_000, random.permutation(weights / weights.sum())).astype(np.float64)


def neighbours(experts: int, ranks: int) -> Ints:
    return np.repeat(np.arange(ranks), experts // ranks)


class TestPaper:
    def test_example_by_hand(self) -> None:
        # Loads 17 and 5: swapping 8 with 2, or 9 with 3, leaves 11 and 11; the first pair is taken.
        places = hill_climbing_swaps(np.array([8.0, 9, 2, 3]), np.array([0, 0, 1, 1]), 2)
        assert places.tolist() == [1, 0, 0, 1]

    def test_knows_no_third_rank(self) -> None:
        # Busiest (6 + 6) and idlest (3 + 3) cannot come closer; with the middle one (7 + 1) they could.
        counts, home = np.array([6.0, 6, 0, 0, 7, 1]), np.array([0, 0, 1, 1, 2, 2])
        swapped = solve(counts, home.tolist(), 3, solver="paper")
        searched = solve(counts, home.tolist(), 3)
        assert searched.load_after <= swapped.load_after

    def test_rounds_are_limited(self) -> None:
        counts, home = zipf_counts(64, 0.8, 1), neighbours(64, 8)
        once = hill_climbing_swaps(counts, home, 8, rounds=1)
        assert np.count_nonzero(once != home) == 2
        assert np.count_nonzero(hill_climbing_swaps(counts, home, 8) != home) > 2

    def test_even_load_stays(self) -> None:
        assert not solve([5, 5, 5, 5], [0, 0, 1, 1], 2, solver="paper").moves


class TestSearch:
    @pytest.mark.parametrize(("experts", "ranks"), [(8, 2), (8, 4), (9, 3)])
    def test_as_low_as_any_placement_with_as_few_moves(self, experts: int, ranks: int) -> None:
        home = neighbours(experts, ranks)
        for seed in range(12):
            counts = zipf_counts(experts, 0.3 + seed / 10, seed)
            best = lowest_loads(counts.tolist(), home.tolist(), [experts // ranks] * ranks)
            found = solve(counts, home.tolist(), ranks)
            reached = found.load_after * counts.sum() / ranks
            assert reached <= best[-1] * 1.003
            fewest = next(moves for moves, load in enumerate(best) if load <= reached * (1 + 1e-9))
            assert len(found.moves) == fewest

    @pytest.mark.parametrize(("experts", "ranks"), [(16, 4), (64, 8), (128, 16)])
    def test_never_worse_than_the_paper_in_load_or_moves(self, experts: int, ranks: int) -> None:
        home = neighbours(experts, ranks).tolist()
        lower, fewer = 0, 0
        for seed in range(8):
            counts = zipf_counts(experts, 0.3 + seed / 10, seed)
            paper = solve(counts, home, ranks, solver="paper")
            assert solve(counts, home, ranks).load_after <= paper.load_after + 1e-12
            same = solve(counts, home, ranks, target=paper.load_after)
            assert same.load_after <= paper.load_after * (1 + 1e-9)
            assert len(same.moves) <= len(paper.moves)
            lower += solve(counts, home, ranks).load_after < paper.load_after * 0.999
            fewer += len(same.moves) < len(paper.moves)
        assert lower >= 2
        assert fewer >= 1

    def test_balances_zipf_where_counts_allow(self) -> None:
        # No expert has more than a rank's mean, so 1.1 can be reached.
        for seed in range(6):
            counts = zipf_counts(32, 0.5, seed)
            found = solve(counts, neighbours(32, 4).tolist(), 4)
            assert counts.max() < counts.sum() / 4
            assert found.load_after <= 1.1

    def test_a_good_enough_load_moves_less(self) -> None:
        counts, home = zipf_counts(64, 0.4, 3), neighbours(64, 8).tolist()
        best, enough = solve(counts, home, 8), solve(counts, home, 8, target=1.1)
        assert enough.load_after <= 1.1
        assert 0 < len(enough.moves) < len(best.moves)

    def test_numbers_of_experts_stay_unless_there_is_room(self) -> None:
        # One expert has all: it should be alone, which swaps cannot do.
        counts, home = [97.0, 1, 1, 1], [0, 0, 1, 1]
        assert np.bincount(solve(counts, home, 2).after).tolist() == [2, 2]
        alone = solve(counts, home, 2, most_experts=3)
        assert np.bincount(alone.after).tolist() == [1, 3]
        assert alone.moves == (Move(1, 0, 1),)

    def test_no_rank_is_left_without_experts(self) -> None:
        found = solve([0.0, 0, 0, 100], [0, 0, 1, 1], 2, most_experts=4)
        assert set(found.after) == {0, 1}

    def test_uneven_ranks_keep_their_numbers(self) -> None:
        counts, home = zipf_counts(7, 1.0, 0), [0, 0, 0, 1, 1, 2, 2]
        found = solve(counts, home, 3)
        assert np.bincount(found.after).tolist() == [3, 2, 2]
        assert found.load_after <= found.load_before

    def test_is_deterministic(self) -> None:
        counts, home = zipf_counts(64, 0.7, 5), neighbours(64, 8).tolist()
        assert solve(counts, home, 8) == solve(counts, home, 8)

    @pytest.mark.parametrize("counts", [[0, 0, 0, 0], [5, 5, 5, 5]])
    def test_nothing_to_gain_moves_nothing(self, counts: list[float]) -> None:
        assert not solve(counts, [0, 0, 1, 1], 2).moves

    def test_one_rank(self) -> None:
        assert not solve([3, 1], [0, 0], 1).moves


class TestSolution:
    def test_counts_the_most_that_one_rank_sends_or_gets(self) -> None:
        found = solve([97.0, 1, 1, 1], [0, 0, 1, 1], 2, most_experts=3)
        assert found.most_sent == 1

    def test_load_factor(self) -> None:
        assert load_factor([3.0, 1, 2, 2], [0, 0, 1, 1], 2) == 1
        assert load_factor([4.0, 0], [0, 1], 2) == 2
        assert load_factor([0.0, 0], [0, 1], 2) == 1


class TestRefusals:
    def test_shapes(self) -> None:
        with pytest.raises(ValueError, match="do not belong together"):
            solve([1, 2, 3], [0, 1], 2)

    def test_counts(self) -> None:
        with pytest.raises(ValueError, match="finite"):
            solve([1, float("nan")], [0, 1], 2)

    def test_ranks(self) -> None:
        with pytest.raises(ValueError, match="ranks 0 to 1"):
            solve([1, 2], [0, 2], 2)

    def test_room(self) -> None:
        with pytest.raises(ValueError, match="more than the 1"):
            solve([1, 2, 3], [0, 0, 1], 2, most_experts=1)

    def test_solver(self) -> None:
        with pytest.raises(ValueError, match="unknown solver"):
            solve([1, 2], [0, 1], 2, solver="best")  # type: ignore[arg-type]

    def test_reference_refuses_what_would_take_too_long(self) -> None:
        with pytest.raises(ValueError, match="too many"):
            lowest_loads([1.0] * 13, [0] * 13, [13])
