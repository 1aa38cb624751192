"""A suite of made-up sides for the tests of comparisons: how fast, how right and how long each lives is a parameter."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from bench.definitions import HFU, ITEM_RATE, ITERATION_SECONDS, MFU, Definition, Work, define
from bench.suite import Agreement, Axis, Case, ComparableSuite, ComparableWorkload, Context, Forecast, Metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Site, Value

SHARE = define(Definition("share/of-a-made-up-step-v1", "s", "lower", "Of a made-up step."))
MADE_UP = define(Definition("value/made-up-v1", "ratio", "lower", "Made up."))
PARTS = ("think", "talk", "rest")


class MadeUp(ComparableWorkload):
    """Sleeps for so long; its series falls by the iteration, and is off by ``error`` from iteration ``off_from`` on."""

    def __init__(self, case: Case, context: Context) -> None:
        self._case, self._context = case, context
        self._numbers: list[float] = []
        self._inspected = False
        self.settled_after = int(case["settles"])
        self.work = Work(flops=1e6, items=100, peak_flops_per_second=1e9, executed_flops=2e6)
        self._fail("setup")

    def run(self) -> None:
        time.sleep(self._case["milliseconds"] / 1000)
        step = len(self._numbers)
        if step == self._case["fails_at"]:
            self._fail("run")
        wrong = self._case["error"] if step >= self._case["off_from"] else 0.0
        self._numbers.append((10.0 - 0.01 * step) * (1 + wrong))

    def check(self) -> int:
        return 0

    def conditions(self) -> Mapping[str, Value]:
        return {"weights": self._case["weights"], "tokens_per_step": 100, "peak": self._context.scratch.get("peak", 7)}

    def forecast(self, profile: str) -> Forecast:
        self._fail("forecast")
        if profile == "nothing":
            return super().forecast(profile)
        seconds = self._case["milliseconds"] / 1000
        return Forecast({"sleep": seconds, "wake up": seconds / 10}, profile, ("sleep: as the case says",))

    def handed_on(self) -> Mapping[str, Value]:
        return {"peak": os.getpid()} if self._case["hands_on"] else {}

    def series(self) -> Mapping[str, Sequence[float]]:
        return {"loss": self._numbers, "last": [5.0] if self._inspected else []}

    def inspect(self) -> None:
        self._fail("inspect")
        self._inspected = True

    def observations(self) -> Mapping[str, Sequence[float]]:
        seconds = self._case["milliseconds"] / 1000
        shares = (0.6, 0.3, 0.1)
        return {
            "made_up": [1.0, 2.0, 3.0],
            **{f"part_time[part={part}]": [share * seconds] for part, share in zip(PARTS, shares, strict=True)},
        }

    def _fail(self, phase: str) -> None:
        if self._case["fault"] == f"kill in {phase}" and self._context.site.rank == self._context.site.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._case["fault"] == f"raise in {phase}":
            raise ValueError("boom")


class SidesSuite(ComparableSuite):
    """One case a side."""

    name = "sides"
    summary = "made-up sides"
    method_version = 1
    distributed = True
    valid_alone = True
    side_axis = "who"
    parts = ("part_time", "part")
    metrics = (
        Metric("iteration_time", ITERATION_SECONDS),
        Metric("tokens_per_second", ITEM_RATE),
        Metric("mfu", MFU, {"convention": "made up"}),
        Metric("hfu", HFU, {"convention": "made up"}),
        Metric("made_up", MADE_UP),
        *(Metric("part_time", SHARE, {"part": part}) for part in PARTS),
    )
    axes = (
        Axis("who", "str", "side"),
        Axis("ranks", "int", "ranks", minimum=1),
        Axis("milliseconds", "float", "of an iteration"),
        Axis("error", "float", "of the series"),
        Axis("off_from", "int", "first iteration with the error"),
        Axis("weights", "str", "a condition"),
        Axis("fault", "str", "how it fails"),
        Axis("fails_at", "int", "iteration that fails"),
        Axis("settles", "int", "iterations"),
        Axis("hands_on", "bool", "whether it gives the others something"),
        Axis("tolerance", "float", "of the series"),
    )
    presets = {
        preset: {
            "who": ["a"],
            "ranks": [1],
            "milliseconds": [2.0],
            "error": [0.0],
            "off_from": [0],
            "weights": ["w"],
            "fault": ["none"],
            "fails_at": [-1],
            "settles": [0],
            "hands_on": [False],
            "tolerance": [1e-6],
        }
        for preset in ("quick", "standard", "full")
    }

    def agreements(self, case: Case, reference: Case) -> Sequence[Agreement]:
        return (Agreement("loss", case["tolerance"], first=20), Agreement("last", 0.0))

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return "not here" if case["fault"] == "skip" else None

    def setup(self, case: Case, context: Context) -> MadeUp:
        return MadeUp(case, context)


def params(who: str, **changes: Value) -> dict[str, Value]:
    """The parameters of a side: the defaults, and what differs."""
    defaults: dict[str, Value] = {name: values[0] for name, values in SidesSuite.presets["quick"].items()}
    return {**defaults, "who": who, **changes}
