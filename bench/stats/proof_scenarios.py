"""What the gate is proved on: names of scenarios and methods. Needs no numpy, so that suites are listed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from bench.errors import unknown_name

if TYPE_CHECKING:
    from bench.stats.proof_noise import Design


@dataclass(frozen=True)
class PairScenario:
    """How the samples of a gate come about.

    Attributes:
        design: how they are taken (``bench.stats.proof_noise.Source``).
        mixed: a fifth each of the cases drift, are autocorrelated, are bimodal.
        processes_differ: each process has a speed of its own.
        floor: the gate knows the noise floor, from ``AA_RUNS`` runs before.
        text: all that in a sentence.
    """

    design: Design
    mixed: bool
    processes_differ: bool
    floor: bool
    text: str


PAIR_SCENARIOS: dict[str, PairScenario] = {
    "aa_interleaved": PairScenario("interleaved", True, False, False, "nothing changed; samples A B B A"),
    "aa_rounds": PairScenario("rounds", True, True, False, "nothing changed; two runs of five rounds each"),
    "aa_runs": PairScenario("runs", True, True, True, "nothing changed; two runs of one process each, noise measured"),
    "aa_runs_no_floor": PairScenario("runs", True, True, False, "the same, but the gate knows no noise floor"),
    "slowdown_interleaved": PairScenario("interleaved", False, False, False, "one case slower; samples A B B A"),
    "slowdown_mixed": PairScenario("interleaved", True, False, False, "one case of mixed noise slower; A B B A"),
    "slowdown_rounds": PairScenario("rounds", False, True, False, "one case slower; two runs of five rounds each"),
    "slowdown_runs": PairScenario("runs", False, False, False, "one case slower; two runs of one process each"),
}

PairMethod = Literal["ours", "ours_unconfirmed", "asv", "asv_same_threshold", "google_benchmark"]
PAIR_METHODS: tuple[PairMethod, ...] = get_args(PairMethod)

DRIFT = "drift"
"""A change without a change point: a step that is found in it is a false alarm, and a drift is not."""
UNCHANGED = ("steady", "spikes", DRIFT, "heteroscedastic", "bimodal", "autocorrelated", "gaps", "unequal")
"""Scenarios without a change point: what is found in them is a false alarm. They do not use ``effect``."""
STEPS = ("step", "step_spikes", "step_gaps")
"""One step of ``effect`` after ``STEP_AT`` points."""
ANNOTATED = ("several", "several_messy")
"""One to four steps a series, of half to twice ``effect``, up or down."""
HISTORY_SCENARIOS = (*UNCHANGED, *STEPS, *ANNOTATED)

HistoryMethod = Literal["ours", "otava", "otava_tuned", "two_sample_scan"]
HISTORY_METHODS: tuple[HistoryMethod, ...] = get_args(HistoryMethod)


def metrics_of(scenario: str) -> tuple[str, ...]:
    """The metrics that a scenario yields.

    Raises:
        UsageError: no such scenario.
    """
    if scenario == DRIFT:
        return ("false_alarm_rate", "drift_rate")
    if scenario in UNCHANGED:
        return ("false_alarm_rate",)
    if scenario in STEPS:
        return ("detection_rate", "detection_delay_points", "location_rate")
    if scenario in ANNOTATED:
        return ("location_f1",)
    raise unknown_name("scenario", scenario, list(HISTORY_SCENARIOS))
