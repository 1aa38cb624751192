"""One strategy in detail: memory by component and rank, time by component, bubble, communication, what is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.planner.communication import dispatch_bytes, origin
from ciera_piper_core.planner.compute import notes
from ciera_piper_core.planner.estimate import columns_of
from ciera_piper_core.planner.memory import PRECISIONS
from ciera_piper_core.planner.migration import migration_in
from ciera_piper_core.planner.paper_memory import paper_rank_bytes
from ciera_piper_core.planner.schedule_operations import operations
from ciera_piper_core.planner.schedule_simulation import simulate
from ciera_piper_core.planner.schedules import chunks_of, in_flight
from ciera_piper_core.planner.timing import EXCHANGES_OF_A_PASS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ciera_piper_core.planner.estimate import Estimator
    from ciera_piper_core.planner.migration import Migration
    from ciera_piper_core.planner.schedule_simulation import Timeline
    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.search import Plan, Prediction
    from ciera_piper_core.planner.strategy import Strategies, Strategy

    Floats = NDArray[np.float64]

MOST_OPERATIONS = 300_000
"""A step with more operations than this is not simulated: that would take seconds, and tells little more."""


@dataclass(frozen=True)
class Exchange:
    """One kind of communication of a GPU in a step.

    Attributes:
        name: what it is. ranks: of the group.
        bytes_each: of one exchange of a GPU; times: exchanges of the busiest GPU a step.
        seconds: of them all, what is not hidden.
        known: how its time is known.
    """

    name: str
    ranks: int
    bytes_each: float
    times: int
    seconds: float
    known: str


@dataclass(frozen=True)
class Explanation:
    """All that is known of one strategy of a plan.

    Attributes:
        prediction: what the plan says of it. number: its place in the ranking, from 1.
        memory: bytes of each pipeline rank by component, the largest first; they add up to ``rank_bytes``.
        rank_bytes: peak bytes of each rank. rank_layers: layers that each holds. in_flight: microbatches.
        time: seconds of the step by component, of the slowest rank; they add up to the step of ``prediction``.
        exchanges: communication.
        timeline: the schedule's operations over the stages as they are, or None if there are too many.
        simulated_step_seconds: the step with that pipeline; None likewise.
        flops_per_token, recomputed_flops_per_token: behind MFU and HFU.
        paper_rank_bytes: peak bytes of each rank by the paper's own formula; None with TP, or of a model that the
            formula cannot take.
        migration: what moving a layer's experts would cost at worst; None without expert parallelism.
        known: how each quantity is known, a line each.
    """

    prediction: Prediction
    number: int
    memory: dict[str, list[float]]
    rank_bytes: list[float]
    rank_layers: list[int]
    in_flight: list[float]
    time: dict[str, float]
    exchanges: list[Exchange]
    timeline: Timeline | None
    simulated_step_seconds: float | None
    flops_per_token: float
    recomputed_flops_per_token: float
    paper_rank_bytes: list[float] | None
    migration: Migration | None
    known: list[str]


def explain(plan: Plan, number: int) -> Explanation:
    """Strategy ``number`` of a plan, counted from 1.

    Raises:
        ValueError: there is no such strategy.
    """
    if (absence := plan.absence(number)) is not None:
        raise ValueError(absence)
    prediction, estimator = plan[number - 1], plan.estimator
    strategy = prediction.strategy
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    rows = columns_of(strategy)
    parts = estimator.footprint.components(strategy.pp, schedule, rows)
    memory = {name: [float(value) for value in amount[0]] for name, amount in parts.items() if amount.any()}
    memory = dict(sorted(memory.items(), key=lambda item: -max(item[1])))
    state = estimator.footprint.state_bytes(strategy.pp, schedule, rows)
    times = estimator.timing.step(strategy.pp, schedule, rows, state)
    after = float((times.total - times.pipeline)[0])
    timeline = _timeline(estimator, strategy, rows)
    return Explanation(
        prediction=prediction,
        number=number,
        memory=memory,
        rank_bytes=[float(value) for value in np.sum([*memory.values()], axis=0)],
        rank_layers=[int(count) for count in estimator.kinds.by_rank(schedule, strategy.pp).sum(axis=1)],
        in_flight=[float(value) for value in in_flight(schedule, strategy.pp, strategy.microbatches)],
        time=step_components(estimator, strategy, prediction.step_seconds),
        exchanges=_exchanges(estimator, strategy, rows),
        timeline=timeline,
        simulated_step_seconds=None if timeline is None else timeline.step_seconds + after,
        flops_per_token=estimator.flops_per_token,
        recomputed_flops_per_token=estimator.recomputed_flops_per_token[strategy.checkpointing],
        paper_rank_bytes=paper_rank_bytes(estimator.question, strategy),
        migration=migration_in(estimator.question, strategy),
        known=_known(estimator, strategy),
    )


def step_components(estimator: Estimator, strategy: Strategy, step_seconds: float | None = None) -> dict[str, float]:
    """Seconds of a step by component; they add up to the step.

    Args:
        step_seconds: of the step, as a plan predicts it; the estimate for equal stages if None.
    """
    return _time(estimator, strategy, columns_of(strategy), step_seconds)


def _time(
    estimator: Estimator, strategy: Strategy, rows: Strategies, step_seconds: float | None = None
) -> dict[str, float]:
    """Of the slowest rank; what it waits for is the bubble."""
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    timing, microbatches = estimator.timing, strategy.microbatches
    of_ranks = sum(timing.rank_seconds(strategy.pp, schedule, rows))
    slowest = int(np.argmax(np.asarray(of_ranks)[0]))
    layers = estimator.kinds.by_rank(schedule, strategy.pp)[slowest]
    found: dict[str, float] = {}

    def add(name: str, seconds: float) -> None:
        if seconds:
            found[name] = found.get(name, 0.0) + seconds

    for kind, count in enumerate(layers):
        work = timing.layer_work(kind, rows)
        for label, parts in (
            ("forward", work.forward),
            ("backward", work.backward_input),
            ("backward", work.backward_weight),
            ("computed again", work.recomputed),
        ):
            for name, seconds in parts.items():
                written = name.replace("_", " ")
                joined = written if name in ("all_to_all", "tensor_parallel") else f"{written}: {label}"
                add(joined, float(seconds[0]) * count * microbatches)
    if slowest == timing.last_rank(strategy.pp, schedule):
        output = timing.output_work(rows)
        add("output and loss: forward", float(output.forward[0]) * microbatches)
        add("output and loss: backward", float(output.backward[0]) * microbatches)
    state = estimator.footprint.state_bytes(strategy.pp, schedule, rows)
    times = timing.step(strategy.pp, schedule, rows, state)
    step = float(times.total[0]) if step_seconds is None else step_seconds
    add("waiting in the pipeline", step - float((times.total - times.pipeline + times.busy)[0]))
    add("data-parallel exchange", float(times.replicated_sync[0]))
    add("data-parallel exchange of experts", float(times.expert_sync[0]))
    add("optimizer", float(times.optimizer[0]))
    return {name: float(found[name]) for name in sorted(found, key=lambda name: -found[name])}


def _timeline(estimator: Estimator, strategy: Strategy, rows: Strategies) -> Timeline | None:
    """The schedule's own order of operations, over stages with the layers that they have."""
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    chunks = chunks_of(schedule)
    stages = strategy.pp * chunks
    if stages * strategy.microbatches * 3 > MOST_OPERATIONS:
        return None
    layers = estimator.kinds.by_stage(stages)
    totals = [estimator.timing.layer_work(kind, rows).totals() for kind in range(layers.shape[1])]
    forward, backward, weight = (layers @ np.array([float(each[part][0]) for each in totals]) for part in range(3))
    output = estimator.timing.output_work(rows)
    forward[-1] += float(output.forward[0])
    backward[-1] += float(output.backward_input[0])
    weight[-1] += float(output.backward_weight[0])
    hop = float(estimator.timing.hop_seconds(rows)[0])
    return simulate(operations(schedule, strategy.pp, strategy.microbatches), forward, backward, weight, hop)


def _exchanges(estimator: Estimator, strategy: Strategy, rows: Strategies) -> list[Exchange]:
    question = estimator.question
    platform, hidden = question.platform, question.architecture.hidden
    element = PRECISIONS[question.precision].weight_bytes
    schedule: Schedule = strategy.schedule  # type: ignore[assignment]
    times = _time(estimator, strategy, rows)
    tokens = strategy.sequences_per_microbatch * question.sequence
    node = platform.gpus_per_node
    passes = 3 if strategy.checkpointing == "full" else 2
    layers = estimator.kinds.by_rank(schedule, strategy.pp)
    found = []
    moe = [kind for kind, layer in enumerate(estimator.kinds.kinds) if layer.experts]
    if moe and strategy.ep > 1:
        experts = estimator.kinds.kinds[moe[0]].experts
        assert experts is not None
        load = estimator.footprint.load_factor(moe[0], strategy.ep)
        size = float(dispatch_bytes(tokens, experts.top_k, experts.expert_hidden or hidden, element)) * load
        count = EXCHANGES_OF_A_PASS * passes * int(layers[:, moe].sum(axis=1).max()) * strategy.microbatches
        place = max(1, node // strategy.tp)
        known = origin(
            platform, "all_to_all", size, strategy.ep,
            algorithm=strategy.alltoall, ranks_per_node=min(place, strategy.ep),  # type: ignore[arg-type]
        )  # fmt: skip
        name = f"all-to-all of experts ({strategy.alltoall})"
        found.append(Exchange(name, strategy.ep, size, count, times.get("all to all", 0.0), str(known)))
    if strategy.tp > 1:
        size = float(tokens * hidden * element)
        blocks = [
            sum(part is not None for part in (kind.mixer, kind.cross, kind.experts or kind.dense))
            for kind in estimator.kinds.kinds
        ]
        count = int((layers @ np.array(blocks)).max()) * passes * strategy.microbatches
        known = origin(platform, "all_reduce", size, strategy.tp)
        found.append(
            Exchange("all-reduce of TP", strategy.tp, size, count, times.get("tensor parallel", 0.0), str(known))
        )
    if strategy.pp > 1:
        size = float(tokens * hidden * element * (2 if question.architecture.encoder else 1))
        count = 2 * chunks_of(schedule) * strategy.microbatches
        hop = float(estimator.timing.hop_seconds(rows)[0])
        term = platform.terms["inter_node" if strategy.gpus > node else "intra_node"]
        known_as = f"{term}; its delay is within 'waiting in the pipeline', while the sender goes on computing"
        found.append(Exchange("send to the next stage", 2, size, count, hop * count, known_as))
    replicated = estimator.footprint.replicated_parameters(strategy.pp, schedule, strategy.tp).max()
    ranks = strategy.ep * strategy.dp
    if ranks > 1:
        size = float(replicated * PRECISIONS[question.precision].gradient_bytes)
        count = strategy.microbatches if strategy.zero_stage > 1 else 1
        known = origin(platform, "all_reduce", size, ranks, ranks_per_node=min(max(1, node // strategy.tp), ranks))
        seconds = times.get("data-parallel exchange", 0.0)
        found.append(
            Exchange(f"gradients and weights, ZeRO {strategy.zero_stage}", ranks, size, count, seconds, str(known))
        )
    if strategy.dp > 1 and moe:
        held = estimator.footprint.expert_parameters(strategy.pp, schedule, strategy.tp, strategy.ep).max()
        size = float(held * PRECISIONS[question.precision].gradient_bytes)
        apart = min(max(1, node // (strategy.ep * strategy.tp)), strategy.dp)
        known = origin(platform, "all_reduce", size, strategy.dp, ranks_per_node=apart)
        seconds = times.get("data-parallel exchange of experts", 0.0)
        found.append(Exchange("gradients of experts", strategy.dp, size, 1, seconds, str(known)))
    return found


def _known(estimator: Estimator, strategy: Strategy) -> list[str]:
    """What is measured and what is assumed."""
    question = estimator.question
    lines = [*question.platform.describe()]
    tokens = float(strategy.sequences_per_microbatch * question.sequence)
    for kind, layer in enumerate(estimator.kinds.kinds):
        said = notes(
            question.platform,
            layer,
            question.architecture.hidden,
            question.sequence,
            tokens,
            expert_parallel=strategy.ep,
            tensor_parallel=strategy.tp,
            load_factor=estimator.footprint.load_factor(kind, strategy.ep),
        )
        lines += [f"{name} here: {text}" for name, text in said.items()]
        if layer.experts is not None and strategy.ep > 1 and question.routing.zipf:
            load = estimator.footprint.load_factor(kind, strategy.ep)
            dealt = question.routing.dealt_factor(layer.experts.experts, layer.experts.top_k, strategy.ep)
            lines.append(
                f"load of the busiest rank: {load:.3g} x the mean, the exact expectation under {question.routing};"
                f" {dealt:.3g} x if popular experts were dealt out one to each rank in turn"
            )
    lines.append(f"routing: assumed: {question.routing_text}")
    lines.append(question.overlap.describe())
    return list(dict.fromkeys(lines))
