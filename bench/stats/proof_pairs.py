"""Proof of the gate on pairs: how often it reports what is not there, and finds what is, beside its peers.

Every trial is a whole gate: all its cases are judged together, what is suspected is measured once
more, and only what is confirmed counts. Seeds are fixed, so every figure can be had again.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import UsageError, unknown_name
from bench.stats.judgement import Criteria, confirm, judge
from bench.stats.pairs import Pair, Samples
from bench.stats.proof_noise import Source, mixed_kinds, plain_kinds
from bench.stats.proof_scenarios import PAIR_SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEAST_MIXED = 10
AA_RUNS = 6
"""Measurements that a noise floor is from."""
MINIMUM_EFFECT = 0.01
"""Half of what a policy has by default: a gate that counts smaller changes has more to be wrong about."""
SIGNIFICANCE = 0.01
ASV_FACTOR = 1.1
"""asv's own default: less than a tenth is no change to it."""
GOOGLE_ALPHA = 0.05


@dataclass(frozen=True)
class Gate:
    """What a rule gets to see of one trial.

    Attributes:
        source: of the samples.
        floors: noise floor of each case, shape ``(cases,)``; zeros where none was measured.
        slow: index of the slower case, or -1; effect: by how much.
        random: of this trial.
    """

    source: Source
    floors: Array
    slow: int
    effect: float
    random: np.random.Generator

    def measure(self, cases: Sequence[int] | NDArray[np.intp]) -> tuple[Array, Array]:
        """A measurement of these cases, independent of all before."""
        baseline, candidate = self.source.measure(self.random, cases)
        candidate[np.asarray(cases) == self.slow] *= 1 + self.effect
        return baseline, candidate


def pair_results(
    scenario: str,
    method: str,
    effect: float,
    cv: float,
    samples: int,
    cases: int,
    trials: int,
    seed: int,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Run so many gates and count.

    Returns:
        ``false_alarm_rate``, the share of gates that report any regression, if the effect is 0; else
        ``detection_rate``, the share of gates that report the slower case.

    Raises:
        UsageError: no such scenario or method, or the method is not installed.
    """
    flags = []
    for trial in range(trials):
        alive()
        flags.append(flagged_cases(scenario, method, effect, cv, samples, cases, trial, seed))
    if effect == 0:
        return {"false_alarm_rate": float(np.mean([flag.any() for flag in flags]))}
    return {"detection_rate": float(np.mean([flag[slow_case(trial, cases)] for trial, flag in enumerate(flags)]))}


def slow_case(trial: int, cases: int) -> int:
    """The case that is slower in a trial: another one each time, so that all kinds of noise have their turn."""
    return (trial * 7919) % cases


def flagged_cases(
    scenario: str, method: str, effect: float, cv: float, samples: int, cases: int, trial: int, seed: int
) -> NDArray[np.bool_]:
    """Which cases a gate reports as regressions in one trial, shape ``(cases,)``; the same for the same arguments."""
    if scenario not in PAIR_SCENARIOS:
        raise unknown_name("scenario", scenario, list(PAIR_SCENARIOS))
    if method not in _RULES:
        raise unknown_name("method", method, list(_RULES))
    if missing := unavailable(method):
        raise UsageError(missing)
    setting = PAIR_SCENARIOS[scenario]
    if setting.mixed and cases < LEAST_MIXED:
        raise UsageError(f"{scenario} mixes kinds of noise, so it needs at least {LEAST_MIXED} cases, not {cases}")
    kinds = mixed_kinds(cases) if setting.mixed else plain_kinds(cases)
    source = Source(setting.design, kinds, cv, samples, setting.processes_differ)
    # Not of the method: all of them see the same samples.
    random = np.random.default_rng([seed, trial, cases, samples, *scenario.encode()])
    floors = _measured_floors(source, random, cases) if setting.floor else np.zeros(cases)
    return _RULES[method](Gate(source, floors, slow_case(trial, cases) if effect else -1, effect, random))


def unavailable(method: str) -> str | None:
    """Why a method cannot be tried here, or None."""
    if method.startswith("asv") and importlib.util.find_spec("asv") is None:
        return "asv is not installed; pip install 'ciera-piper-bench[compare]'"
    return None


def many_pairs(cases: int, samples: int, cv: float, seed: int) -> list[Pair]:
    """Pairs of that many cases of mixed noise, as two stored runs have them."""
    source = Source("runs", mixed_kinds(cases), cv, samples, processes_differ=True)
    baseline, candidate = source.measure(np.random.default_rng(seed), np.arange(cases))
    return _pairs(source, baseline, candidate)


def _measured_floors(source: Source, random: np.random.Generator, cases: int) -> Array:
    """Noise floors as ``bench.stats.noise`` finds them, from ``AA_RUNS`` runs of every case."""
    from bench.stats.noise import noise_floor

    runs = [side for _ in range(AA_RUNS // 2) for side in source.measure(random, np.arange(cases))]
    medians = np.stack([np.median(np.log(run), axis=1) for run in runs])
    return np.asarray(noise_floor(medians.std(axis=0, ddof=1), AA_RUNS))


def _pairs(source: Source, baseline: Array, candidate: Array) -> list[Pair]:
    interleaved = source.design == "interleaved"
    return [
        Pair(str(i), Samples(one, source.blocks, "us"), Samples(other, source.blocks, "us"), interleaved)
        for i, (one, other) in enumerate(zip(baseline, candidate, strict=True))
    ]


def _criteria(gate: Gate) -> list[Criteria]:
    return [Criteria(MINIMUM_EFFECT, SIGNIFICANCE, noise_floor=floor) for floor in gate.floors.tolist()]


def _ours(gate: Gate) -> NDArray[np.bool_]:
    criteria = _criteria(gate)
    everything = np.arange(len(criteria))
    first = judge(_pairs(gate.source, *gate.measure(everything)), criteria)
    suspects = [i for i, judgement in enumerate(first) if judgement.needs_confirmation]
    flags = np.zeros(len(first), dtype=bool)
    if suspects:
        second = judge(_pairs(gate.source, *gate.measure(suspects)), [criteria[i] for i in suspects])
        for i, again in zip(suspects, second, strict=True):
            flags[i] = confirm(first[i], again).verdict == "regressed"
    return flags


def _ours_unconfirmed(gate: Gate) -> NDArray[np.bool_]:
    criteria = _criteria(gate)
    first = judge(_pairs(gate.source, *gate.measure(np.arange(len(criteria)))), criteria)
    return np.array([judgement.verdict == "regressed" for judgement in first])


def _asv(factor: float) -> Callable[[Gate], NDArray[np.bool_]]:
    """asv's decision, by its own functions, with its ``--factor``."""

    def rule(gate: Gate) -> NDArray[np.bool_]:
        from asv.commands.compare import _is_result_better
        from asv_runner.statistics import compute_stats

        baseline, candidate = gate.measure(np.arange(len(gate.floors)))
        flags = []
        for one, other in zip(baseline.tolist(), candidate.tolist(), strict=True):
            (before, before_stats), (after, after_stats) = compute_stats(one, 1), compute_stats(other, 1)
            flags.append(_is_result_better(before, after, (before_stats, one), (after_stats, other), factor))
        return np.array(flags, dtype=bool)

    return rule


def _google_benchmark(gate: Gate) -> NDArray[np.bool_]:
    """google/benchmark's compare.py: Mann-Whitney, two-sided, alpha 0.05; of what differs, the slower."""
    from scipy.stats import mannwhitneyu

    baseline, candidate = gate.measure(np.arange(len(gate.floors)))
    p_values = mannwhitneyu(baseline, candidate, alternative="two-sided", axis=1).pvalue
    return np.asarray((p_values < GOOGLE_ALPHA) & (np.median(candidate, axis=1) > np.median(baseline, axis=1)))


_RULES: dict[str, Callable[[Gate], NDArray[np.bool_]]] = {
    "ours": _ours,
    "ours_unconfirmed": _ours_unconfirmed,
    "asv": _asv(ASV_FACTOR),
    "asv_same_threshold": _asv(1 + MINIMUM_EFFECT),
    "google_benchmark": _google_benchmark,
}
