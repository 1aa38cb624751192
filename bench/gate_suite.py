"""The suite ``gate``: how often the gate and history raise a false alarm and find a slowdown, beside their peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from bench.definitions import Definition, define
from bench.errors import unknown_name
from bench.stats.proof_scenarios import HISTORY_METHODS, HISTORY_SCENARIOS, PAIR_METHODS, PAIR_SCENARIOS, metrics_of
from bench.suite import PRESETS, Axis, Case, Metric, Suite, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.suite import Context, Preset, Site, Value

FALSE_ALARM_RATE = define(
    Definition(
        "false_alarm_rate/made-up-v1",
        "ratio",
        "lower",
        "Share of gates that report any regression although nothing changed; of histories, share of series in which "
        "any change is shown at any look, of drifting ones any step.",
    )
)
DETECTION_RATE = define(
    Definition(
        "detection_rate/made-up-v1",
        "ratio",
        "higher",
        "Share of gates that report the one case that is slower; of histories, share of steps that are shown within "
        "20 new points.",
    )
)
DETECTION_DELAY = define(
    Definition(
        "detection_delay/made-up-v1",
        "count",
        "lower",
        "New points of a series until a step is shown, median over series; one more than there are means never.",
    )
)
DRIFT_RATE = define(
    Definition(
        "drift_rate/made-up-v1",
        "ratio",
        "higher",
        "Share of drifting histories that are said to drift, at one look at the end of each.",
    )
)
LOCATION_RATE = define(
    Definition(
        "location_rate/made-up-v1",
        "ratio",
        "higher",
        "Share of the steps shown that are within one point of where they are, when first shown.",
    )
)
LOCATION_F1 = define(
    Definition(
        "location_f1/made-up-v1",
        "ratio",
        "higher",
        "Harmonic mean of the share of shown changes that are true and the share of true changes that are shown, each "
        "within one point, at one look at the end of each series.",
    )
)
GATE_SECONDS = define(
    Definition(
        "duration/gate-v1",
        "s",
        "lower",
        "Time to judge all cases of two stored runs, samples already in memory.",
        lambda seconds, work: seconds,
    )
)

TIMED = "many_cases"
"""The scenario whose time is the result."""
FEW_TRIALS = 2
"""So many are run again by the check: the same seed must give the same."""
ARRAY_BYTES_A_CASE = 40_000
BASE_BYTES = 256 << 20

Point = tuple[str, str, float, float, int, int, int]
"""Scenario, method, effect, cv, samples, cases, trials."""

_CV = 0.02
_PEERS = ("asv", "asv_same_threshold", "google_benchmark")


def _pair_points(trials: int, detections: int, cases: int, peer_trials: int, peer_detections: int) -> list[Point]:
    """The rows of the pairs: A/A of each way to measure, then what is to be found, and each peer on the same data."""
    points: list[Point] = [
        ("aa_runs_no_floor", "ours", 0.0, _CV, 30, cases, peer_trials),
        *((scenario, "ours", 0.0, _CV, 30, cases, trials) for scenario in ("aa_interleaved", "aa_rounds", "aa_runs")),
        *(("aa_interleaved", peer, 0.0, _CV, 30, cases, peer_trials) for peer in ("ours_unconfirmed", *_PEERS)),
    ]
    slowdowns = (("slowdown_runs", 0.05, 15), ("slowdown_interleaved", 0.05, 15), ("slowdown_interleaved", 0.03, 30))
    for scenario, effect, samples in slowdowns:
        points.append((scenario, "ours", effect, _CV, samples, 1, detections))
        points.append((scenario, "ours", effect, _CV, samples, cases, peer_detections))
        points += [(scenario, peer, effect, _CV, samples, 1, peer_detections) for peer in _PEERS]
    points.append(("slowdown_rounds", "ours", 0.05, _CV, 30, 1, peer_detections))
    points.append(("slowdown_mixed", "ours", 0.03, _CV, 30, max(10, cases), peer_detections))
    return points


_PAIRS: dict[str, list[Point]] = {
    "quick": _pair_points(trials=10, detections=200, cases=50, peer_trials=5, peer_detections=50),
    "standard": _pair_points(trials=1000, detections=1000, cases=500, peer_trials=100, peer_detections=200),
    "full": _pair_points(trials=1000, detections=4000, cases=500, peer_trials=200, peer_detections=500),
}
_TIMED: dict[str, list[Point]] = {
    "quick": [(TIMED, "ours", 0.0, _CV, 30, 1000, 1)],
    "standard": [(TIMED, "ours", 0.0, _CV, 30, 10_000, 1)],
    "full": [(TIMED, "ours", 0.0, _CV, 30, 10_000, 1), (TIMED, "ours", 0.0, _CV, 300, 10_000, 1)],
}
_SERIES: dict[str, tuple[int, int]] = {"quick": (40, 10), "standard": (8000, 200), "full": (16000, 1000)}
"""Series of histories in which nothing changes and ours decides; and of all else, which needs less or takes longer."""
_AXES = ("scenario", "method", "effect", "cv", "samples", "cases", "trials")


class GateSuite(Suite):
    """The gate measured by itself, on samples whose truth is known."""

    name: ClassVar[str] = "gate"
    summary: ClassVar[str] = "false alarms, detection and speed of the gate and of history, beside peers"
    method_version: ClassVar[int] = 2
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("false_alarm_rate", FALSE_ALARM_RATE),
        Metric("detection_rate", DETECTION_RATE),
        Metric("detection_delay_points", DETECTION_DELAY),
        Metric("location_rate", LOCATION_RATE),
        Metric("drift_rate", DRIFT_RATE),
        Metric("location_f1", LOCATION_F1),
        Metric("gate_seconds", GATE_SECONDS),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("scenario", "str", "what is measured how, and what changed"),
        Axis("method", "str", "whose rule decides"),
        Axis("effect", "float", "size of the slowdown, 0.05 for 5 %; 0 for none", minimum=0),
        Axis("cv", "float", "coefficient of variation of the noise", minimum=0),
        Axis("samples", "int", "samples a side; of histories, samples a point", minimum=1),
        Axis("cases", "int", "cases that a gate judges together", minimum=1),
        Axis("trials", "int", "gates, or series of histories", minimum=1),
    )

    @property
    def presets(self) -> dict[Preset, dict[str, list[Value]]]:  # type: ignore[override]
        """The values of each axis; which of them go together, ``cases`` knows."""
        return {preset: _values_by_axis(_points(preset)) for preset in PRESETS}

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        """The preset's points, not the product of its axes.

        ``scenario`` chooses among them; any other override takes the place of the value that they have.
        """
        if "scenario" in overrides:
            _require_known(overrides["scenario"])
        points: list[dict[str, Value]] = [dict(zip(_AXES, point, strict=True)) for point in _points(preset)]
        for name, values in overrides.items():
            self.axis(name)
            if name == "scenario":
                points = [point for point in points if point[name] in values]
            else:
                points = [{**point, name: value} for point in points for value in values]
        seen = set()
        for point in points:
            case = Case(point)
            if case.id not in seen and _makes_sense(case):
                seen.add(case.id)
                yield case

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        scenario = case["scenario"]
        if scenario == TIMED:
            names: Sequence[str] = ("gate_seconds",)
        elif scenario in HISTORY_SCENARIOS:
            names = metrics_of(scenario)
        else:
            names = ("detection_rate",) if case["effect"] else ("false_alarm_rate",)
        return tuple(metric for metric in self.metrics if metric.name in names)

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["scenario"] in HISTORY_SCENARIOS:
            return _history().missing_method(case["method"]) or None
        from bench.stats.proof_pairs import unavailable

        return unavailable(case["method"])

    def memory_bytes(self, case: Case, site: Site) -> int:
        return BASE_BYTES + int(case["cases"]) * (ARRAY_BYTES_A_CASE + 64 * int(case["samples"]))

    def setup(self, case: Case, context: Context) -> Workload:
        if case["scenario"] == TIMED:
            return _Timed(case, context.site.seed)
        return _Counted(case, context)


class _Timed(Workload):
    """A run judges all cases once."""

    def __init__(self, case: Case, seed: int) -> None:
        from bench.stats.judgement import Criteria
        from bench.stats.proof_pairs import MINIMUM_EFFECT, SIGNIFICANCE, many_pairs

        self._pairs = many_pairs(case["cases"], case["samples"], case["cv"], seed)
        self._criteria = Criteria(MINIMUM_EFFECT, SIGNIFICANCE)
        self._judgements: Sequence[Any] = ()

    def run(self) -> None:
        from bench.stats.judgement import judge

        self._judgements = judge(self._pairs, self._criteria)

    def check(self) -> int:
        """Cases without a judgement, or with an effect that is not near the ratio of their medians."""
        import numpy as np

        wrong = abs(len(self._judgements) - len(self._pairs))
        for pair, judgement in zip(self._pairs, self._judgements, strict=False):
            ratio = float(np.median(pair.candidate.values) / np.median(pair.baseline.values))
            low, high = judgement.interval
            width = high - low
            wrong += not (low <= judgement.effect <= high and abs(judgement.effect - (ratio - 1)) <= width)
        return wrong


class _Counted(Workload):
    """Trials are counted in the set-up, once. No metric is a duration, so a run does nothing."""

    def __init__(self, case: Case, context: Context) -> None:
        self._case = case
        self._seed = context.site.seed
        self._is_history = case["scenario"] in HISTORY_SCENARIOS
        self._results = self._count(int(case["trials"]), context)
        self._few = min(int(case["trials"]), FEW_TRIALS)
        self._first = self._count(self._few, context)

    def run(self) -> None:
        """Nothing is timed."""

    def observations(self) -> Mapping[str, Sequence[float]]:
        return {name: [value] for name, value in self._results.items()}

    def check(self) -> int:
        """Rates that another go of the same few trials does not give."""
        again = self._count(self._few, None)
        return sum(again.get(name) != value for name, value in self._first.items())

    def _count(self, trials: int, context: Context | None) -> dict[str, float]:
        case = self._case
        named = {name: case[name] for name in ("scenario", "method", "effect", "cv")}
        if self._is_history:
            return dict(_history().history_results(**named, seed=self._seed, series=trials))
        from bench.stats.proof_pairs import pair_results

        alive = _not_watched if context is None else context.alive
        sizes = {"samples": case["samples"], "cases": case["cases"]}
        return pair_results(**named, **sizes, trials=trials, seed=self._seed, alive=alive)


def _not_watched() -> None:
    """Nobody waits for a sign of life of what is repeated."""


def _history() -> Any:
    """The proof of histories."""
    from bench.stats import proof_history

    return proof_history


def _values_by_axis(points: Sequence[Point]) -> dict[str, list[Value]]:
    return {name: list(dict.fromkeys(column)) for name, column in zip(_AXES, zip(*points, strict=True), strict=True)}


def _points(preset: str) -> list[Point]:
    return [*_PAIRS[preset], *_history_points(preset), *_TIMED[preset]]


def _history_points(preset: str) -> list[Point]:
    """Every method on steady noise, on steps of 5 and 3 % and on several of them; ours on other noise as well."""
    points: list[Point] = []
    many, few = _SERIES[preset]
    for scenario in HISTORY_SCENARIOS:
        if "false_alarm_rate" not in metrics_of(scenario):
            for effect in (0.05, 0.03):
                points += [(scenario, method, effect, _CV, 1, 1, few) for method in HISTORY_METHODS]
            continue
        plain = scenario == HISTORY_SCENARIOS[0]
        points.append((scenario, "ours", 0.0, _CV, 1, 1, many if plain else few))
        if plain:
            points += [(scenario, method, 0.0, _CV, 1, 1, few) for method in HISTORY_METHODS if method != "ours"]
    return points


def _require_known(scenarios: Sequence[Value]) -> None:
    known = [*PAIR_SCENARIOS, *HISTORY_SCENARIOS, TIMED]
    for scenario in scenarios:
        if scenario not in known:
            raise unknown_name("scenario", str(scenario), known)


def _makes_sense(case: Case) -> bool:
    """Whether the method is one of the scenario's; what is left of an override that suits only some points."""
    if case["scenario"] == TIMED:
        return bool(case["method"] == "ours")
    known = HISTORY_METHODS if case["scenario"] in HISTORY_SCENARIOS else PAIR_METHODS
    return case["method"] in known
