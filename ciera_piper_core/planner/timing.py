"""Seconds of a training step, for many strategies at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.communication import (
    ALL_TO_ALL,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    dispatch_bytes,
    exposed_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from ciera_piper_core.planner.compute import layer_passes, optimizer_seconds, output_passes
from ciera_piper_core.planner.memory import PRECISIONS
from ciera_piper_core.planner.schedule_batch import batch_seconds
from ciera_piper_core.planner.schedule_cost import makespan
from ciera_piper_core.planner.schedules import chunks_of
from ciera_piper_core.planner.stages import end_ranks
from ciera_piper_core.planner.strategy import CHOICES
from ciera_piper_core.planner.unique import Unique, by_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.models.architecture import Layer
    from ciera_piper_core.planner.footprint import Footprint
    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.stages import LayerKinds
    from ciera_piper_core.planner.strategy import Question, Strategies
    from ciera_piper_core.platforms.roofline import Passes

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

EXCHANGES_OF_A_PASS = 2
"""All-to-alls of a layer with experts, forward, backward, and when it is computed again: dispatch and combine."""


@dataclass(frozen=True)
class Work:
    """Seconds of one microbatch by component; each array has the strategies along its first axis.

    Attributes:
        forward, backward_input, backward_weight: by component; what is exposed of communication is in
            ``all_to_all`` and ``tensor_parallel``. recomputed: forward seconds that are spent again.
    """

    forward: dict[str, Floats]
    backward_input: dict[str, Floats]
    backward_weight: dict[str, Floats]
    recomputed: dict[str, Floats]

    def totals(self) -> tuple[Floats, Floats, Floats]:
        """Forward, backward for inputs with what is computed again, and backward for weights."""
        again = np.asarray(sum(self.recomputed.values()))
        backward = np.asarray(sum(self.backward_input.values()))
        return np.asarray(sum(self.forward.values())), backward + again, np.asarray(sum(self.backward_weight.values()))


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, each of shape ``(strategies,)``.

    Attributes:
        pipeline: from the first forward to the last backward.
        busy: of it, the slowest rank computes and communicates within layers.
        replicated_sync, expert_sync: gradients and weights over data-parallel ranks.
        optimizer: its pass over the state.
    """

    pipeline: Floats
    busy: Floats
    replicated_sync: Floats
    expert_sync: Floats
    optimizer: Floats

    @property
    def total(self) -> Floats:
        return self.pipeline + self.replicated_sync + self.expert_sync + self.optimizer


@dataclass(frozen=True)
class LayerSeconds:
    """Forward, backward for inputs, backward for weights of one microbatch, of the distinct cases among strategies.

    Attributes:
        places: the case of each strategy.
        of_kinds: of each kind of layer, three arrays ``(cases, kinds)``.
        output: of output projection and loss, three arrays ``(cases,)``.
    """

    places: Ints
    of_kinds: tuple[Floats, ...]
    output: tuple[Floats, ...]

    def take(self, which: Ints) -> LayerSeconds:
        """Those of some of the strategies."""
        return LayerSeconds(self.places[which], self.of_kinds, self.output)


class Timing:
    """The time model of one question.

    ``step`` is an estimate for unequal stages: the slowest rank's work, shared out evenly over its
    chunks, stands for every stage's. It is too slow where other ranks do less, and too quick where a
    chunk has more than its share. ``simulated_pipeline`` takes the stages as they are. Within a device
    nothing overlaps; between devices only what the question declares.
    """

    def __init__(self, question: Question, kinds: LayerKinds, footprint: Footprint) -> None:
        self._question = question
        self._kinds = kinds
        self._footprint = footprint
        self._precision = PRECISIONS[question.precision]

    def layers(self, rows: Strategies) -> LayerSeconds:
        """Seconds of every kind of layer in every strategy; what the strategies share is computed once."""
        cases = Unique(rows.ep, rows.tp, rows.sequences_per_microbatch, rows.checkpointing, rows.alltoall)
        distinct = rows.take(cases.first)
        of_kinds = [self.layer_work(kind, distinct).totals() for kind in range(len(self._kinds.kinds))]
        passes = self.output_work(distinct)
        output = (passes.forward, passes.backward_input, passes.backward_weight)
        shape = (len(distinct),)
        return LayerSeconds(
            cases.places,
            tuple(np.stack([each[part] for each in of_kinds], axis=1) for part in range(3)),
            tuple(np.broadcast_to(each, shape) for each in output),
        )

    def step(
        self, pp: int, schedule: Schedule, rows: Strategies, state_bytes: Floats, layers: LayerSeconds | None = None
    ) -> StepTimes:
        """Times of strategies that all have this PP and schedule.

        Args:
            state_bytes: static bytes of each rank, shape ``(len(rows), pp)``.
            layers: of these rows; made here if None.
        """
        known = self.layers(rows) if layers is None else layers
        used, places = np.unique(known.places, return_inverse=True)
        ranks = self._rank_seconds(pp, schedule, known, used)
        slowest = np.argmax(ranks[0] + ranks[1] + ranks[2], axis=1)[:, None]
        forward, backward, weight = (np.take_along_axis(each, slowest, axis=1)[places, 0] for each in ranks)
        hop = self.hop_seconds(rows)
        pipeline = makespan(schedule, pp, rows.microbatches, forward, backward, weight, hop)
        busy = rows.microbatches * (forward + backward + weight)
        hidden = self._question.overlap.data_parallel
        computing = busy if hidden else np.zeros_like(busy)
        replicated, experts = self.sync_seconds(pp, schedule, rows)
        return StepTimes(
            pipeline=pipeline,
            busy=busy,
            replicated_sync=exposed_seconds(replicated, computing, hidden),
            expert_sync=exposed_seconds(experts, computing, hidden),
            optimizer=optimizer_seconds(self._question.platform, state_bytes.max(axis=1)),
        )

    def simulated_pipeline(self, pp: int, schedule: Schedule, rows: Strategies) -> Floats:
        """Seconds from the first forward to the last backward, from the schedule's order of operations
        over the stages as they are; of strategies that all have this PP and schedule.
        """
        forward, backward, weight = self.stage_seconds(pp, schedule, rows)
        hop = self.hop_seconds(rows)
        found = np.zeros(len(rows))
        for microbatches in np.unique(rows.microbatches):
            here = np.flatnonzero(rows.microbatches == microbatches)
            found[here] = batch_seconds(
                schedule, pp, int(microbatches), forward[here], backward[here], weight[here], hop[here]
            )
        return found

    def stage_seconds(self, pp: int, schedule: Schedule, rows: Strategies) -> tuple[Floats, Floats, Floats]:
        """Forward, backward for inputs, backward for weights of one microbatch in each stage: ``(len(rows), stages)``.

        A stage is a chunk of a rank.
        """
        known = self.layers(rows)
        counts = self._kinds.by_stage(pp * chunks_of(schedule)).T
        found = []
        for of_kinds, output in zip(known.of_kinds, known.output, strict=True):
            seconds = (of_kinds @ counts)[known.places]
            seconds[:, -1] += output[known.places]
            found.append(seconds)
        return found[0], found[1], found[2]

    def rank_seconds(self, pp: int, schedule: Schedule, rows: Strategies) -> tuple[Floats, Floats, Floats]:
        """Forward, backward for inputs, backward for weights of one microbatch on each rank: ``(len(rows), pp)``."""
        known = self.layers(rows)
        return self._rank_seconds(pp, schedule, known, known.places)

    def _rank_seconds(
        self, pp: int, schedule: Schedule, known: LayerSeconds, which: Ints
    ) -> tuple[Floats, Floats, Floats]:
        """Likewise, of the distinct cases ``which``."""
        counts = self._kinds.by_rank(schedule, pp).T
        last = self.last_rank(pp, schedule)
        found = []
        for of_kinds, output in zip(known.of_kinds, known.output, strict=True):
            seconds = of_kinds[which] @ counts
            seconds[:, last] += output[which]
            found.append(seconds)
        return found[0], found[1], found[2]

    def last_rank(self, pp: int, schedule: Schedule) -> int:
        """The rank that has the output projection."""
        return end_ranks(schedule, pp)[1]

    def layer_work(self, kind: int, rows: Strategies) -> Work:
        """One layer of that kind, for one microbatch; arrays of shape ``(len(rows),)``."""
        question = self._question
        layer, hidden = self._kinds.kinds[kind], question.architecture.hidden
        tokens = (rows.sequences_per_microbatch * question.sequence).astype(np.float64)
        load = self._load(kind, rows.ep)
        passes = layer_passes(
            question.platform,
            layer,
            hidden,
            question.sequence,
            tokens,
            expert_parallel=rows.ep,
            tensor_parallel=rows.tp,
            load_factor=load,
        )
        full = np.broadcast_to
        shape = tokens.shape
        forward = {name: full(part.forward, shape) for name, part in passes.items()}
        backward = {name: full(part.backward_input, shape) for name, part in passes.items()}
        weight = {name: full(part.backward_weight, shape) for name, part in passes.items()}
        compute = np.asarray(sum(forward.values()))
        for name, seconds in self._exchanges(layer, rows, tokens, load).items():
            share = getattr(question.overlap, name)
            forward[name] = exposed_seconds(seconds, compute, share)
            backward[name] = exposed_seconds(seconds, compute, share)
        again = self._again(rows)
        recomputed = {
            name: seconds * (again["full"] | (again["selective"] & (name == "attention_scores")))
            for name, seconds in forward.items()
        }
        return Work(forward, backward, weight, recomputed)

    def output_work(self, rows: Strategies) -> Passes:
        """Output projection and loss of one microbatch, on the last stage."""
        architecture = self._question.architecture
        tokens = (rows.sequences_per_microbatch * self._question.sequence).astype(np.float64)
        passes = output_passes(
            self._question.platform,
            architecture.hidden,
            architecture.output_vocab or architecture.vocab,
            tokens,
            tensor_parallel=rows.tp,
        )
        return passes * (1 + len(self._kinds.last))

    def hop_seconds(self, rows: Strategies) -> Floats:
        """One microbatch from a stage to the next; an encoder's result travels along with the decoder's."""
        architecture = self._question.architecture
        elements = rows.sequences_per_microbatch * self._question.sequence * architecture.hidden
        sent = elements * self._precision.weight_bytes * (2 if architecture.encoder else 1)
        gpus = rows.pp * rows.ep * rows.dp * rows.tp
        seconds = point_to_point_seconds(self._question.platform, sent, gpus > self._question.platform.gpus_per_node)
        return seconds * (1 - self._question.overlap.point_to_point)

    def sync_seconds(self, pp: int, schedule: Schedule, rows: Strategies) -> tuple[Floats, Floats]:
        """What data-parallel ranks exchange in a step, of the replicated parts and of the experts, unhidden.

        ZeRO 0: gradients are added up once, by all-reduce. 1: by reduce-scatter, and the new weights
        gathered. 2: gradients are reduced after every microbatch, or they could not be kept in
        shards. 3: as 2, and weights are gathered forward and backward of every microbatch. Experts:
        one all-reduce over the ranks that hold the same.
        """
        platform, node = self._question.platform, self._question.platform.gpus_per_node
        cases = Unique(rows.ep, rows.dp, rows.tp, rows.zero_stage, rows.microbatches)
        chosen = rows.take(cases.first)
        parameters = by_value(lambda tp: self._footprint.replicated_parameters(pp, schedule, tp).max(), chosen.tp)
        ranks = chosen.ep * chosen.dp
        place = {"ranks_per_node": np.minimum(np.maximum(1, node // chosen.tp), ranks)}
        gradients = parameters * self._precision.gradient_bytes
        weights = parameters * self._precision.weight_bytes
        reduce_all = all_reduce_seconds(platform, gradients, ranks, **place)
        reduce = reduce_scatter_seconds(platform, gradients, ranks, **place)
        gather = all_gather_seconds(platform, weights, ranks, **place)
        count = chosen.microbatches
        by_stage = [reduce_all, reduce + gather, count * reduce + gather, count * (reduce + 2 * gather)]
        replicated = np.choose(chosen.zero_stage, by_stage)
        held = by_value(
            lambda tp, ep: self._footprint.expert_parameters(pp, schedule, tp, ep).max(), chosen.tp, chosen.ep
        )
        apart = np.minimum(np.maximum(1, node // (chosen.ep * chosen.tp)), chosen.dp)
        experts = all_reduce_seconds(platform, held * self._precision.gradient_bytes, chosen.dp, ranks_per_node=apart)
        return replicated[cases.places], experts[cases.places]

    def _exchanges(self, layer: Layer, rows: Strategies, tokens: Floats, load: Floats) -> dict[str, Floats]:
        """Seconds of communication of a pass through a layer, unhidden, by its name in ``Overlap``."""
        question = self._question
        platform, hidden = question.platform, question.architecture.hidden
        found: dict[str, Floats] = {}
        if layer.experts is not None and (rows.ep > 1).any():
            width = layer.experts.expert_hidden or hidden
            size = dispatch_bytes(tokens, layer.experts.top_k, width, self._precision.weight_bytes)
            local = np.minimum(np.maximum(1, platform.gpus_per_node // rows.tp), rows.ep)
            seconds = np.zeros(len(rows))
            for code, algorithm in enumerate(ALL_TO_ALL):
                here = (rows.alltoall == code) & (rows.ep > 1)
                if here.any():
                    seconds[here] = EXCHANGES_OF_A_PASS * all_to_all_seconds(
                        platform, size[here], rows.ep[here], algorithm, load[here], ranks_per_node=local[here]
                    )
            found["all_to_all"] = seconds
        if (rows.tp > 1).any():
            blocks = sum(block is not None for block in (layer.mixer, layer.cross, layer.experts or layer.dense))
            found["tensor_parallel"] = blocks * all_reduce_seconds(
                platform, tokens * hidden * self._precision.weight_bytes, rows.tp
            )
        return found

    def _load(self, kind: int, ep: Ints) -> Floats:
        return by_value(lambda degree: self._footprint.load_factor(kind, degree), ep)

    def _again(self, rows: Strategies) -> dict[str, NDArray[np.bool_]]:
        known = CHOICES["checkpointing"]
        return {mode: rows.checkpointing == known.index(mode) for mode in ("selective", "full")}
