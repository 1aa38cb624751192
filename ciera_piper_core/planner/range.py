"""Plans over a range of GPU counts: the smallest on which the model fits, and the best strategy on each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ciera_piper_core.planner.fitting import Smallest, smallest_gpus
from ciera_piper_core.planner.search import search
from ciera_piper_core.planner.strategy import doubling

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.planner.search import Plan
    from ciera_piper_core.planner.strategy import Question


@dataclass(frozen=True)
class RangeRow:
    """What fits on one number of GPUs.

    Attributes:
        gpus: the number. fitting: strategies that fit.
        mfu, step_seconds, peak_memory_bytes: of the best; None if nothing fits.
        strategy: it, in words; or what ruled most out.
    """

    gpus: int
    fitting: int
    mfu: float | None
    step_seconds: float | None
    peak_memory_bytes: int | None
    strategy: str


@dataclass(frozen=True)
class RangePlan:
    """The answer for a range.

    Attributes:
        smallest: GPUs on which the model fits; None if it fits on none that was tried.
        plan: for them, or for the most GPUs if nothing fits.
        rows: for numbers from the least to the most, doubling, and for ``smallest``.
    """

    smallest: Smallest | None
    plan: Plan
    rows: tuple[RangeRow, ...]


def plan_range(
    question: Question, first: int, last: int, progress: Callable[[str], None] = lambda text: None
) -> RangePlan:
    """Search the range from ``first`` to ``last`` GPUs.

    Args:
        question: its number of GPUs is replaced.
        progress: told what is done next.
    """
    progress(f"smallest number of GPUs from {first} to {last}")
    smallest = smallest_gpus(question, first, last)
    counts = sorted({*doubling(f"{first}:{last}"), *([smallest.gpus] if smallest else [])})
    plans = {}
    for gpus in counts:
        progress(f"{gpus} GPUs")
        plans[gpus] = search(replace(question, gpus=gpus))
    if smallest is not None and not len(plans[smallest.gpus]):
        # What fits by memory alone may still be ruled out by its time.
        smallest = next((Smallest(gpus, exact=False) for gpus in counts if len(plans[gpus])), None)
    return RangePlan(smallest, plans[smallest.gpus if smallest else last], tuple(_row(plans[gpus]) for gpus in counts))


def parse_gpus(text: str) -> tuple[int, int]:
    """Least and most GPUs of ``64`` or ``8:4096``.

    Raises:
        ValueError: neither.
    """
    try:
        values = doubling(text)
    except ValueError:
        values = []
    if not values or values[0] < 1:
        raise ValueError(f"--gpus takes a number from 1 up, or a range such as 8:4096, not {text!r}")
    return values[0], values[-1]


def _row(plan: Plan) -> RangeRow:
    if not len(plan):
        most = max(plan.rejected, key=lambda name: plan.rejected[name], default="gpus")
        if plan.nearest_miss is not None:
            most = "memory"
        return RangeRow(plan.question.gpus, 0, None, None, None, f"nothing fits: {most}")
    best = plan[0]
    return RangeRow(
        plan.question.gpus, len(plan), best.mfu, best.step_seconds, best.peak_memory_bytes, str(best.strategy)
    )
