"""Outcomes of comparisons as the tests of what is shown of them want them, without processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.comparison.contract import Course
from bench.comparison.outcome import Outcome
from bench.comparison.processes import Ending, Record
from bench.comparison.request import ComparisonRequest, Side
from bench.comparison.view import Column, Matrix, View
from bench.definitions import Work
from bench.launch.site import local_site
from tests.bench.comparison.sides_suite import PARTS, SidesSuite, params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.suite import Forecast

WORLD, TURNS, STEPS = 2, 8, 3
VIEW = View(
    title="Sides",
    side="who",
    columns=(Column("MFU", "mfu", share=True), Column("tokens/s", "tokens_per_second", bare=True)),
    further=(Column("made up", "made_up"),),
    matrices=(Matrix("Parts again", "part_time", "part", "They were made up."),),
    curves={"loss": "nats"},
    residual="think",
    remarks=("Nothing of this is true.",),
)


def outcome(
    seconds: Mapping[str, float],
    *,
    endings: Mapping[str, Ending] | None = None,
    errors: Mapping[str, float] | None = None,
    noise: float = 0.001,
    drift: float = 0.0,
    apart: bool = False,
    forecasts: Mapping[str, Forecast] | None = None,
    turns: int = TURNS,
    **changes: Any,
) -> Outcome:
    """A comparison of sides that take so many seconds an iteration; the first is the reference.

    Args:
        endings: of sides that have no speeds. errors: relative, of a side's series.
        forecasts: of sides, if there are any.
        noise: of iterations, drift: of the machine from the first turn to the last, relative.
    """
    random = np.random.default_rng(0)
    sides = tuple(Side(label, params(label), WORLD) for label in seconds)
    request = ComparisonRequest(
        "sides",
        sides,
        reference=sides[0].label,
        steps=turns * STEPS,
        turns=turns,
        apart=apart,
        profile="made up" if forecasts else "",
    )
    records = []
    for side in sides:
        record = Record(side, local_site(0, WORLD, "cpu", 7), params=dict(side.params))
        record.conditions = {"weights": "w", "tokens_per_step": 100}
        record.work = Work(flops=1e6, items=100, peak_flops_per_second=1e9, executed_flops=2e6)
        record.warmup = 4
        record.forecast = (forecasts or {}).get(side.label)
        record.ending = (endings or {}).get(side.label)
        wrong = (errors or {}).get(side.label, 0.0)
        record.course = Course({"loss": [(5.0 - 0.1 * step) * (1 + wrong) for step in range(30)], "last": [2.0]})
        for turn in range(turns):
            slower = 1 + drift * turn / turns
            spread = 1 + noise * random.standard_normal((WORLD, STEPS))
            record.turns.append((seconds[side.label] * slower * spread).tolist())
            record.entry_ns.append([[0.0] * STEPS] * WORLD)
        record.observed = {
            "made_up": [1.0, 2.0, 3.0],
            **{f"part_time[part={part}]": [seconds[side.label] / (place + 2)] for place, part in enumerate(PARTS)},
        }
        records.append(record)
    return Outcome("20260101T000000000-00000000", request, SidesSuite(), records, **changes)
