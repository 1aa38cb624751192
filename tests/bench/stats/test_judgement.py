"""Judgement: every branch of its tree, small samples, odd numbers, confirmation, and speed."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.stats.judgement import Criteria, Judgement, confirm, judge, unmeasured
from bench.stats.pairs import Pair, Samples
from tests.program import PEAK_MEMORY_CODE

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "<script>alert(1)</script>\x1b[31m../../etc/passwd\n$(reboot)"


def noisy(n: int, factor: float = 1.0, cv: float = 0.02, seed: int = 0) -> np.ndarray:
    return 100 * factor * np.random.default_rng([seed, n, round(1000 * factor)]).lognormal(0, cv, n)


def pair(one: Any, other: Any, blocks: tuple[int, ...] = (), **settings: Any) -> Pair:
    return Pair("case", Samples(np.asarray(one), blocks, "us"), Samples(np.asarray(other), blocks, "us"), **settings)


def one(one: Any, other: Any, blocks: tuple[int, ...] = (), **criteria: Any) -> Judgement:
    (judgement,) = judge([pair(one, other, blocks)], Criteria(**criteria))
    return judgement


def test_a_clear_slowdown_is_a_regression() -> None:
    found = one(noisy(30), noisy(30, 1.1))
    assert (found.verdict, found.reason_code) == ("regressed", "beyond_threshold")
    assert found.effect == pytest.approx(0.1, abs=0.02)
    assert found.interval[0] < 0.1 < found.interval[1]
    assert found.adjusted_p_value <= 0.01
    assert found.samples_to_settle is None
    assert found.needs_confirmation
    assert "worse" in found.message


@pytest.mark.parametrize(("factor", "better", "verdict"), [
    (1.1, "lower", "regressed"),
    (1.1, "higher", "improved"),
    (0.9, "lower", "improved"),
    (0.9, "higher", "regressed"),
    (1.1, "unknown", "inconclusive"),
    (1.0, "unknown", "pass"),
])  # fmt: skip
def test_the_direction_decides(factor: float, better: Any, verdict: str) -> None:
    found = one(noisy(40), noisy(40, factor, seed=1), better=better, minimum_effect=0.03)
    assert found.verdict == verdict
    assert found.change == pytest.approx(factor - 1, abs=0.02)
    assert (found.effect > 0) == ((found.change > 0) == (better != "higher"))
    if factor != 1 and better == "unknown":
        assert found.reason_code == "direction_unknown"


def test_a_pass_needs_evidence() -> None:
    assert one(noisy(40), noisy(40, seed=1), minimum_effect=0.05).reason_code == "within_threshold"
    vague = one(noisy(8, cv=0.2), noisy(8, cv=0.2)[::-1], minimum_effect=0.05)
    assert (vague.verdict, vague.reason_code) == ("inconclusive", "too_noisy")
    assert vague.samples_to_settle
    assert vague.minimum_detectable_effect > 0.05


def test_a_small_change_that_is_certain_is_none() -> None:
    found = one(noisy(200), noisy(200, 1.02), minimum_effect=0.05)
    assert found.verdict == "pass"
    assert found.interval[0] > 0


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_noise_above_the_policy_raises_the_threshold(floor: float) -> None:
    found = one(noisy(30), noisy(30, 1.1), noise_floor=floor)
    assert found.threshold == max(0.02, floor)
    assert (found.verdict == "regressed") == (floor == 0)


def test_the_floor_stands_in_for_processes_that_one_run_does_not_see() -> None:
    plain = one(noisy(30), noisy(30, 1.05))
    known = one(noisy(30), noisy(30, 1.05), noise_floor=0.03)
    in_rounds = one(noisy(30), noisy(30, 1.05), (3,) * 10, noise_floor=0.03)
    assert known.p_value > plain.p_value
    assert known.interval[1] > plain.interval[1]
    assert in_rounds.interval[1] < known.interval[1]


@pytest.mark.parametrize(
    ("n", "serial", "rounds"),
    [
        (1, "one_sample", "one_sample"),
        (2, "too_few_samples", "too_few_samples"),
        (3, "too_few_samples", "too_few_samples"),
        (4, "too_few_samples", "beyond_threshold"),
        *((n, "beyond_threshold", "beyond_threshold") for n in range(5, 31)),
    ],
)
def test_sides_that_do_not_overlap(n: int, serial: str, rounds: str) -> None:
    """From five samples (four independent ones) on they are always a difference, whatever their order."""
    for seed in range(10):
        baseline, candidate = noisy(n, cv=0.005, seed=seed), noisy(n, 1.1, cv=0.005, seed=seed)
        assert one(baseline, candidate).reason_code == serial
        assert one(np.sort(baseline), np.sort(candidate)).reason_code == serial
        assert one(baseline, candidate, (1,) * n).reason_code == rounds


def test_six_against_six_with_an_outlier_are_a_difference() -> None:
    candidate = noisy(6, 1.1, cv=0.005)
    candidate[3] *= 5
    assert one(noisy(6, cv=0.005), candidate).verdict == "regressed"


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_is_too_few_says_how_many_more(n: int) -> None:
    found = one(noisy(n), noisy(n, 1.1))
    assert found.samples_to_settle == 5 - n
    assert math.isinf(found.minimum_detectable_effect)


def test_the_suggested_number_of_samples_settles_most() -> None:
    settled = asked = 0
    for seed in range(60):
        first = one(noisy(10, seed=seed), noisy(10, 1.005, seed=seed + 1000), (1,) * 10, minimum_effect=0.02)
        if first.verdict == "inconclusive" and first.samples_to_settle and first.samples_to_settle < 500:
            n = 10 + first.samples_to_settle
            asked += 1
            again = one(noisy(n, seed=seed), noisy(n, 1.005, seed=seed + 1000), (1,) * n, minimum_effect=0.02)
            settled += again.verdict != "inconclusive"
    assert asked >= 10
    assert settled >= 0.5 * asked


def test_the_detectable_effect_is_detected_nine_times_in_ten() -> None:
    detectable = np.median([one(noisy(20, seed=i), noisy(20, seed=99 + i), (1,) * 20).minimum_detectable_effect
                            for i in range(30)])  # fmt: skip
    found = [one(noisy(20, seed=i), noisy(20, 1 + detectable, seed=500 + i), (1,) * 20) for i in range(200)]
    assert 0.82 <= np.mean([judgement.verdict == "regressed" for judgement in found]) <= 0.98


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict", "code"),
    [
        ([5.0] * 8, [5.0] * 8, "pass", "identical"),
        ([5.0], [5.0], "pass", "identical"),
        ([0.0] * 4, [0.0] * 4, "pass", "identical"),
        ([5.0] * 6, [6.0] * 6, "regressed", "beyond_threshold"),
        ([5.0], [6.0], "inconclusive", "one_sample"),
        ([0.0] * 6, [6.0] * 6, "inconclusive", "zero_baseline"),
        ([1.0, math.nan] * 4, [1.0] * 8, "failed", "not_finite"),
        ([1.0] * 8, [math.inf] * 8, "failed", "not_finite"),
        ([], [1.0], "failed", "no_samples"),
        (
            [-5.0, -5.1, -4.9, -5.05, -4.95, -5.0],
            [-2.0, -2.1, -1.9, -2.05, -1.95, -2.0],
            "inconclusive",
            "below_zero",
        ),
    ],
)
def test_odd_numbers(baseline: list[float], candidate: list[float], verdict: str, code: str) -> None:
    found = one(baseline, candidate)
    assert (found.verdict, found.reason_code) == (verdict, code)
    assert found.message


def test_numbers_below_zero_of_what_is_no_time_are_compared() -> None:
    baseline, candidate = ([level + step for step in (0.0, -0.1, 0.1, -0.05, 0.05, 0.0)] for level in (-5.0, -2.0))
    (found,) = judge([Pair("case", Samples(baseline, (), "ratio"), Samples(candidate, (), "ratio"))], Criteria())
    assert (found.verdict, found.reason_code) == ("regressed", "beyond_threshold")


def test_units_that_differ_are_refused() -> None:
    odd = Pair("case", Samples(noisy(9), unit="us"), Samples(noisy(9), unit="ns"))
    (found,) = judge([odd], Criteria())
    assert (found.verdict, found.reason_code) == ("failed", "units_differ")
    assert "'us'" in found.message
    assert "'ns'" in found.message


def test_coarse_clocks_make_ties_and_no_trouble() -> None:
    assert one(np.round(noisy(40)), np.round(noisy(40, 1.1))).verdict == "regressed"
    assert one(np.round(noisy(40)), np.round(noisy(40, seed=1)), minimum_effect=0.05).verdict == "pass"


def test_many_cases_need_more_evidence_each() -> None:
    suspect = pair(noisy(8, cv=0.005), noisy(8, 1.03, cv=0.005))
    rest = [pair(noisy(8, seed=i), noisy(8, seed=i + 1000)) for i in range(500)]
    alone, among = judge([suspect], Criteria())[0], judge([suspect, *rest], Criteria())[0]
    assert alone.verdict == "regressed"
    assert (among.verdict, among.reason_code) == ("inconclusive", "suspected")
    assert among.needs_confirmation
    assert among.cases == 501
    assert among.adjusted_p_value > alone.adjusted_p_value


def test_looks_are_paid_for() -> None:
    assert one(noisy(5, cv=0.001), noisy(5, 1.1, cv=0.001)).verdict == "regressed"
    assert one(noisy(5, cv=0.001), noisy(5, 1.1, cv=0.001), looks=5).reason_code == "too_few_samples"


def test_what_cannot_be_tested_does_not_count_among_the_cases() -> None:
    found = judge([pair(noisy(6), noisy(6, 1.2)), pair([], []), pair([1.0], [math.nan])], Criteria())
    assert [judgement.cases for judgement in found] == [1, 1, 1]


def test_no_pairs_no_judgements() -> None:
    assert judge([], Criteria()) == []


def test_each_pair_may_have_criteria_of_its_own() -> None:
    pairs = [pair(noisy(30), noisy(30, 1.1))] * 2
    assert [j.verdict for j in judge(pairs, [Criteria(), Criteria(better="higher")])] == ["regressed", "improved"]
    with pytest.raises(UsageError, match="2 pairs"):
        judge(pairs, [Criteria()])


@pytest.mark.parametrize(
    "wrong",
    [
        {"minimum_effect": -0.1},
        {"minimum_effect": math.nan},
        {"significance": 0.0},
        {"significance": 0.7},
        {"noise_floor": math.inf},
        {"better": "sideways"},
        {"looks": 0},
    ],
)
def test_impossible_criteria_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Criteria(**wrong)


def test_a_name_is_kept_and_never_interpreted() -> None:
    (found,) = judge([Pair(HOSTILE, Samples(noisy(9)), Samples(noisy(9)))], Criteria())
    assert found.name == HOSTILE
    assert HOSTILE not in found.message


NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(1.0), min_size=0, max_size=12)


@settings(deadline=None, max_examples=150)
@given(NUMBERS, NUMBERS, st.sampled_from(["lower", "higher", "unknown"]), st.floats(0, 0.5), st.integers(0, 3))
def test_any_numbers_get_a_judgement(
    one_: list[float], other: list[float], better: Any, floor: float, cut: int
) -> None:
    blocks = (cut, len(one_) - cut) if 0 < cut < len(one_) else ()
    odd = Pair("case", Samples(np.array(one_), blocks), Samples(np.array(other)))
    (found,) = judge([odd], Criteria(better=better, noise_floor=floor))
    assert found.message
    assert 0 <= found.p_value <= 1 or math.isnan(found.p_value)
    if found.verdict in ("regressed", "improved"):
        assert abs(found.effect) > found.threshold
        assert found.adjusted_p_value <= 0.01
    if found.verdict == "pass" and found.reason_code != "identical":
        assert found.interval[1] < found.threshold
    if found.samples_to_settle is not None:
        assert found.verdict == "inconclusive"
        assert found.samples_to_settle >= 1


REGRESSED = one(noisy(30), noisy(30, 1.1))
SUSPECTED = replace(REGRESSED, verdict="inconclusive", reason_code="suspected", p_value=1e-3, cases=500)


def test_a_regression_that_shows_twice_is_confirmed() -> None:
    found = confirm(REGRESSED, one(noisy(30, seed=7), noisy(30, 1.1, seed=8)))
    assert (found.verdict, found.reason_code) == ("regressed", "confirmed")


@pytest.mark.parametrize(("p_value", "verdict"), [(1e-9, "regressed"), (0.009, "inconclusive")])
def test_a_suspicion_is_confirmed_by_both_together(p_value: float, verdict: str) -> None:
    second = replace(REGRESSED, p_value=p_value)
    found = confirm(SUSPECTED, second)
    assert found.verdict == verdict
    assert found.reason_code == ("confirmed_jointly" if verdict == "regressed" else "not_confirmed")


def test_what_the_second_measurement_does_not_show_is_no_regression() -> None:
    same = one(noisy(60, seed=7), noisy(60, seed=8))
    assert same.verdict == "pass"
    assert (confirm(SUSPECTED, same).verdict, confirm(SUSPECTED, same).reason_code) == ("pass", "not_confirmed")
    assert (confirm(REGRESSED, same).verdict, confirm(REGRESSED, same).reason_code) == ("inconclusive", "contradicted")
    better = one(noisy(30, seed=7), noisy(30, 0.9, seed=8))
    assert confirm(REGRESSED, better).reason_code == "contradicted"
    vague = one(noisy(4, seed=7), noisy(4, 1.1, seed=8))
    assert (confirm(REGRESSED, vague).verdict, confirm(REGRESSED, vague).reason_code) == (
        "inconclusive",
        "not_confirmed",
    )


def test_a_second_measurement_that_failed_is_a_failure() -> None:
    assert confirm(REGRESSED, unmeasured("case", "failed", "not_measured", "rank 1 died")).verdict == "failed"


def test_what_needs_no_confirmation_gets_none() -> None:
    with pytest.raises(UsageError, match="nothing to confirm"):
        confirm(one(noisy(60), noisy(60, seed=1)), REGRESSED)


@pytest.mark.alone
def test_ten_thousand_cases_are_judged_in_time_and_memory() -> None:
    code = f"""{PEAK_MEMORY_CODE}
import time
from bench.stats.judgement import Criteria, judge
from bench.stats.proof_pairs import many_pairs
pairs = many_pairs(10_000, 30, 0.02, 0)
began = time.perf_counter()
found = judge(pairs, Criteria())
print(len(found), time.perf_counter() - began, peak_memory_bytes())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    cases, seconds, peak_bytes = map(float, done.stdout.split())
    assert cases == 10_000
    assert seconds < 10
    assert peak_bytes < 2 << 30


def test_a_time_of_zero_is_no_improvement() -> None:
    found = one(noisy(20), np.zeros(20))
    assert (found.verdict, found.reason_code, found.samples_to_settle) == ("inconclusive", "zero_candidate", None)


@pytest.mark.parametrize("sides", [(100.0, -120.0), (-100.0, -120.0), (-100.0, 100.0)])
def test_a_time_below_zero_is_no_improvement(sides: tuple[float, float]) -> None:
    one, other = (
        Samples(level * (1 + 0.01 * np.random.default_rng(0).standard_normal(20)), (), "us") for level in sides
    )
    (found,) = judge([Pair("a", one, other)], Criteria())
    assert (found.verdict, found.reason_code, found.samples_to_settle) == ("inconclusive", "below_zero", None)


def test_a_count_or_a_rate_may_be_zero() -> None:
    sides = Samples(noisy(20), (), "GB/s"), Samples(np.zeros(20), (), "GB/s")
    (found,) = judge([Pair("case", *sides)], Criteria(better="higher"))
    assert found.verdict == "regressed"


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_without_an_interval_nothing_is_said_of_what_would_have_been_seen(better: Any) -> None:
    checked = 0
    for n in (2, 3, 4, 5, 6):
        for seed in range(40):
            walk = np.exp(0.02 * np.cumsum(np.random.default_rng([n, seed]).normal(size=(2, n)), axis=1))
            found = one(*walk, better=better)
            assert "inf" not in found.message
            if not all(map(math.isfinite, found.interval)):
                checked += 1
                assert found.interval == (-math.inf, math.inf)
                assert found.minimum_detectable_effect == math.inf
                if found.reason_code == "too_few_samples" and n >= 5:
                    assert "too few samples for an interval" in found.message
                    assert found.samples_to_settle == n
    assert checked


@pytest.mark.parametrize(("better", "said"), [("lower", "better"), ("higher", "worse")])
def test_messages_say_better_or_worse_where_tables_have_signs(better: Any, said: str) -> None:
    found = one(noisy(40), noisy(40, 0.985, seed=1), better=better, minimum_effect=0.005, significance=1e-9)
    assert found.change < 0
    assert f"% {said}" in found.message.split(",")[0].split(";")[0]


def test_turn_against_turn_may_differ_from_the_medians_and_says_so() -> None:
    # The machine becomes a third faster while the candidate is always a tenth below the turn beside it.
    drift = np.concatenate([np.full(6, 10.0), np.full(6, 15.0)]) * np.linspace(1, 1.05, 12)
    baseline, candidate = drift.copy(), 0.9 * drift
    baseline[5], candidate[6:8] = 10.4, 0.9 * drift[6:8]
    (found,) = judge([pair(baseline, candidate, (1,) * 12, interleaved=True)], Criteria(better="higher"))
    assert found.by_turns
    assert found.change == pytest.approx(-0.1, abs=0.01)
    skewed = candidate.copy()
    skewed[[1, 2]] = 15.0, 15.5
    (found,) = judge([pair(baseline, skewed, (1,) * 12, interleaved=True)], Criteria(better="higher"))
    apart = found.candidate_median / found.baseline_median - 1
    assert (abs(apart - found.change) > 0.025) == ("the medians of all turns" in found.message)
    assert "the medians of all turns" in found.message
