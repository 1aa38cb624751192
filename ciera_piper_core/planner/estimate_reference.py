"""One strategy at a time, layer by layer and operation by operation: the oracle of the vectorised estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.models.flops import layer_flops, model_flops
from ciera_piper_core.planner.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    dispatch_bytes,
    exposed_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from ciera_piper_core.planner.compute import layer_passes, optimizer_seconds, output_passes
from ciera_piper_core.planner.memory import (
    PRECISIONS,
    activation_bytes_per_token,
    layer_static_bytes,
    logits_bytes_per_token,
    logits_working_bytes_per_token,
    weights_static_bytes,
    working_bytes,
    working_bytes_per_token,
)
from ciera_piper_core.planner.schedule_operations import operations, peak_held
from ciera_piper_core.planner.schedule_simulation import simulate
from ciera_piper_core.planner.schedules import chunks_of, stage_of_chunk
from ciera_piper_core.planner.sharding import tensor_parallel_share
from ciera_piper_core.planner.stages import stage_of_layer
from ciera_piper_core.planner.weights import Weight, layer_weights

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Layer
    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.strategy import Question, Strategy


@dataclass(frozen=True)
class Reference:
    """What the oracle says of one strategy.

    Attributes:
        rank_bytes: peak of each pipeline rank.
        step_seconds, mfu, hfu: as of ``Estimates``, where the slowest rank's work stands for every
            stage's, or with the stages as they are.
    """

    rank_bytes: list[float]
    step_seconds: float
    mfu: float
    hfu: float


def reference_estimate(question: Question, strategy: Strategy, *, simulated: bool = False) -> Reference:
    """The estimate of one strategy, by plain loops.

    Args:
        simulated: run the operations over the stages as they are, not over equal ones.
    """
    stages = _layers_of_stages(question, strategy)
    ranks = _layers_of_ranks(strategy, stages)
    step = _step_seconds(question, strategy, ranks, stages if simulated else None)
    model = model_flops(question.architecture, question.sequence, question.convention, mtp=question.mtp).total
    again = 0.0
    for layers in ranks:
        for layer in layers:
            flops = layer_flops(layer, question.architecture.hidden, question.sequence, question.convention)
            again += {"none": 0.0, "selective": flops["attention_scores"], "full": sum(flops.values())}[
                strategy.checkpointing
            ]
    tokens = strategy.global_batch * question.sequence
    possible = question.platform.peak * strategy.gpus * step
    return Reference(
        _ranks_bytes(question, strategy, ranks),
        step,
        tokens * model / possible,
        tokens * (model + again) / possible,
    )


def _schedule(strategy: Strategy) -> Schedule:
    return strategy.schedule  # type: ignore[return-value]


def _layers_of_stages(question: Question, strategy: Strategy) -> list[list[Layer]]:
    """The layers of each stage, in order of the model."""
    architecture, schedule = question.architecture, _schedule(strategy)
    layers = [*architecture.encoder, *architecture.layers]
    stages = strategy.pp * chunks_of(schedule)
    held: list[list[Layer]] = [[] for _ in range(stages)]
    for layer, stage in zip(layers, stage_of_layer(len(layers), stages), strict=True):
        held[stage].append(layer)
    if question.mtp:
        held[-1] += architecture.mtp
    return held


def _layers_of_ranks(strategy: Strategy, stages: list[list[Layer]]) -> list[list[Layer]]:
    """The layers of each pipeline rank."""
    return [
        [layer for stage in stage_of_chunk(_schedule(strategy), strategy.pp, rank) for layer in stages[stage]]
        for rank in range(strategy.pp)
    ]


def _has(strategy: Strategy, stage: int, rank: int) -> bool:
    schedule = _schedule(strategy)
    stages = strategy.pp * chunks_of(schedule)
    return stage % stages in stage_of_chunk(schedule, strategy.pp, rank)


def _load(question: Question, layer: Layer, ep: int) -> float:
    if layer.experts is None or ep == 1:
        return 1.0
    return float(question.routing.factors(layer.experts.experts, layer.experts.top_k, np.array([ep]))[0])


def _ends(question: Question, strategy: Strategy, rank: int) -> list[Weight]:
    architecture, tp = question.architecture, strategy.tp
    first, last = _has(strategy, 0, rank), _has(strategy, -1, rank)
    found = []
    if first:
        found.append(Weight("ends", 1, -(-architecture.vocab // tp), architecture.hidden))
    if last and not (architecture.tied_embeddings and first):
        rows = architecture.output_vocab or architecture.vocab
        found.append(Weight("ends", 1, -(-rows // tp), architecture.hidden))
    if last and architecture.extra_parameters:
        found.append(Weight("ends", 1, 1, architecture.extra_parameters))
    if last and question.mtp:
        found += [Weight("ends", 1, architecture.hidden, 2 * architecture.hidden) for _ in architecture.mtp]
    return found


def _state_bytes(question: Question, strategy: Strategy, layers: list[Layer], rank: int) -> float:
    settings: dict[str, Any] = {
        "optimizer": question.optimizer,
        "precision": question.precision,
        "zero_stage": strategy.zero_stage,
        "shards": strategy.ep * strategy.dp,
    }
    state = float(weights_static_bytes(_ends(question, strategy, rank), **settings).total)
    for layer in layers:
        share = tensor_parallel_share(layer, strategy.tp)
        spread = 1.0
        if layer.experts is not None:
            spread = layer.experts.experts / -(-layer.experts.experts // strategy.ep)
        parts = layer_static_bytes(share, question.architecture.hidden, **settings, expert_parallel=spread)
        # The ZeRO stage is that of the replicated parts; experts are spread over EP alone.
        experts = layer_static_bytes(
            share, question.architecture.hidden, **{**settings, "zero_stage": 0, "shards": 1}, expert_parallel=spread
        )
        parts["routed_experts"] = experts["routed_experts"]
        state += sum(float(part.total) for part in parts.values())
    return state


def _ranks_bytes(question: Question, strategy: Strategy, ranks: list[list[Layer]]) -> list[float]:
    schedule = _schedule(strategy)
    order = operations(schedule, strategy.pp, strategy.microbatches)
    # What all chunks of a rank keep of a microbatch is one.
    held = peak_held(order, [1 / chunks_of(schedule)] * strategy.pp * chunks_of(schedule))
    return [_rank_bytes(question, strategy, ranks, rank, float(held[rank])) for rank in range(strategy.pp)]


def _rank_bytes(question: Question, strategy: Strategy, ranks: list[list[Layer]], rank: int, held: float) -> float:
    architecture, hidden = question.architecture, question.architecture.hidden
    tokens = strategy.sequences_per_microbatch * question.sequence
    working = gathered = kept = 0.0
    settings: dict[str, Any] = {
        "checkpointing": strategy.checkpointing,
        "flash": question.flash,
        "tensor_parallel": strategy.tp,
        "precision": question.precision,
    }
    for layer in ranks[rank]:
        load = _load(question, layer, strategy.ep)
        parts = activation_bytes_per_token(layer, hidden, question.sequence, load_factor=load, **settings)
        kept += sum(float(part) for part in parts.values())
        more = {"load_factor": load, "expert_parallel": strategy.ep, **settings}
        if strategy.microbatches > 1:
            transient = float(working_bytes(layer, hidden, question.sequence, tokens, **more))
        else:
            transient = tokens * float(working_bytes_per_token(layer, hidden, question.sequence, **more))
        working = max(working, transient)
        weights = layer_weights(tensor_parallel_share(layer, strategy.tp), hidden)
        replicated = sum(weight.elements for weight in weights if weight.component != "routed_experts")
        gathered = max(gathered, replicated * PRECISIONS[question.precision].weight_bytes)
    ends = logits_bytes_per_token(architecture, precision=question.precision, vocab_parallel=strategy.tp)
    if _has(strategy, 0, rank):
        kept += ends["embedding"]
    if _has(strategy, -1, rank):
        kept += ends["output"] * (1 + (len(architecture.mtp) if question.mtp else 0))
        logits = logits_working_bytes_per_token(architecture, precision=question.precision, vocab_parallel=strategy.tp)
        working = max(working, tokens * logits)
    if strategy.zero_stage < 3 or strategy.ep * strategy.dp == 1:
        gathered = 0.0
    state = _state_bytes(question, strategy, ranks[rank], rank)
    return state + held * tokens * kept + working + gathered + question.platform.overhead_bytes


def _layer_seconds(question: Question, strategy: Strategy, layer: Layer) -> np.ndarray:
    """Forward, backward for inputs (with recomputation), backward for weights, of one microbatch."""
    platform, hidden, overlap = question.platform, question.architecture.hidden, question.overlap
    tokens = float(strategy.sequences_per_microbatch * question.sequence)
    load = _load(question, layer, strategy.ep)
    degrees = {"expert_parallel": strategy.ep, "tensor_parallel": strategy.tp, "load_factor": load}
    passes = layer_passes(platform, layer, hidden, question.sequence, tokens, **degrees)
    forward = sum(float(part.forward) for part in passes.values())
    backward = sum(float(part.backward_input) for part in passes.values())
    weight = sum(float(part.backward_weight) for part in passes.values())
    exchanged = 0.0
    element = PRECISIONS[question.precision].weight_bytes
    if layer.experts is not None and strategy.ep > 1:
        size = dispatch_bytes(tokens, layer.experts.top_k, layer.experts.expert_hidden or hidden, element)
        local = min(max(1, platform.gpus_per_node // strategy.tp), strategy.ep)
        one = all_to_all_seconds(
            platform, size, strategy.ep, strategy.alltoall, load, ranks_per_node=local  # type: ignore[arg-type]
        )  # fmt: skip
        exchanged += float(exposed_seconds(2 * one, forward, overlap.all_to_all))
    if strategy.tp > 1:
        blocks = sum(part is not None for part in (layer.mixer, layer.cross, layer.experts or layer.dense))
        one = all_reduce_seconds(platform, tokens * hidden * element, strategy.tp)
        exchanged += float(exposed_seconds(blocks * one, forward, overlap.tensor_parallel))
    again = 0.0
    if strategy.checkpointing == "full":
        again = forward + exchanged
    elif strategy.checkpointing == "selective" and "attention_scores" in passes:
        again = float(passes["attention_scores"].forward)
    return np.array([forward + exchanged, backward + exchanged + again, weight])


def _step_seconds(
    question: Question, strategy: Strategy, ranks: list[list[Layer]], stages: list[list[Layer]] | None
) -> float:
    platform, architecture, schedule = question.platform, question.architecture, _schedule(strategy)
    of_layer = {layer: _layer_seconds(question, strategy, layer) for layers in ranks for layer in layers}
    of_ranks = [sum((of_layer[layer] for layer in layers), np.zeros(3)) for layers in ranks]
    tokens = float(strategy.sequences_per_microbatch * question.sequence)
    vocabulary = architecture.output_vocab or architecture.vocab
    output = output_passes(platform, architecture.hidden, vocabulary, tokens, tensor_parallel=strategy.tp)
    heads = 1 + (len(architecture.mtp) if question.mtp else 0)
    at_end = heads * np.array([float(part) for part in (output.forward, output.backward_input, output.backward_weight)])
    for rank in range(strategy.pp):
        if _has(strategy, -1, rank):
            of_ranks[rank] = of_ranks[rank] + at_end
    slowest = max(of_ranks, key=lambda each: float(each.sum())) / chunks_of(schedule)
    of_stages = np.stack([slowest] * strategy.pp * chunks_of(schedule))
    if stages is not None:
        of_stages = np.stack([sum((of_layer[layer] for layer in layers), np.zeros(3)) for layers in stages])
        of_stages[-1] += at_end
    element = PRECISIONS[question.precision].weight_bytes
    sent = tokens * architecture.hidden * element * (2 if architecture.encoder else 1)
    hop = float(point_to_point_seconds(platform, sent, strategy.gpus > platform.gpus_per_node))
    hop *= 1 - question.overlap.point_to_point
    order = operations(schedule, strategy.pp, strategy.microbatches)
    pipeline = simulate(order, of_stages[:, 0], of_stages[:, 1], of_stages[:, 2], hop).step_seconds
    busy = float(slowest.sum()) * chunks_of(schedule) * strategy.microbatches
    state = max(_state_bytes(question, strategy, layers, rank) for rank, layers in enumerate(ranks))
    after = sum(
        float(exposed_seconds(each, busy if question.overlap.data_parallel else 0.0, question.overlap.data_parallel))
        for each in _sync_seconds(question, strategy, ranks)
    )
    return pipeline + after + float(optimizer_seconds(platform, state))


def _sync_seconds(question: Question, strategy: Strategy, ranks: list[list[Layer]]) -> tuple[float, float]:
    platform, hidden = question.platform, question.architecture.hidden
    precision = PRECISIONS[question.precision]
    replicated = experts = 0.0
    for rank, layers in enumerate(ranks):
        own = float(sum(weight.elements for weight in _ends(question, strategy, rank)))
        routed = 0.0
        for layer in layers:
            for weight in layer_weights(tensor_parallel_share(layer, strategy.tp), hidden):
                if weight.component != "routed_experts":
                    own += weight.elements
                elif layer.experts is not None:
                    routed += weight.elements * -(-layer.experts.experts // strategy.ep) / layer.experts.experts
        replicated, experts = max(replicated, own), max(experts, routed)
    group = strategy.ep * strategy.dp
    local = min(max(1, platform.gpus_per_node // strategy.tp), group)
    gradients, weights = replicated * precision.gradient_bytes, replicated * precision.weight_bytes
    reduce = float(reduce_scatter_seconds(platform, gradients, group, ranks_per_node=local))
    gather = float(all_gather_seconds(platform, weights, group, ranks_per_node=local))
    count = strategy.microbatches
    by_stage = {
        0: float(all_reduce_seconds(platform, gradients, group, ranks_per_node=local)),
        1: reduce + gather,
        2: count * reduce + gather,
        3: count * (reduce + 2 * gather),
    }
    apart = min(max(1, platform.gpus_per_node // (strategy.ep * strategy.tp)), strategy.dp)
    of_experts = all_reduce_seconds(platform, experts * precision.gradient_bytes, strategy.dp, ranks_per_node=apart)
    return by_stage[strategy.zero_stage], float(of_experts)
