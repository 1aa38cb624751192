"""The judgement of pairs: verdict, reason, effect, and what it would take to know more.

The decision tree, from the top; the first that holds is the verdict:

1. No samples, a number that is not finite, units that differ: ``failed``. A baseline of zero, and a time of
   zero or less: ``inconclusive``.
2. Both sides are the same number throughout: ``pass``.
3. The effect is beyond the threshold and significant after correction for all cases: ``regressed`` or
   ``improved``; ``inconclusive`` where nobody said which direction is the better one.
4. The interval of the effect lies within the threshold: ``pass``.
5. Otherwise ``inconclusive``, with the number of further samples that should settle it.

An effect above zero is worse, everywhere: ``candidate / baseline - 1`` where lower is better, the
negative of it where higher is. So a throughput that falls by a tenth has an effect of 0.1. The
threshold is the policy's minimum effect or the measured noise floor, whichever is larger.

What is ``regressed`` here, or ``suspected``, is measured once more, and ``confirm`` has the last word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.errors import UsageError
from bench.stats.multiplicity import adjusted_p_values, joint_p_value
from bench.stats.pairs import compare
from bench.stats.rank_tests import least_p_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.stats.pairs import Comparison, Pair

Verdict = Literal["pass", "improved", "regressed", "inconclusive", "new", "missing", "failed"]
Direction = Literal["lower", "higher", "unknown"]
ReasonCode = Literal[
    "beyond_threshold",
    "within_threshold",
    "identical",
    "suspected",
    "one_sample",
    "too_few_samples",
    "near_threshold",
    "too_noisy",
    "direction_unknown",
    "zero_baseline",
    "zero_candidate",
    "below_zero",
    "no_samples",
    "not_finite",
    "units_differ",
    "confirmed",
    "confirmed_jointly",
    "not_confirmed",
    "contradicted",
    "no_baseline",
    "no_candidate",
    "not_measured",
]
UNABLE_SHARE = 0.01
"""A rank test that cannot go below this share of the asked significance is helped by a t-test."""
RANK_EVIDENCE = 0.05
"""Where a t-test helps, the rank test must by itself have come so far."""
POWER_DEVIATE = 1.2816
"""Normal deviate of the power of 0.9 that minimum detectable effects are stated for."""
INTERVAL_DEVIATE = 1.96
"""Of ``bench.stats.pairs.CONFIDENCE``."""
NOT_SETTLED = ("direction_unknown", "zero_candidate", "below_zero")
"""Reasons that no further sample takes away."""
NEVER_ZERO = ("s", "ms", "us", "µs", "ns")
"""Units of what takes some time, however little: a zero is a clock too coarse, or nothing that was done."""
MOST_FURTHER = 100
"""More than so many times the samples taken so far is as good as never."""


@dataclass(frozen=True)
class Criteria:
    """By what a case is judged.

    Attributes:
        minimum_effect: policy's threshold, relative (0.02 is 2 %); smaller changes are no regression.
        significance: the chance that a gate in which nothing changed reports anything, and the share of
            wrong ones among all that it reports.
        better: the direction of improvement; ``unknown`` where nobody said.
        noise_floor: relative, measured by A/A runs (``bench.stats.noise``); 0 where it is not known.
        looks: how often the same samples are judged while they grow in number; each look adds a chance
            to be wrong, so significance is divided among them.

    Raises:
        UsageError: a number is out of range, or the direction is none.
    """

    minimum_effect: float = 0.02
    significance: float = 0.01
    better: Direction = "lower"
    noise_floor: float = 0.0
    looks: int = 1

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher", "unknown"):
            raise UsageError(f"better is lower, higher or unknown, not {self.better!r}")
        if not 0 < self.significance < 0.5:
            raise UsageError(f"significance is between 0 and 0.5, not {self.significance}")
        for name in ("minimum_effect", "noise_floor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is a share of the value, 0 or above, not {getattr(self, name)}")
        if self.looks < 1:
            raise UsageError(f"looks is how often samples are judged, 1 or more, not {self.looks}")

    @property
    def threshold(self) -> float:
        """The effect that a regression exceeds."""
        return max(self.minimum_effect, self.noise_floor)

    @property
    def level(self) -> float:
        """Significance of one look."""
        return self.significance / self.looks


@dataclass(frozen=True)
class Judgement:
    """What became of a case, and why.

    Attributes:
        name: the pair's.
        verdict, reason_code, message: what, why for programs, why for people.
        effect: relative, above zero is worse; NaN where unknown.
        interval: of the effect, 95 %, infinite where there are too few samples.
        p_value: two-sided, of this case alone; 1 where there was no test.
        adjusted_p_value: after Benjamini and Hochberg over all cases judged together.
        threshold: that the effect is held against, relative.
        minimum_detectable_effect: the slowdown that so many samples, so noisy, would have shown in nine
            of ten measurements; infinite where no slowdown could.
        samples_to_settle: how many more of ``counted_in`` each side should need; None where it is settled,
            or where no sensible number would do.
        counted_in: ``samples``, or ``rounds`` where a round counts as one.
        by_turns: each block was held against the one measured beside it, so that the effect may be another
            than the two medians': what the machine did meanwhile is in them, and not in the effect.
        cases: how many were judged together.
        baseline_median, candidate_median: in the case's unit.
        criteria: by what it was judged.
    """

    name: str
    verdict: Verdict
    reason_code: ReasonCode
    message: str
    effect: float = math.nan
    interval: tuple[float, float] = (-math.inf, math.inf)
    p_value: float = 1.0
    adjusted_p_value: float = 1.0
    threshold: float = 0.0
    minimum_detectable_effect: float = math.inf
    samples_to_settle: int | None = None
    counted_in: Literal["samples", "rounds"] = "samples"
    by_turns: bool = False
    cases: int = 1
    baseline_median: float = math.nan
    candidate_median: float = math.nan
    criteria: Criteria = Criteria()

    @property
    def needs_confirmation(self) -> bool:
        """Whether a second measurement should be taken before anything is said of a regression."""
        return self.verdict == "regressed" or self.reason_code == "suspected"

    @property
    def change(self) -> float:
        """``candidate / baseline - 1``, whatever is better."""
        return -self.effect if self.criteria.better == "higher" else self.effect


def judge(pairs: Sequence[Pair], criteria: Criteria | Sequence[Criteria]) -> list[Judgement]:
    """Judge all cases of a gate together; significance is corrected for their number.

    Args:
        pairs: of every case that both sides have.
        criteria: of each pair, or one for all.

    Raises:
        UsageError: the number of criteria is another.
    """
    each = [criteria] * len(pairs) if isinstance(criteria, Criteria) else list(criteria)
    if len(each) != len(pairs):
        raise UsageError(f"{len(pairs)} pairs need as many criteria, not {len(each)}")
    compared = [_with_floor(comparison, own) for comparison, own in zip(compare(pairs), each, strict=True)]
    tested = sum(comparison.way is not None for comparison in compared)
    p_values = np.array([_p_value(comparison, own, tested) for comparison, own in zip(compared, each, strict=True)])
    adjusted = adjusted_p_values(p_values)
    return [
        _judge_one(pair, comparison, own, p_value, q, max(1, tested))
        for pair, comparison, own, p_value, q in zip(
            pairs, compared, each, p_values.tolist(), adjusted.tolist(), strict=True
        )
    ]


def unmeasured(name: str, verdict: Verdict, reason_code: ReasonCode, message: str) -> Judgement:
    """The judgement of a case that one side does not have, or could not measure."""
    return Judgement(name, verdict, reason_code, message)


def confirm(first: Judgement, second: Judgement) -> Judgement:
    """What a second, independent measurement makes of a suspected regression.

    Confirmed is what the second shows too, by itself: in the same direction, beyond the threshold,
    and significant. If the first was not significant among all cases, the two together have to be.
    What the second finds within the threshold passes, unless the first was significant among all
    cases: two measurements that contradict each other are inconclusive.

    Raises:
        UsageError: the first is in no need of confirmation.
    """
    if not first.needs_confirmation:
        raise UsageError(f"{first.name} is {first.verdict} ({first.reason_code}): there is nothing to confirm")
    level = first.criteria.level
    joint = joint_p_value(first.p_value, second.p_value)
    joint_adjusted = min(1.0, joint * first.cases)
    again = second.effect > second.threshold and second.p_value <= level
    if again and (first.verdict == "regressed" or joint_adjusted <= level):
        code: ReasonCode = "confirmed" if first.verdict == "regressed" else "confirmed_jointly"
        return replace(
            second,
            verdict="regressed",
            reason_code=code,
            message=f"{_percent(first.effect)} worse, and {_percent(second.effect)} worse in a second measurement;"
            f" threshold {_percent(second.threshold)}",
            p_value=joint,
            adjusted_p_value=min(joint_adjusted, max(first.adjusted_p_value, second.p_value)),
            samples_to_settle=None,
            cases=first.cases,
        )
    seen = f"{_percent(first.effect)} worse at first, {_said(second.effect, second.criteria)} in a second measurement"
    if second.verdict in ("failed", "missing", "new"):
        return replace(second, message=f"{_percent(first.effect)} worse at first; the second: {second.message}")
    settled = second.verdict in ("pass", "improved")
    if settled and first.verdict != "regressed":
        return replace(
            second, verdict="pass", reason_code="not_confirmed", message=f"{seen}, which is within the threshold"
        )
    return replace(
        second,
        verdict="inconclusive",
        reason_code="contradicted" if settled else "not_confirmed",
        message=f"{seen}: {'they contradict each other' if settled else 'that is no confirmation'}; measure again",
        cases=first.cases,
    )


def _with_floor(comparison: Comparison, criteria: Criteria) -> Comparison:
    """Serial samples say nothing of another process; the measured noise between runs stands in for that."""
    floor = criteria.noise_floor
    if comparison.way != "serial" or floor == 0:
        return comparison
    from scipy.special import ndtr, ndtri

    spread = floor / INTERVAL_DEVIATE
    own = float(ndtri(comparison.p_value / 2))
    implied = abs(comparison.shift / own) if own else 0.0
    p_value = 2 * float(ndtr(-abs(comparison.shift) / math.hypot(implied, spread)))
    return replace(
        comparison,
        p_value=max(comparison.p_value, p_value),
        low=comparison.shift - math.hypot(comparison.shift - comparison.low, floor),
        high=comparison.shift + math.hypot(comparison.high - comparison.shift, floor),
        error=math.hypot(comparison.error, spread),
    )


def _p_value(comparison: Comparison, criteria: Criteria, cases: int) -> float:
    """The case's p-value before correction; NaN where there is no test.

    Few units separate as far as ranks can tell, and are still not significant among many cases. Then
    the t-test of the units may say how far apart they are; but only after the ranks, which assume
    nothing, have shown that they differ at all.
    """
    if comparison.way is None:
        return math.nan
    level = criteria.level
    unable = comparison.least_p_value > UNABLE_SHARE * level / max(1, cases)
    if unable and comparison.p_value <= max(level, RANK_EVIDENCE):
        return min(comparison.p_value, comparison.normal_p_value)
    return comparison.p_value


def _can_show(least: float, comparison: Comparison, criteria: Criteria) -> bool:
    """Whether so few units could be significant at all, given the least p-value that their ranks can reach."""
    return least <= (criteria.level if comparison.way == "serial" else max(criteria.level, RANK_EVIDENCE))


def _judge_one(
    pair: Pair, comparison: Comparison, criteria: Criteria, p_value: float, adjusted: float, cases: int
) -> Judgement:
    judgement = Judgement(
        pair.name,
        "failed",
        "not_measured",
        "",
        threshold=criteria.threshold,
        cases=cases,
        baseline_median=comparison.baseline_median,
        candidate_median=comparison.candidate_median,
        criteria=criteria,
    )
    if comparison.way is None:
        return _without_test(judgement, pair, comparison)
    sign = -1.0 if criteria.better == "higher" else 1.0
    ends = (-math.inf, math.inf)
    if math.isfinite(comparison.low) and math.isfinite(comparison.high):
        ends = (sign * comparison.relative(comparison.low), sign * comparison.relative(comparison.high))
    judgement = replace(
        judgement,
        effect=sign * comparison.relative(comparison.shift),
        interval=(min(ends), max(ends)),
        p_value=p_value,
        adjusted_p_value=adjusted,
        minimum_detectable_effect=_detectable(comparison, criteria, cases),
        counted_in="samples" if comparison.way == "serial" or comparison.samples_a_unit == 1 else "rounds",
        by_turns=comparison.way == "paired",
    )
    verdict, code, message = _decide(judgement, pair, comparison)
    settle = _to_settle(judgement, comparison) if verdict == "inconclusive" and code not in NOT_SETTLED else None
    message += _other_medians(judgement)
    return replace(judgement, verdict=verdict, reason_code=code, message=message, samples_to_settle=settle)


def _without_test(judgement: Judgement, pair: Pair, comparison: Comparison) -> Judgement:
    if comparison.problem == "units_differ":
        message = f"the baseline is in {pair.baseline.unit!r}, the candidate in {pair.candidate.unit!r}: not comparable"
        return replace(judgement, reason_code="units_differ", message=message)
    if comparison.problem == "no_samples":
        return replace(judgement, reason_code="no_samples", message="a side has no samples")
    if comparison.problem == "not_finite":
        return replace(judgement, reason_code="not_finite", message="a sample is not a finite number")
    message = f"the baseline is 0, the candidate {comparison.candidate_median:.4g}: no ratio says how much that is"
    return replace(judgement, verdict="inconclusive", reason_code="zero_baseline", message=message)


def _decide(judgement: Judgement, pair: Pair, comparison: Comparison) -> tuple[Verdict, ReasonCode, str]:
    """Verdict, reason and message, from step 2 of the tree on."""
    criteria, effect, threshold = judgement.criteria, judgement.effect, judgement.threshold
    low, high = judgement.interval
    if _is_one_number(pair):
        return "pass", "identical", "all samples of both sides are the same number"
    if comparison.candidate_median == 0 and pair.candidate.unit in NEVER_ZERO:
        return "inconclusive", "zero_candidate", "the candidate took no time at all: that is no measurement"
    if min(comparison.baseline_median, comparison.candidate_median) < 0 and pair.candidate.unit in NEVER_ZERO:
        return "inconclusive", "below_zero", "a time below zero is no measurement: did a clock jump back?"
    known = criteria.better != "unknown"
    beyond = abs(effect) > threshold
    if beyond and judgement.adjusted_p_value <= criteria.level:
        if not known:
            message = f"{_said(effect, criteria)}, and nobody said which direction is better"
            return "inconclusive", "direction_unknown", message
        message = f"{_said(effect, criteria)}, threshold {_percent(threshold)}, {_odds(judgement)}"
        return ("regressed" if effect > 0 else "improved"), "beyond_threshold", message
    if high < threshold and (known or low > -threshold):
        return (
            "pass",
            "within_threshold",
            f"{_said(effect, criteria)}, at most {_said(high, criteria)}; threshold {_percent(threshold)}",
        )
    samples = min(pair.baseline.values.size, pair.candidate.values.size)
    if samples == 1:
        return "inconclusive", "one_sample", f"{_said(effect, criteria)} from a single sample: its noise is unknown"
    if judgement.p_value <= criteria.level and effect > threshold and known:
        message = f"{_percent(effect)} worse, by itself significant, but not among {judgement.cases} cases"
        return "inconclusive", "suspected", message
    if not _can_show(comparison.least_p_value, comparison, criteria):
        message = (
            f"{comparison.units} {judgement.counted_in} a side can show nothing at significance {criteria.level:g}"
        )
        return "inconclusive", "too_few_samples", message
    if not _has_ends(judgement):
        return "inconclusive", "too_few_samples", f"{_said(effect, criteria)}; too few samples for an interval"
    between = f"between {_said(low, criteria)} and {_said(high, criteria)}"
    message = f"{_said(effect, criteria)}, {between}; threshold {_percent(threshold)}"
    if low > 0 or high - low <= threshold:
        return "inconclusive", "near_threshold", message
    return "inconclusive", "too_noisy", message


def _has_ends(judgement: Judgement) -> bool:
    return all(map(math.isfinite, judgement.interval))


def _other_medians(judgement: Judgement) -> str:
    """What the two medians say, where that is another thing than the effect; empty where they agree."""
    was, now = judgement.baseline_median, judgement.candidate_median
    if not judgement.by_turns or was == 0:
        return ""
    apart = now / was - 1 if was > 0 else (now - was) / abs(was)
    if abs(apart - judgement.change) <= max(judgement.threshold, abs(judgement.change) / 4):
        return ""
    return (
        f"; {_signed(judgement.change)} is turn against turn beside it, and the medians of all turns, {_signed(apart)}"
        " apart, have the machine's drift in them"
    )


def _is_one_number(pair: Pair) -> bool:
    first = pair.baseline.values[0]
    return bool((pair.baseline.values == first).all() and (pair.candidate.values == first).all())


def _deviate(comparison: Comparison, criteria: Criteria, cases: int) -> float:
    """How many standard errors an effect has to be from zero to be significant as the only one among all cases."""
    from scipy.special import ndtri, stdtrit

    tail = criteria.level / max(1, cases) / 2
    if comparison.least_p_value > UNABLE_SHARE * 2 * tail:
        return -float(stdtrit(max(1, 2 * comparison.units - 2), tail))
    return -float(ndtri(tail))


def _detectable(comparison: Comparison, criteria: Criteria, cases: int) -> float:
    known = all(map(math.isfinite, (comparison.low, comparison.high, comparison.error)))
    if not known or not _can_show(comparison.least_p_value, comparison, criteria):
        return math.inf
    significant = _deviate(comparison, criteria, cases) * comparison.error
    least = max(significant, math.log1p(criteria.threshold) if comparison.is_ratio else criteria.threshold)
    shift = least + POWER_DEVIATE * comparison.error
    return -comparison.relative(-shift) if criteria.better == "higher" else comparison.relative(shift)


def _to_settle(judgement: Judgement, comparison: Comparison) -> int | None:
    """How many more units a side should need; None where that is no sensible number."""
    units, criteria, effect = comparison.units, judgement.criteria, judgement.effect
    least = _least_units(comparison, criteria)
    if units < least or not math.isfinite(comparison.error):
        return max(1, least - units)
    if not _has_ends(judgement):
        return units  # Nothing tells how wide an interval will be: twice as many.
    wanted = 0.0
    if abs(effect) > judgement.threshold:
        wanted = (_deviate(comparison, criteria, judgement.cases) * comparison.error / abs(effect)) ** 2
    elif effect < judgement.threshold:
        wanted = (INTERVAL_DEVIATE * comparison.error / (judgement.threshold - effect)) ** 2
    further = max(1, least - units, math.ceil(min(wanted, 1e9) * units) - units)
    return further if further <= MOST_FURTHER * units else None


def _least_units(comparison: Comparison, criteria: Criteria) -> int:
    units = 2
    while not _can_show(least_p_value(units, units), comparison, criteria):
        units += 1
    return units


def _odds(judgement: Judgement) -> str:
    return f"p = {judgement.adjusted_p_value:.2g} among {judgement.cases} case(s)"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _said(effect: float, criteria: Criteria) -> str:
    """``3.2 % worse``; a signed change where nobody said what is worse."""
    if criteria.better == "unknown":
        return _signed(effect)
    shown = _percent(abs(effect))
    return "unchanged" if effect == 0 else f"{shown} {'worse' if effect > 0 else 'better'}"


def _signed(share: float) -> str:
    return f"{100 * share:+.3g} %"
