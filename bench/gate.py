"""The gate: from two sides and a policy to a verdict for every metric of every case.

The decision tree, which docs/gate.md shows in full:

1. Rows are paired (``bench.gate_matching``); what has no partner is new, missing or failed.
2. The policy says what is judged, from which effect on, and in which direction (``bench.policy``);
   measured A/A noise raises that effect (``bench.noise_floors``).
3. All pairs are judged together (``bench.stats.judgement``).
4. What looks slower is held against a second measurement where there is one.
5. The policy's waivers and required cases have the last word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from bench.gate_matching import Match, blocks_of, match_rows
from bench.gate_result import SEVERITY, Comparison, GateResult
from bench.gate_sources import identity_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.gate_matching import Series
    from bench.gate_sources import Source
    from bench.noise_floors import NoiseFloors
    from bench.policy import Policy, Settings
    from bench.stats.judgement import Criteria, Judgement
    from bench.stats.pairs import Pair

IDENTITY_CHANGES_SHOWN = 5
LEAST_TURNS = 4
"""Of fewer interleaved turns a side, nothing tells a change from the difference between two processes."""
Key = tuple["Series", "str | None"]
"""A series on one machine."""
Chosen = tuple["Match", "Settings"]
"""A series, and how the policy wants it judged."""


def today_utc() -> date:
    """The day by which waivers expire."""
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class Frame:
    """By what two sides are judged.

    Attributes:
        policy: thresholds, directions, required cases, waivers.
        noise: measured A/A noise; None where none is looked for.
        across_machines: compare with other machines' rows too.
        today: the day by which waivers expire.
    """

    policy: Policy
    noise: NoiseFloors | None = None
    across_machines: bool = False
    today: date = field(default_factory=today_utc)


@dataclass(frozen=True)
class GateSides:
    """What is compared.

    Attributes:
        baseline, candidate: the two sides.
        second: both sides of a second, independent measurement, which confirms; None where there is none.
        last_run_confirms: of the candidate's runs of a series, the last is the second measurement.
        interleaved: block i of the one side was measured next to block i of the other.
        looks: how often these samples are judged while they grow.
        interrupted: the measuring was ended early.
    """

    baseline: Source
    candidate: Source
    second: tuple[Source, Source] | None = None
    last_run_confirms: bool = False
    interleaved: bool = False
    looks: int = 1
    interrupted: bool = False


def judge_stored(baseline: Source, candidate: Source, frame: Frame) -> GateResult:
    """Judge stored measurements. Where the candidate measured a case in several runs, the last one confirms."""
    return judge_sides(GateSides(baseline, candidate, last_run_confirms=True), frame)


def judge_sides(sides: GateSides, frame: Frame) -> GateResult:
    """Judge two sides, and hold what looks slower against the second measurement."""
    policy = frame.policy
    matching = match_rows(sides.baseline, sides.candidate, across_machines=frame.across_machines)
    chosen = [(match, policy.settings(*_place(match))) for match in matching.matches]
    judged = [(match, settings) for match, settings in chosen if settings.judge]
    firsts, again = _first_and_last(judged) if sides.last_run_confirms else (judged, [])
    if sides.second is not None:
        again = _again(judged, sides.second, frame)
    first = _judge_all(firsts, sides, frame)
    second = _confirming(again, first, sides, frame)
    today = frame.today
    comparisons = []
    for match, settings in judged:
        found = _comparison(match, settings, first.get(_key(match)), second, frame)
        found = _direction_kept(_few_turns(found, match, sides), match, settings)
        comparisons.append(_waived(found, policy, today))
    comparisons += _required_but_absent(policy, comparisons)
    comparisons.sort(key=lambda comparison: SEVERITY.index(comparison.verdict))
    return GateResult(
        baseline=sides.baseline.label,
        candidate=sides.candidate.label,
        comparisons=comparisons,
        policy=policy,
        skipped=matching.skipped,
        not_judged=len(chosen) - len(judged),
        notes=[*_notes(sides, comparisons), *matching.notes, *_unused(policy, matching.matches)],
        errors=_expired(policy, today),
        interrupted=sides.interrupted,
        baseline_runs=sides.baseline.run_ids,
        candidate_runs=sides.candidate.run_ids,
    )


def _place(match: Match) -> tuple[str, str, Mapping[str, Any]]:
    """What the policy's patterns are held against."""
    return match.series.suite, match.series.metric, match.params


def _key(match: Match) -> Key:
    return match.series, match.machine


def _judge_all(chosen: Sequence[Chosen], sides: GateSides, frame: Frame) -> dict[Key, Judgement]:
    """The judgement of every pair of numbers, all of them together."""
    from bench.stats.judgement import judge

    paired = [(match, settings) for match, settings in chosen if match.verdict is None]
    pairs = [_pair(match, sides.interleaved) for match, _ in paired]
    criteria = [_criteria(match, settings, sides, frame) for match, settings in paired]
    judgements = judge(pairs, criteria)
    return {_key(match): judgement for (match, _), judgement in zip(paired, judgements, strict=True)}


def _pair(match: Match, interleaved: bool) -> Pair:
    from bench.stats.pairs import Pair, Samples

    unit = match.series.unit
    baseline = Samples.from_blocks(blocks_of(match.baseline), unit)
    candidate = Samples.from_blocks(blocks_of(match.candidate), unit)
    return Pair(f"{match.series.metric} of {match.series.case}", baseline, candidate, interleaved)


def _criteria(match: Match, settings: Settings, sides: GateSides, frame: Frame) -> Criteria:
    from bench.stats.judgement import Criteria

    floor = _floor(match, sides.interleaved, frame.noise)
    return Criteria(
        minimum_effect=settings.minimum_effect,
        significance=frame.policy.significance,
        better=_direction(match, settings),
        noise_floor=floor or 0.0,
        looks=sides.looks,
    )


def _floor(match: Match, interleaved: bool, noise: NoiseFloors | None) -> float | None:
    """Measured A/A noise of the series: the larger of the two machines' where they differ."""
    if noise is None:
        return None
    if interleaved:
        return noise.floor(match.series, [noise.here], min(len(match.baseline), len(match.candidate)))
    return noise.floor(match.series, [match.machine, *match.baseline_machines])


def _direction(match: Match, settings: Settings) -> Any:
    better = settings.better or match.better
    return better if better in ("lower", "higher") else "unknown"


def _first_and_last(judged: Sequence[Chosen]) -> tuple[list[Chosen], list[Chosen]]:
    """Series with all of the candidate's runs but the last one, and with that one alone; a single run is the first."""
    firsts = [(replace(match, candidate=match.candidate[:-1] or match.candidate), own) for match, own in judged]
    lasts = [(replace(match, candidate=match.candidate[-1:]), own) for match, own in judged if len(match.candidate) > 1]
    return firsts, lasts


def _again(judged: Sequence[Chosen], second: tuple[Source, Source], frame: Frame) -> list[Chosen]:
    """The series of a second measurement."""
    settings_of = {_key(match): settings for match, settings in judged}
    matches = match_rows(*second, across_machines=frame.across_machines).matches
    return [(match, settings_of[_key(match)]) for match in matches if _key(match) in settings_of]


def _confirming(
    again: Sequence[Chosen], first: Mapping[Key, Judgement], sides: GateSides, frame: Frame
) -> dict[Key, Judgement]:
    """The second measurement of what the first suspects."""
    wanted = [
        (match, settings)
        for match, settings in again
        if match.verdict is None
        and not _too_few_turns(match, sides)
        and _key(match) in first
        and first[_key(match)].needs_confirmation
    ]
    return _judge_all(wanted, sides, frame)


def _comparison(
    match: Match, settings: Settings, first: Judgement | None, second: Mapping[Key, Judgement], frame: Frame
) -> Comparison:
    """What became of one series."""
    direction = _direction(match, settings)
    plain = Comparison(
        **match.series._asdict(),
        params=match.params,
        better="" if direction == "unknown" else direction,
        verdict=match.verdict or "inconclusive",
        reason_code=match.reason_code,
        message=match.message,
        baseline_value=_value(match.baseline),
        candidate_value=_value(match.candidate),
        baseline_samples=_samples(match.baseline),
        candidate_samples=_samples(match.candidate),
        minimum_effect=settings.minimum_effect,
    )
    if first is None:
        return plain
    if not first.needs_confirmation:
        return _not_drowned(_filled(plain, first), frame.policy)
    if _key(match) in second:
        from bench.stats.judgement import confirm

        confirmed = confirm(first, second[_key(match)])
        return replace(_filled(plain, confirmed), confirmed=confirmed.verdict == "regressed")
    found = _filled(plain, first)
    if found.verdict == "regressed" and frame.policy.confirmation == "required":
        message = f"{found.message}; no second measurement confirms it"
        return replace(found, verdict="inconclusive", reason_code="unconfirmed", message=message)
    return found


def _too_few_turns(match: Match, sides: GateSides) -> bool:
    return sides.interleaved and min(len(match.baseline), len(match.candidate)) < LEAST_TURNS


def _few_turns(comparison: Comparison, match: Match, sides: GateSides) -> Comparison:
    """Interleaved turns that are too few are no verdict, however many samples each has."""
    if (
        match.verdict is not None
        or not _too_few_turns(match, sides)
        or comparison.verdict in ("failed", "inconclusive")
    ):
        return comparison
    turns = min(len(match.baseline), len(match.candidate))
    message = f"{turns} turn(s) a side, and {LEAST_TURNS} are the least that tell: give a larger --budget"
    return replace(comparison, verdict="inconclusive", reason_code="too_few_turns", message=message)


def _direction_kept(comparison: Comparison, match: Match, settings: Settings) -> Comparison:
    """Where the rows contradict each other on what is better, only the policy can say whether a change is one."""
    if not match.direction_changed or settings.better or comparison.verdict == "failed":
        return comparison
    message = (
        "some rows say lower is better, others higher: give the metric a new definition or method version where its"
        " meaning changed, or state `better` in a rule of the policy"
    )
    return replace(
        comparison, verdict="inconclusive", reason_code="direction_changed", message=message, samples_to_settle=None
    )


def _not_drowned(comparison: Comparison, policy: Policy) -> Comparison:
    """A pass below a floor that hides everything is none."""
    floor = comparison.noise_floor or 0.0
    if comparison.verdict != "pass" or comparison.reason_code == "identical" or floor <= policy.maximum_noise:
        return comparison
    message = (
        f"the measured A/A noise is {100 * floor:.3g} %, so a pass would say nothing: measure longer, on a quieter"
        " machine, or with --interleave"
    )
    return replace(comparison, verdict="inconclusive", reason_code="noise_above_maximum", message=message)


def _filled(comparison: Comparison, judgement: Judgement) -> Comparison:
    """The comparison with what a judgement says."""
    return replace(
        comparison,
        verdict=judgement.verdict,
        reason_code=judgement.reason_code,
        message=judgement.message,
        effect=_finite(judgement.effect),
        change=_finite(judgement.change),
        interval=judgement.interval if all(map(math.isfinite, judgement.interval)) else None,
        p_value=judgement.p_value,
        adjusted_p_value=judgement.adjusted_p_value,
        minimum_detectable_effect=_finite(judgement.minimum_detectable_effect),
        samples_to_settle=judgement.samples_to_settle,
        counted_in=judgement.counted_in,
        by_turns=judgement.by_turns,
        threshold=judgement.threshold,
        noise_floor=judgement.criteria.noise_floor or None,
        baseline_value=_or(_finite(judgement.baseline_median), comparison.baseline_value),
        candidate_value=_or(_finite(judgement.candidate_median), comparison.candidate_value),
    )


def _value(rows: Sequence[Any]) -> float | None:
    """The median over runs of the rows' values."""
    from statistics import median

    return median(float(row.value) for row in rows) if rows else None


def _samples(rows: Sequence[Any]) -> int:
    return sum(len(row.samples) or 1 for row in rows)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or(value: float | None, other: float | None) -> float | None:
    return other if value is None else value


def _waived(comparison: Comparison, policy: Policy, today: date) -> Comparison:
    for waiver in policy.waivers:
        holds = comparison.verdict in waiver.verdicts and not waiver.expired(today)
        if holds and waiver.match.covers(comparison.suite, comparison.metric, comparison.params):
            return replace(comparison, waiver=f"{waiver.reason} (until {waiver.expires.isoformat()})")
    return comparison


def _required_but_absent(policy: Policy, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """What the policy requires and no comparison stands for; measured is whatever is neither missing nor failed."""
    absent = []
    for required in policy.required:
        covered = [c for c in comparisons if required.match.covers(c.suite, c.metric, c.params)]
        if covered:
            continue  # Measured, or missing or failed already in its own name.
        absent.append(
            Comparison(
                suite=required.match.suite,
                method_version=0,
                case=" ".join(f"{name}={pattern}" for name, pattern in required.match.where.items()),
                params=dict(required.match.where),
                metric=required.match.metric,
                unit="",
                definition="",
                better="",
                verdict="missing",
                reason_code="required",
                message="the policy requires it, and neither side has it",
            )
        )
    return absent


def _expired(policy: Policy, today: date) -> list[str]:
    return [
        f"{policy.source}: waiver {place} ({waiver.match}) expired on {waiver.expires.isoformat()} and waives nothing:"
        f" {waiver.reason}"
        for place, waiver in enumerate(policy.waivers, 1)
        if waiver.expired(today)
    ]


def _unused(policy: Policy, matches: Sequence[Match]) -> list[str]:
    """The policy's entries that look like slips of the pen: for a suite that is here, or nearly so called."""
    suites = {found.series.suite for found in matches}
    unused = [
        f"{name} ({match})"
        for name, match in policy.entries()
        if match.means_one_of(suites) and not any(match.covers(*_place(found)) for found in matches)
    ]
    return [f"{policy.source}: these entries match nothing here: {'; '.join(unused)}"] if unused else []


def _notes(sides: GateSides, comparisons: Sequence[Comparison]) -> list[str]:
    notes = list(dict.fromkeys((*sides.baseline.notes, *sides.candidate.notes)))
    codes = {comparison.reason_code for comparison in comparisons}
    if "other_machine" in codes:
        differences = identity_changes(sides.baseline, sides.candidate)
        shown = "; ".join(differences[:IDENTITY_CHANGES_SHOWN])
        more = len(differences) - IDENTITY_CHANGES_SHOWN
        notes.append(f"the machines differ: {shown}{f'; and {more} more' if more > 0 else ''}")
    if any(comparison.verdict == "regressed" and comparison.confirmed is None for comparison in comparisons):
        notes.append(
            "a slowdown that is not confirmed rests on one measurement: name a second candidate run"
            " (--candidate RUN1,RUN2), or use --interleave"
        )
    compared = [comparison for comparison in comparisons if comparison.threshold is not None]
    unknown = sum(comparison.noise_floor is None for comparison in compared)
    if unknown and not sides.interleaved:
        notes.append(
            f"the A/A noise of {unknown} metric(s) is not known here, so only the policy's thresholds hold;"
            " `bench noise SUITE` measures it"
        )
    return notes
