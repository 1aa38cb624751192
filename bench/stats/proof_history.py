"""How well changes in histories are found: made-up series with known changes, judged by us and by peers.

The suite ``gate`` runs ``history_results``. Every method sees the same points and is asked again after
every new one. What the scenarios hold, and the figures, are in ``docs/history.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.errors import BenchError, unknown_name
from bench.stats.change_points import find_changes
from bench.stats.made_up_histories import LAST_LOOK, NEW_POINTS, STEP_AT, Histories, make_histories
from bench.stats.proof_scenarios import DRIFT, HISTORY_METHODS, metrics_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FIRST_LOOK = 20
FOUND_WITHIN = 20
"""New points within which a step counts as found in ``detection_rate``."""
STALE = 10
"""A change that is shown so many points before the step is a false alarm, not an early finding."""
TOLERANCE = 1
"""Points by which a found change may miss an annotated one."""

OTAVA_P_VALUE = 0.001
OTAVA_TUNED_P_VALUE = 1e-5
SCAN_P_VALUE = 1.7e-5
"""From simulations of 4,500 (Otava) and 9,000 (scan) steady series at 2 % CV: about as many ever alarm as with ours."""
SCAN_LEAST = 3
OTAVA_INSTALL = "pip install --no-deps apache-otava"
"""Its package asks for an older numpy than ours, and its functions work with either."""


class Found(NamedTuple):
    """What is shown of one series: the places of its steps, and whether it drifts."""

    places: list[int]
    drifts: bool = False


Detector = Callable[[Histories, int], list[Found]]
"""Gives what is shown of each series, for the points before a look."""


def missing_method(method: str) -> str:
    """Why a method cannot run here, or nothing."""
    if not method.startswith("otava"):
        return ""
    from importlib.util import find_spec

    return "" if find_spec("otava") else f"Apache Otava is not installed; {OTAVA_INSTALL}"


def history_results(scenario: str, method: str, effect: float, cv: float, seed: int, series: int) -> dict[str, float]:
    """What a method finds in the series of a scenario.

    Args:
        scenario: of ``HISTORY_SCENARIOS``.
        method: of ``HISTORY_METHODS``.
        effect: size of the steps, 0.05 for 5 %.
        cv: standard deviation of the noise over its mean.
        seed: same seed, same series, for every method.
        series: how many.

    Returns:
        by the names of ``metrics_of``: ``false_alarm_rate``, share of series in which any change was shown at any
        look, of drifting ones any step; ``drift_rate``, share of series that are said to drift at the last look;
        ``detection_rate``, share of steps shown within ``FOUND_WITHIN`` new points;
        ``detection_delay_points``, median number of new points until then (``NEW_POINTS + 1`` stands for never);
        ``location_rate``, share of the steps found at all that were within ``TOLERANCE`` points when first shown;
        ``location_f1`` of all found and annotated changes, at one look at the end.

    Raises:
        UsageError: no such scenario or method.
        BenchError: the method's package is not installed.
    """
    (name, *_) = metrics_of(scenario)
    if method not in HISTORY_METHODS:
        raise unknown_name("method", method, list(HISTORY_METHODS))
    if reason := missing_method(method):
        raise BenchError(reason)
    detect = DETECTORS[method]
    data = make_histories(scenario, effect, cv, seed, series)
    if name == "false_alarm_rate":
        steps, drifts, last = _alarms(detect, data)
        return {name: steps, "drift_rate": last} if scenario == DRIFT else {name: drifts}
    return _detection(detect, data) if name == "detection_rate" else {name: _f1(detect, data)}


def _alarms(detect: Detector, data: Histories) -> tuple[float, float, float]:
    """Shares of series in which any look shows a step, in which any shows anything, and that drift at the last one."""
    steps = np.zeros(len(data.values), dtype=bool)
    anything = steps.copy()
    shown: list[Found] = []
    for look in range(FIRST_LOOK, LAST_LOOK + 1):
        shown = detect(data, look)
        steps |= [bool(found.places) for found in shown]
        anything |= [bool(found.places) or found.drifts for found in shown]
    return float(steps.mean()), float(anything.mean()), sum(found.drifts for found in shown) / len(shown)


def _detection(detect: Detector, data: Histories) -> dict[str, float]:
    never = NEW_POINTS + 1
    delays = np.full(len(data.values), never)
    located = np.zeros(len(data.values), dtype=bool)
    for new in range(1, NEW_POINTS + 1):
        for number, found in enumerate(detect(data, STEP_AT + new)):
            (step,) = data.changes[number]
            misses = [abs(place - step) for place in found.places if place >= STEP_AT - STALE]
            if misses and delays[number] == never:
                delays[number] = new
                located[number] = min(misses) <= TOLERANCE
    found_ever = delays < never
    return {
        "detection_rate": float((delays <= FOUND_WITHIN).mean()),
        "detection_delay_points": float(np.median(delays)),
        "location_rate": float(located[found_ever].mean()) if found_ever.any() else 0.0,
    }


def _f1(detect: Detector, data: Histories) -> float:
    """Harmonic mean of the shares of found changes that are true, and of true changes that are found."""
    hits = found_count = 0
    for found, true in zip(detect(data, data.values.shape[1]), data.changes, strict=True):
        found_count += len(found.places)
        free = list(true)
        for place in found.places:
            near = [change for change in free if abs(change - place) <= TOLERANCE]
            if near:
                hits += 1
                free.remove(min(near, key=lambda change: abs(change - place)))
    true_count = sum(map(len, data.changes))
    return 2 * hits / (found_count + true_count)


def _ours(data: Histories, look: int) -> list[Found]:
    errors = None if data.errors is None else list(data.errors[:, :look])
    # Each series alone: the others must not lend it strictness, since the peers do not correct for their number.
    findings = find_changes(list(data.values[:, :look]), errors, together=False)
    return [Found([change.index for change in one.changes], bool(one.drifts)) for one in findings]


def _otava(p_value: float) -> Detector:
    def detect(data: Histories, look: int) -> list[Found]:
        # It has no type stubs.
        otava = import_module("otava.analysis")

        found = []
        for values in data.values[:, :look]:
            points = [None if math.isnan(value) else value for value in values.tolist()]
            otava.fill_missing(points)
            changes, _ = otava.compute_change_points(points, max_pvalue=p_value)
            found.append(Found([int(change.index) for change in changes]))
        return found

    return detect


def _scan(data: Histories, look: int) -> list[Found]:
    """The split with the least p-value of Student's test over all splits, if that is low enough."""
    from scipy.special import stdtr

    found = []
    for values in data.values[:, :look]:
        places = np.flatnonzero(np.isfinite(values))
        x = values[places] - values[places].mean()
        n = len(x)
        left = np.arange(SCAN_LEAST, n - SCAN_LEAST + 1)
        total = np.cumsum(x)[left - 1]
        between = total**2 / left + total**2 / (n - left)
        within = np.maximum(float(x @ x) - between, 1e-300)
        best = int(np.argmax(between / within))
        deviate = math.sqrt(between[best] / within[best] * (n - 2))
        found.append(Found([int(places[left[best]])] if 2 * stdtr(n - 2, -deviate) <= SCAN_P_VALUE else []))
    return found


DETECTORS: dict[str, Detector] = {
    "ours": _ours,
    "otava": _otava(OTAVA_P_VALUE),
    "otava_tuned": _otava(OTAVA_TUNED_P_VALUE),
    "two_sample_scan": _scan,
}
