"""The search: every strategy that a question allows, ruled out by memory or ranked by MFU, and the best simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.advice import advice_with_gpus, advice_without_gpus
from ciera_piper_core.planner.candidates import CONSTRAINTS, candidates
from ciera_piper_core.planner.estimate import Estimates, Estimator
from ciera_piper_core.planner.refinement import refine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.planner.strategy import Question, Strategies, Strategy

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """One strategy with what is predicted of it.

    Attributes:
        strategy: it. mfu, hfu, step_seconds, peak_memory_bytes: as of ``Estimates``; bytes are rounded up.
        fullest_rank: pipeline rank with the peak.
        pareto: no other strategy has both a higher MFU and a smaller peak.
        simulated: the step is that of the schedule's operations over the stages as they are; else
            the estimate for equal stages.
    """

    strategy: Strategy
    mfu: float
    hfu: float
    step_seconds: float
    peak_memory_bytes: int
    fullest_rank: int
    pareto: bool
    simulated: bool


@dataclass(frozen=True)
class NearestMiss:
    """The strategy that comes nearest to fitting, where none does.

    Attributes:
        strategy: it. peak_memory_bytes: of its fullest rank, ``fullest_rank``.
        memory_bytes: that a GPU has.
        dominant: the component that takes most of the peak, and dominant_bytes: how much.
        advice: what would make it smaller on as many GPUs; more_gpus: what more of them would do.
    """

    strategy: Strategy
    peak_memory_bytes: int
    memory_bytes: int
    fullest_rank: int
    dominant: str
    dominant_bytes: int
    advice: tuple[str, ...]
    more_gpus: str

    @property
    def over_bytes(self) -> int:
        """What is missing."""
        return self.peak_memory_bytes - self.memory_bytes

    def helps(self, fits_on_more: bool) -> str:
        """What would help, in words.

        Args:
            fits_on_more: the model fits on some larger number of GPUs.
        """
        ways = [*([self.more_gpus] if fits_on_more else []), *self.advice]
        if not ways:
            return "a platform with more memory a GPU"
        return " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


@dataclass(frozen=True)
class Plan:
    """The answer to a question.

    Attributes:
        question: it. estimator: the models behind the numbers.
        fitting: the strategies that fit, best first; estimates: theirs; pareto: which are on the front.
        simulated: whose step is simulated; the best are, see ``refine``.
        rejected: by constraint, how many strategies it ruled out; only those that ruled out any.
        evaluated: strategies whose memory and time were estimated.
        nearest_miss: where nothing fits but something was estimated.
    """

    question: Question
    estimator: Estimator
    fitting: Strategies
    estimates: Estimates
    pareto: NDArray[np.bool_]
    simulated: NDArray[np.bool_]
    rejected: dict[str, int]
    evaluated: int
    nearest_miss: NearestMiss | None

    def __len__(self) -> int:
        return len(self.fitting)

    def __getitem__(self, place: int) -> Prediction:
        """The strategy of that rank, from 0.

        Raises:
            IndexError: there are not so many.
        """
        if not 0 <= place < len(self):
            raise IndexError(f"the plan has {len(self)} strategies; there is no number {place}")
        estimates = self.estimates
        return Prediction(
            strategy=self.fitting[place],
            mfu=float(estimates.mfu[place]),
            hfu=float(estimates.hfu[place]),
            step_seconds=float(estimates.step_seconds[place]),
            peak_memory_bytes=int(np.ceil(estimates.peak_memory_bytes[place])),
            fullest_rank=int(estimates.fullest_rank[place]),
            pareto=bool(self.pareto[place]),
            simulated=bool(self.simulated[place]),
        )

    def absence(self, number: int) -> str | None:
        """Why there is no strategy ``number``, counted from 1; None if there is one."""
        if 1 <= number <= len(self):
            return None
        has = f"the plan has 1 to {len(self)}" if len(self) else "the plan has none, because nothing fits"
        return f"there is no strategy {number}; {has}"

    def top(self, count: int) -> list[Prediction]:
        """The best ``count``, or all if there are fewer."""
        return [self[place] for place in range(min(count, len(self)))]

    @cached_property
    def pareto_places(self) -> list[int]:
        """Places of the strategies on the front of memory and MFU, best MFU first."""
        return [int(place) for place in np.flatnonzero(self.pareto)]


def search(question: Question) -> Plan:
    """Estimate every candidate, rank those that fit, and simulate the best of them.

    Order: MFU, then less memory, then smaller PP, EP, DP, TP, and so on through all dimensions, so
    that the same question always has the same answer.
    """
    estimator = Estimator(question)
    found, rejected = candidates(question, estimator.kinds)
    estimates = estimator.estimate(found)
    fits = estimates.peak_memory_bytes <= question.platform.memory_bytes
    possible = (estimates.mfu <= 1.0) & (estimates.hfu <= 1.0)
    rejected["memory"] += int((~fits).sum())
    rejected["peak"] += int((fits & ~possible).sum())
    miss = None
    if len(found) and not fits.any():
        miss = _nearest_miss(estimator, found, estimates)
    kept = np.flatnonzero(fits & possible)
    ranked = found.take(kept)
    refined = refine(estimator, ranked, estimates.take(kept))
    simulated = refined.estimates.take(refined.order)
    # A simulated step may be shorter than its estimate, so the limit is tested again.
    order = refined.order[(simulated.mfu <= 1.0) & (simulated.hfu <= 1.0)]
    rejected["peak"] += len(kept) - len(order)
    chosen = refined.estimates.take(order)
    return Plan(
        question=question,
        estimator=estimator,
        fitting=ranked.take(order),
        estimates=chosen,
        pareto=_pareto(chosen.mfu, chosen.peak_memory_bytes),
        simulated=refined.simulated[order],
        rejected={name: rejected[name] for name in CONSTRAINTS if rejected[name]},
        evaluated=len(found),
        nearest_miss=miss,
    )


def _pareto(mfu: Floats, memory: Floats) -> NDArray[np.bool_]:
    """Of strategies ordered by MFU, those that need less memory than all before them."""
    if not len(mfu):
        return np.zeros(0, dtype=np.bool_)
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(memory)[:-1]])
    return np.asarray(memory < least_before)


def _nearest_miss(estimator: Estimator, found: Strategies, estimates: Estimates) -> NearestMiss:
    place = int(np.argmin(estimates.peak_memory_bytes))
    strategy = found[place]
    rank = int(estimates.fullest_rank[place])
    rows = found.take(np.array([place]))
    parts = estimator.footprint.components(strategy.pp, strategy.schedule, rows)  # type: ignore[arg-type]
    of_rank = {name: float(amount[0, rank]) for name, amount in parts.items()}
    groups: dict[str, float] = {}
    for name, amount in of_rank.items():
        head, colon, _ = name.partition(": ")
        label = f"state of {head}" if colon and head != "activations" else "activations" if colon else name
        groups[label] = groups.get(label, 0.0) + amount
    dominant = max(groups, key=lambda name: groups[name])
    return NearestMiss(
        strategy=strategy,
        peak_memory_bytes=int(np.ceil(estimates.peak_memory_bytes[place])),
        memory_bytes=estimator.question.platform.memory_bytes,
        fullest_rank=rank,
        dominant=dominant,
        dominant_bytes=int(groups[dominant]),
        advice=advice_without_gpus(estimator.question, strategy, dominant),
        more_gpus=advice_with_gpus(dominant),
    )
