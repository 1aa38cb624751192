"""The gate's decision tree: every verdict and reason, thresholds, confirmation, waivers, required cases."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import EXIT_INCONCLUSIVE, EXIT_NOT_MEASURED, EXIT_OK, EXIT_REGRESSION
from bench.gate import Frame, GateSides, judge_sides, judge_stored
from bench.gate_sources import Source
from bench.noise_floors import NoiseFloors
from bench.policy import Policy, parse_policy
from bench.suite import Case
from tests.bench.gate_rows import THERE, row, samples_of, source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.gate_result import Comparison, GateResult
    from bench.store.row import Row

TODAY = date(2027, 1, 31)


def side(median: float, *, run: str = "run1", seed: int = 1, blocks: int = 1, **changes: Any) -> list[Row]:
    """Rows of one side, a run a block."""
    scatter, count = changes.pop("scatter", 0.002), changes.pop("count", 20)
    return [
        row(samples_of(median, count, scatter=scatter, seed=seed * 1000 + place), run_id=f"{run}{place}", **changes)
        for place in range(blocks)
    ]


def judged(
    baseline: Sequence[Row] | Source, candidate: Sequence[Row] | Source, policy: str | Policy = "", **options: Any
) -> GateResult:
    sides = [found if isinstance(found, Source) else source(found) for found in (baseline, candidate)]
    if isinstance(policy, str):
        policy = parse_policy(f"schema_version = 1\n{policy}", "policy.toml")
    return judge_stored(sides[0], sides[1], Frame(policy, today=TODAY, **options))


def only(result: GateResult) -> Comparison:
    (comparison,) = result.comparisons
    return comparison


def test_the_same_passes() -> None:
    result = judged(side(100), side(100, run="new", seed=2))
    assert (only(result).verdict, result.exit_code, result.verdict) == ("pass", EXIT_OK, "passed")


def test_a_slowdown_is_a_regression_that_one_run_cannot_confirm() -> None:
    result = judged(side(100), side(110, run="new", seed=2))
    comparison = only(result)
    assert (comparison.verdict, comparison.confirmed, result.exit_code) == ("regressed", None, EXIT_REGRESSION)
    assert comparison.outcome == "regressed, not confirmed"
    assert comparison.effect == pytest.approx(0.1, abs=0.01)
    assert any("name a second candidate run" in note for note in result.notes)


def test_where_the_policy_requires_it_an_unconfirmed_slowdown_is_inconclusive() -> None:
    result = judged(side(100), side(110, run="new", seed=2), 'confirmation = "required"')
    assert (only(result).verdict, only(result).reason_code) == ("inconclusive", "unconfirmed")
    assert result.exit_code == EXIT_INCONCLUSIVE


def test_the_last_candidate_run_confirms() -> None:
    runs = [*side(110, run="a", seed=2), *side(110, run="b", seed=3)]
    comparison = only(judged(side(100), runs, 'confirmation = "required"'))
    assert (comparison.verdict, comparison.reason_code, comparison.confirmed) == ("regressed", "confirmed", True)


def test_a_slowdown_that_does_not_come_again_is_none() -> None:
    runs = [*side(110, run="a", seed=2), *side(100, run="b", seed=3)]
    result = judged(side(100), runs)
    assert only(result).verdict == "inconclusive"
    assert only(result).confirmed is False
    assert result.exit_code == EXIT_INCONCLUSIVE


def test_direction_turns_the_verdict_around() -> None:
    higher = {"better": "higher", "unit": "GB/s", "metric": "algbw"}
    slower = only(judged(side(100, **higher), side(90, run="new", seed=2, **higher)))
    assert slower.verdict == "regressed"
    assert slower.effect is not None
    assert slower.effect > 0 > (slower.change or 0)
    assert slower.change_interval is not None
    assert -0.11 < slower.change_interval[0] < slower.change_interval[1] < -0.09
    assert only(judged(side(100), side(90, run="new", seed=2))).verdict == "improved"


def test_a_direction_that_nobody_knows_is_inconclusive_until_the_policy_tells() -> None:
    unknown = {"better": ""}
    result = judged(side(100, **unknown), side(110, run="new", seed=2, **unknown))
    assert (only(result).verdict, only(result).reason_code) == ("inconclusive", "direction_unknown")
    rule = '[[rule]]\nmetric = "latency"\nbetter = "lower"'
    assert only(judged(side(100, **unknown), side(110, run="new", seed=2, **unknown), rule)).verdict == "regressed"


def test_a_change_below_the_policys_threshold_passes() -> None:
    rule = '[[rule]]\nsuite = "coll*"\nwhere = { op = "all_*", bytes = "1KiB" }\nminimum_effect = 0.15'
    comparison = only(judged(side(100), side(110, run="new", seed=2), rule))
    assert (comparison.verdict, comparison.threshold) == ("pass", 0.15)


def test_measured_noise_raises_the_threshold() -> None:
    machine = source(side(100)).identity("run10")
    key = (_series(), str(machine))
    repeats = [row(samples_of(median, seed=9), run_id=f"n{median}") for median in (95, 100, 105, 98, 102)]
    floors = NoiseFloors({key: repeats})
    comparison = only(judged(side(100), side(106, run="new", seed=2), noise=floors))
    assert comparison.noise_floor is not None
    assert 0.1 < comparison.noise_floor == comparison.threshold
    assert comparison.verdict != "regressed"
    assert only(judged(side(100), side(106, run="new", seed=2))).verdict == "regressed", "without the noise"


def test_noise_that_hides_everything_lets_nothing_pass() -> None:
    """A rate can fall by 100 % at most, which is within noise of more: that would be a pass."""
    higher = {"better": "higher"}
    key = (_series(), str(source(side(100)).identity("run10")))
    repeats = [row(samples_of(median, seed=9), run_id=f"n{median}") for median in (50, 100, 200)]
    result = judged(side(100, **higher), side(60, run="new", seed=2, **higher), noise=NoiseFloors({key: repeats}))
    assert (only(result).verdict, only(result).reason_code) == ("inconclusive", "noise_above_maximum")
    assert result.exit_code == EXIT_INCONCLUSIVE


def _series() -> Any:
    from bench.gate_matching import series_of

    return series_of(side(100)[0])


def test_unknown_noise_is_said() -> None:
    assert any("bench noise SUITE" in note for note in judged(side(100), side(100, run="new", seed=2)).notes)


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict"),
    [
        ([5.0] * 10, [5.0] * 10, "pass"),
        ([5.0] * 10, [6.0] * 10, "regressed"),
        ([5.0] * 10, [4.0] * 10, "improved"),
        ([0.0] * 10, [0.0] * 10, "pass"),
        ([0.0] * 10, [1.0] * 10, "inconclusive"),
        ([5.0], [6.0], "inconclusive"),
        ([5.0] * 10, [6.0], "inconclusive"),
        ([-5.0] * 10, [-6.0] * 10, "inconclusive"),
        ([-5.0] * 10, [5.0] * 10, "inconclusive"),
    ],
    ids=[
        "zero variance, same",
        "zero variance, worse",
        "zero variance, better",
        "all zero",
        "zero baseline",
        "one sample",
        "one against many",
        "a time below zero",
        "a clock that jumped",
    ],
)
def test_odd_samples(baseline: list[float], candidate: list[float], verdict: str) -> None:
    result = judged([row(baseline)], [row(candidate, run_id="run2")])
    assert only(result).verdict == verdict
    assert only(result).message


def test_nan_among_the_samples_is_failed() -> None:
    """No row of ours can hold it, but files of other programs might."""
    odd = row([5.0] * 10, run_id="run2")
    odd.samples[3] = float("nan")
    result = judged([row([5.0] * 10)], [odd])
    assert (only(result).verdict, only(result).reason_code) == ("failed", "not_finite")
    assert result.exit_code == EXIT_NOT_MEASURED


def test_six_against_six_separated_samples_are_a_difference() -> None:
    result = judged([row([100.0, 101, 102, 103, 104, 105])], [row([120.0, 121, 122, 123, 124, 125], run_id="run2")])
    assert only(result).verdict == "regressed"


def test_another_machine_is_new_and_nothing_was_compared() -> None:
    baseline = source(side(100), THERE)
    result = judged(baseline, side(110, run="new", seed=2))
    assert (only(result).verdict, only(result).reason_code) == ("new", "other_machine")
    assert result.exit_code == EXIT_NOT_MEASURED
    assert "the machines differ: cpu.model: 'Xeon' and 'EPYC'" in result.notes
    asked = judged(baseline, side(110, run="new", seed=2), across_machines=True)
    assert (only(asked).verdict, asked.exit_code) == ("regressed", EXIT_REGRESSION)


@pytest.mark.parametrize("changes", [{"method_version": 2}, {"unit": "ns"}, {"definition": "other/v1"}])
def test_a_gate_that_compared_nothing_is_not_ok(changes: dict[str, Any]) -> None:
    result = judged(side(100), side(100, run="new", **changes))
    assert (only(result).verdict, result.compared, result.exit_code) == ("new", 0, EXIT_NOT_MEASURED)
    assert result.headline.endswith("nothing was compared")


def test_missing_and_failed_are_not_ok() -> None:
    other = [replace(found, metric="algbw", better="higher", unit="GB/s") for found in side(100)]
    missing = judged([*side(100), *other], side(100, run="new", seed=2))
    assert [c.verdict for c in missing.comparisons] == ["missing", "pass"]
    failed = judged(
        [*side(100), *other],
        [*side(100, run="new", seed=2), replace(row(), run_id="new0", metric="algbw", better="higher", unit="GB/s")],
    )
    assert [c.verdict for c in failed.comparisons] == ["failed", "pass"]
    assert missing.exit_code == failed.exit_code == EXIT_NOT_MEASURED


def test_a_case_that_broke_in_the_confirming_run_is_failed() -> None:
    runs = [*side(100, run="a", seed=2), row(run_id="b0")]
    result = judged(side(100), runs)
    assert only(result).verdict == "failed"
    assert result.exit_code == EXIT_NOT_MEASURED


def test_runs_of_different_cases_are_one_candidate() -> None:
    other = [replace(found, metric="algbw") for found in side(100)]
    more = [replace(found, metric="algbw", run_id="b0") for found in side(110, run="b", seed=3)]
    result = judged([*side(100), *other], [*side(100, run="a", seed=2), *more])
    assert {c.metric: c.outcome for c in result.comparisons} == {"latency": "pass", "algbw": "regressed, not confirmed"}


def test_a_regression_outweighs_what_is_missing() -> None:
    other = [replace(found, metric="algbw") for found in side(100)]
    result = judged([*side(100), *other], side(120, run="new", seed=2))
    assert [c.verdict for c in result.comparisons] == ["regressed", "missing"]
    assert result.exit_code == EXIT_REGRESSION


WAIVER = '[[waiver]]\nsuite = "collectives"\nwhere = {{ op = "all_gather" }}\nexpires = {expires}\nreason = "known"'


def test_a_waiver_lets_a_regression_through_and_is_shown() -> None:
    result = judged(side(100), side(110, run="new", seed=2), WAIVER.format(expires="2027-01-31"))
    assert only(result).verdict == "regressed"
    assert only(result).waiver == "known (until 2027-01-31)"
    assert (result.exit_code, result.waived, result.errors) == (EXIT_OK, 1, [])


def test_an_expired_waiver_waives_nothing_and_is_an_error_line() -> None:
    result = judged(side(100), side(110, run="new", seed=2), WAIVER.format(expires="2027-01-30"))
    assert (only(result).waived, result.exit_code) == (False, EXIT_REGRESSION)
    (error,) = result.errors
    assert (
        "waiver 1 (suite=collectives metric=* op=all_gather) expired on 2027-01-30 and waives nothing: known" in error
    )


def test_missing_cannot_be_waived() -> None:
    other = [replace(found, metric="algbw") for found in side(100)]
    result = judged([*side(100), *other], side(100, run="new", seed=2), WAIVER.format(expires="2027-01-31"))
    assert result.exit_code == EXIT_NOT_MEASURED


def test_entries_that_match_nothing_are_said() -> None:
    policy = (
        '[[rule]]\nsuite = "colectives"\nminimum_effect = 0.5\n[[rule]]\nsuite = "collectives"\nminimum_effect = 0.05'
    )
    notes = judged(side(100), side(100, run="new", seed=2), policy).notes
    assert "policy.toml: these entries match nothing here: rule 1 (suite=colectives metric=*)" in notes


def test_what_is_required_must_be_measured() -> None:
    policy = '[[required]]\nsuite = "collectives"\nwhere = { op = "all_reduce" }'
    result = judged(side(100), side(100, run="new", seed=2), policy)
    assert [(c.verdict, c.reason_code) for c in result.comparisons] == [
        ("missing", "required"),
        ("pass", "within_threshold"),
    ]
    assert result.exit_code == EXIT_NOT_MEASURED
    there = '[[required]]\nsuite = "collectives"\nwhere = { op = "all_*" }'
    assert judged(side(100), side(100, run="new", seed=2), there).exit_code == EXIT_OK


def test_what_the_policy_leaves_out_is_counted() -> None:
    result = judged(side(100), side(150, run="new", seed=2), '[[rule]]\nmetric = "lat*"\njudge = false')
    assert (result.comparisons, result.not_judged) == ([], 1)
    assert result.exit_code == EXIT_NOT_MEASURED, "nothing was compared"


def test_interleaved_noise_is_that_of_so_many_turns() -> None:
    key = (_series(), "digest")
    repeats = [row(samples_of(median, seed=9), run_id=f"n{median}") for median in (95, 100, 105, 98, 102)]
    floors = NoiseFloors({key: repeats}, here="digest")
    turns = [
        Source("x", tuple(side(100, run=name, blocks=9, seed=n)), machine="here") for n, name in ((1, "a"), (2, "b"))
    ]
    frame = Frame(Policy(), noise=floors, today=TODAY)
    comparison = only(judge_sides(GateSides(turns[0], turns[1], interleaved=True), frame))
    alone = floors.floor(_series(), ["digest"])
    assert alone is not None
    assert comparison.noise_floor == pytest.approx(alone / 3)


def test_clocks_that_jump_back_change_nothing() -> None:
    early = [replace(found, started_at="1970-01-01T00:00:00+00:00") for found in side(110, run="0a", seed=2)]
    runs = [*early, *side(110, run="00", seed=3)]
    assert only(judged(side(100), runs)).confirmed is True


@pytest.mark.slow
def test_ten_thousand_cases_take_seconds() -> None:
    def rows(run: str, seed: int) -> list[Row]:
        return [
            row(samples_of(100, 30, seed=seed + case), params={"case": case}, case=Case({"case": case}).id, run_id=run)
            for case in range(10_000)
        ]

    baseline, candidate = source(rows("run1", 0)), source(rows("run2", 20_000))
    began = time.process_time()
    result = judge_stored(baseline, candidate, Frame(Policy(), today=TODAY))
    assert time.process_time() - began < 10
    assert result.counts["regressed"] == 0


@pytest.mark.parametrize("candidate", [80, 100, 120])
def test_a_direction_that_changed_is_no_verdict(candidate: float) -> None:
    now = side(candidate, run="new", seed=2, better="higher")
    comparison = only(judged(side(100), now))
    assert (comparison.verdict, comparison.reason_code) == ("inconclusive", "direction_changed")
    assert comparison.better == ""


@pytest.mark.parametrize(("better", "verdict"), [("lower", "regressed"), ("higher", "improved")])
def test_the_policy_settles_a_direction_that_changed(better: str, verdict: str) -> None:
    now = side(120, run="new", seed=2, better="higher")
    assert only(judged(side(100), now, f'[defaults]\nbetter = "{better}"')).verdict == verdict


def test_a_direction_that_one_side_does_not_say_is_the_others() -> None:
    assert only(judged(side(100), side(120, run="new", seed=2, better=""))).verdict == "regressed"


def test_entries_for_suites_that_are_not_here_are_no_slips() -> None:
    entries = (
        '[[rule]]\nsuite = "memory"\njudge = false\n[[rule]]\nsuite = "collectives"\nmetric = "latnecy"\njudge = false'
    )
    notes = "\n".join(judged(side(100), side(100, run="new", seed=2), entries).notes)
    assert "rule 2 (suite=collectives metric=latnecy)" in notes
    assert "memory" not in notes
