"""Memory, step time and utilisation of many strategies at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.models.flops import layer_flops, model_flops
from ciera_piper_core.planner.footprint import Footprint
from ciera_piper_core.planner.schedules import SCHEDULES
from ciera_piper_core.planner.stages import LayerKinds
from ciera_piper_core.planner.strategy import CHOICES
from ciera_piper_core.planner.timing import Timing
from ciera_piper_core.planner.unique import Unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.strategy import Question, Strategies, Strategy

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Estimates:
    """What is predicted of strategies, each of shape ``(strategies,)``.

    Attributes:
        peak_memory_bytes: of the fullest pipeline rank. fullest_rank: which one that is.
        step_seconds: of a training step.
        mfu: the model's FLOPs by the question's convention, over what all GPUs could do at their peak
            in that time; 1 is the peak.
        hfu: the same with the FLOPs that checkpointing computes again.
    """

    peak_memory_bytes: Floats
    fullest_rank: Ints
    step_seconds: Floats
    mfu: Floats
    hfu: Floats

    def take(self, which: Ints) -> Estimates:
        """Those of some of the strategies."""
        return Estimates(*(getattr(self, each.name)[which] for each in fields(self)))


class Estimator:
    """The planner's model of one question: exact tables once, then arrays of strategies.

    Attributes:
        question: that it answers. kinds: of the model's layers.
        footprint, timing: the memory model and the time model.
        flops_per_token: forward and backward FLOPs of the model a token, by the question's convention.
        recomputed_flops_per_token: by checkpointing, those that are computed again.
    """

    def __init__(self, question: Question) -> None:
        architecture = question.architecture
        self.question = question
        self.kinds = LayerKinds.of(architecture, mtp=question.mtp)
        self.footprint = Footprint(question, self.kinds)
        self.timing = Timing(question, self.kinds, self.footprint)
        model = model_flops(architecture, question.sequence, question.convention, mtp=question.mtp)
        self.flops_per_token = model.total
        in_layers = [
            layer_flops(kind, architecture.hidden, question.sequence, question.convention) for kind in self.kinds.kinds
        ]
        counts = np.bincount([*self.kinds.order, *self.kinds.last], minlength=len(self.kinds.kinds))
        scores = sum(count * flops["attention_scores"] for count, flops in zip(counts, in_layers, strict=True))
        whole = sum(count * sum(flops.values()) for count, flops in zip(counts, in_layers, strict=True))
        self.recomputed_flops_per_token = {"none": 0.0, "selective": float(scores), "full": float(whole)}

    def estimate(self, strategies: Strategies) -> Estimates:
        """Memory and time of each strategy, whether it fits or not."""
        count = len(strategies)
        peak, fullest, seconds = np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count)
        self.footprint.expect(strategies)
        layers = self.timing.layers(strategies) if count else None
        for pp, schedule, here in groups(strategies):
            rows = strategies.take(here)
            # Nothing of memory depends on the all-to-all.
            cases = Unique(
                rows.ep,
                rows.dp,
                rows.tp,
                rows.microbatches,
                rows.sequences_per_gpu,
                rows.checkpointing,
                rows.zero_stage,
            )
            parts = self.footprint.components(pp, schedule, rows.take(cases.first), detailed=False)
            by_rank = np.asarray(sum(parts.values()))
            peak[here], fullest[here] = by_rank.max(axis=1)[cases.places], by_rank.argmax(axis=1)[cases.places]
            state = parts["static"][cases.places]
            seconds[here] = self.timing.step(pp, schedule, rows, state, layers and layers.take(here)).total
        mfu, hfu = self.utilisation(strategies, seconds)
        return Estimates(peak, fullest, seconds, mfu, hfu)

    def simulated_step_seconds(self, strategies: Strategies) -> Floats:
        """Seconds of a step with the pipeline simulated over the stages as they are, shape ``(strategies,)``.

        A pipeline of one stage is a sum, which ``estimate`` has exactly, whatever its microbatches.
        """
        seconds = np.zeros(len(strategies))
        for pp, schedule, here in groups(strategies):
            rows = strategies.take(here)
            state = self.footprint.state_bytes(pp, schedule, rows)
            times = self.timing.step(pp, schedule, rows, state)
            pipeline = times.pipeline if pp == 1 else self.timing.simulated_pipeline(pp, schedule, rows)
            seconds[here] = times.total - times.pipeline + pipeline
        return seconds

    def peaks(self, strategies: Strategies) -> Floats:
        """Peak bytes of the fullest rank alone, which is quicker than ``estimate``."""
        peak = np.zeros(len(strategies))
        self.footprint.expect(strategies)
        for pp, schedule, here in groups(strategies):
            peak[here] = self.footprint.rank_bytes(pp, schedule, strategies.take(here)).max(axis=1)
        return peak

    def utilisation(self, strategies: Strategies, step_seconds: Floats) -> tuple[Floats, Floats]:
        """MFU and HFU of steps that last so long."""
        tokens = strategies.sequences_per_gpu * strategies.ep * strategies.dp * float(self.question.sequence)
        gpus = strategies.pp * strategies.ep * strategies.dp * strategies.tp
        possible = self.question.platform.peak * gpus * step_seconds
        again = np.array([self.recomputed_flops_per_token[str(mode)] for mode in CHOICES["checkpointing"]])
        recomputed = again[strategies.checkpointing]
        return tokens * self.flops_per_token / possible, tokens * (self.flops_per_token + recomputed) / possible

    def stage_memory_bytes(self, strategy: Strategy) -> list[int]:
        """Peak bytes of each pipeline rank, rounded up."""
        rows = columns_of(strategy)
        of_ranks = self.footprint.rank_bytes(strategy.pp, strategy.schedule, rows)[0]  # type: ignore[arg-type]
        return [int(np.ceil(bytes_)) for bytes_ in of_ranks]


def groups(strategies: Strategies) -> Iterator[tuple[int, Schedule, Ints]]:
    """Places of the strategies that share PP and schedule: they have the same stages."""
    same = Unique(strategies.pp, strategies.schedule)
    order = np.argsort(same.places, kind="stable")
    ends = np.cumsum(np.bincount(same.places, minlength=len(same.keys)))
    for number, (pp, schedule) in enumerate(same.keys):
        start = ends[number - 1] if number else 0
        yield pp, SCHEDULES[schedule], order[start : ends[number]]


def columns_of(strategy: Strategy) -> Strategies:
    """One strategy as columns of length 1."""
    from ciera_piper_core.planner.strategy import Strategies

    return Strategies.of([strategy])
