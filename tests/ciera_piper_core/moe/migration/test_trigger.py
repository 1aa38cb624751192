"""When experts move: thresholds, and what it saves against what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ciera_piper_core.moe.migration.trigger import Costs, Policy, busiest, decide

HOME = (0, 0, 1, 1)
SKEWED = np.array([[40.0, 30, 20, 10]] * 10)
"""Loads 70 and 30, that a swap makes 50 and 50."""

CHEAP = Costs(seconds_per_copy=1e-3, seconds_per_byte=1e-9, seconds_per_move=1e-3, bytes_per_expert=1000)
POLICY = Policy(check_every=10)


class TestDecide:
    def test_moves_what_pays(self) -> None:
        decision = decide(SKEWED, HOME, 2, POLICY, CHEAP)
        assert decision.verdict == "move"
        assert decision.solution.load_after == 1
        # 20 copies less, each of 10 steps; one expert each way.
        assert decision.saved_seconds == pytest.approx(20 * 1e-3 * 10)
        assert decision.cost_seconds == pytest.approx(1e-3 + 1e-9 * 1000)
        assert "1.400 x the mean" in decision.message

    def test_below_the_threshold_nothing_happens(self) -> None:
        decision = decide(SKEWED, HOME, 2, replace(POLICY, threshold=1.4), CHEAP)
        assert decision.verdict == "balanced"
        assert not decision.moves

    def test_too_expensive(self) -> None:
        dear = replace(CHEAP, seconds_per_byte=1e-3)
        decision = decide(SKEWED, HOME, 2, POLICY, dear)
        assert decision.verdict == "does_not_pay"
        assert decision.cost_seconds > decision.saved_seconds

    def test_more_steps_to_save_in_make_it_pay(self) -> None:
        dear = replace(CHEAP, seconds_per_move=0.5)
        assert decide(SKEWED, HOME, 2, POLICY, dear).verdict == "does_not_pay"
        assert decide(SKEWED, HOME, 2, replace(POLICY, check_every=100), dear).verdict == "move"

    def test_margin(self) -> None:
        dear = replace(CHEAP, seconds_per_move=0.15)
        assert decide(SKEWED, HOME, 2, POLICY, dear).verdict == "move"
        assert decide(SKEWED, HOME, 2, replace(POLICY, margin=2), dear).verdict == "does_not_pay"

    def test_margin_of_0_asks_for_no_price(self) -> None:
        dear = replace(CHEAP, seconds_per_move=1e6)
        assert decide(SKEWED, HOME, 2, replace(POLICY, margin=0), dear).verdict == "move"

    def test_saves_what_each_step_waits_for(self) -> None:
        # Summed up the busiest rank is at 1.5, but only half of the steps wait for it; the others wait for the other.
        steps = np.array([[100.0, 100, 0, 0], [40, 60, 50, 50]] * 5)
        assert busiest(steps, HOME, 2).tolist() == [200.0, 100.0] * 5
        decision = decide(steps, HOME, 2, POLICY, CHEAP)
        assert decision.verdict == "move"
        # After a swap both ranks have 100 in the first kind of step, 90 and 110 (or 110 and 90) in the second.
        assert decision.saved_seconds == pytest.approx((150 - 105) * 1e-3 * 10)

    def test_noise_that_averages_out_saves_nothing(self) -> None:
        # Each step another expert is hot: no placement is better, whatever one step looks like.
        steps = np.eye(4)[np.arange(12) % 4] * 100
        decision = decide(steps, HOME, 2, replace(POLICY, check_every=12, window=12, threshold=1), CHEAP)
        assert not decision.moves

    def test_no_better_placement(self) -> None:
        steps = np.array([[100.0, 0]] * 3)
        assert decide(steps, (0, 1), 2, POLICY, CHEAP).verdict == "no_better"

    @pytest.mark.parametrize("steps", [np.zeros((0, 4)), np.zeros((3, 4))])
    def test_no_counts(self, steps: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        assert decide(steps, HOME, 2, POLICY, CHEAP).verdict == "no_counts"

    def test_spare_room_is_used(self) -> None:
        steps = np.array([[97.0, 1, 1, 1]] * 3)
        assert decide(steps, HOME, 2, POLICY, CHEAP).verdict == "no_better"
        roomy = decide(steps, HOME, 2, replace(POLICY, spare_experts=1), CHEAP)
        assert roomy.solution.after == (0, 1, 1, 1)

    def test_only_the_window_counts(self) -> None:
        steps = np.concatenate([np.array([[1e6, 0, 0, 0]] * 5), np.full((10, 4), 25.0)])
        assert decide(steps, HOME, 2, POLICY, CHEAP).verdict == "balanced"


class TestRefusals:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"check_every": 0},
            {"window": 0},
            {"window": 11},
            {"threshold": 0.9},
            {"target": 0.9},
            {"margin": -1},
            {"spare_experts": -1},
            {"solver": "best"},
            {"threshold": float("nan")},
        ],
    )
    def test_policy(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=r"migration|unknown solver"):
            replace(POLICY, **wrong)  # type: ignore[arg-type]

    def test_costs(self) -> None:
        with pytest.raises(ValueError, match="seconds_per_byte"):
            replace(CHEAP, seconds_per_byte=float("inf"))
