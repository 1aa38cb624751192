"""Dense models with published memory and step times, as the planner's model sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.models.architecture import Architecture, Attention, FeedForward, Layer
from ciera_piper_core.planner.estimate import Estimator
from ciera_piper_core.planner.formatting import GIB
from ciera_piper_core.planner.memory import activation_bytes_per_token, static_bytes_per_parameter
from ciera_piper_core.planner.schedule_cost import makespan
from ciera_piper_core.planner.schedules import in_flight
from ciera_piper_core.planner.sharding import tensor_parallel_share
from ciera_piper_core.planner.strategy import Question, Strategies, Strategy
from ciera_piper_core.platforms import load_platform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.planner.schedules import Schedule

VOCABULARY = 51200
"""Of the published models."""

FLOAT32_GRADIENTS = 2
"""Bytes a parameter that Megatron's float32 gradients take beyond ours."""


@dataclass(frozen=True)
class DenseRow:
    """One published figure beside ours.

    Attributes:
        model: its name. quantity: what and in which unit. published, ours: the figures.
        reason: what is known of the difference.
    """

    model: str
    quantity: str
    published: float
    ours: float
    reason: str

    @property
    def deviation(self) -> float:
        """Ours over the published, less one."""
        return self.ours / self.published - 1


def dense_rows(data: Mapping[str, Any]) -> list[DenseRow]:
    """Every figure of the published models."""
    found: list[DenseRow] = []
    for row in data["rows"]:
        found += _rows_of(row, data["sequence"], data["tp"])
    return found


def _rows_of(row: Mapping[str, Any], sequence: int, tp: int) -> list[DenseRow]:
    layer = _layer(row["hidden"], row["heads"])
    schedule: Schedule = "interleaved" if row["chunks"] > 1 else "1f1b"
    microbatches = row["batch"] // row["microbatch"]
    layers = row["layers"] // row["pp"]
    tokens = row["microbatch"] * sequence
    # The published weights are those of the layers' matrices, 12 h^2 each.
    share = tensor_parallel_share(layer, tp)
    weights = layers * _matrix_weights(share, row["hidden"])
    static = float(weights * (static_bytes_per_parameter().total + FLOAT32_GRADIENTS))
    held = float(in_flight(schedule, row["pp"], microbatches, chunks=row["chunks"])[0])

    def kept(checkpointing: str, ranks: int) -> float:
        parts = activation_bytes_per_token(
            layer, row["hidden"], sequence, checkpointing=checkpointing, flash=False, tensor_parallel=ranks
        )
        return float(sum(parts.values()))

    # What those models keep and our transformer does not: masks of two dropouts (a byte each), the input of
    # GELU (ours is ReLU, which needs its result alone), and of every score a mask and its dropped value.
    masks, gelu, scores = 2 * row["hidden"], 2 * 4 * row["hidden"], 3 * row["heads"] * sequence
    whole = layers * held * tokens / GIB
    ours = whole * kept("none", tp)
    with_theirs = ours + whole * (masks + (gelu + scores) / tp)
    ours_selective = whole * kept("selective", tp)
    # Sequence parallelism divides also what is whole on each TP rank here.
    selective_with_theirs = whole * (kept("selective", 1) + masks + gelu) / tp

    full, selective = _step_seconds(row, layer, sequence, tp, schedule)
    activations = f"with their dropout and GELU; our transformer has neither and keeps {ours:.2f}"
    sequence_parallel = f"likewise, and with sequence parallelism; ours without keeps {ours_selective:.2f}"
    time = "dgx-a100 is specified and assumed, not measured; A100 clocks and kernels of 2022"
    figures = (
        ("weights and optimizer, GiB", "static_gib", static / GIB, "18 bytes a parameter, as there"),
        ("activations, GiB", "none_gib", with_theirs, activations),
        ("activations, selective, GiB", "selective_gib", selective_with_theirs, sequence_parallel),
        ("step, full recomputation, s", "full_seconds", full, time),
        ("step, selective, s", "selective_seconds", selective, time),
    )
    return [DenseRow(row["model"], quantity, row[name], own, why) for quantity, name, own, why in figures]


def _layer(hidden: int, heads: int) -> Layer:
    width = hidden // heads
    return Layer(Attention(heads, heads, width, width), None, FeedForward(4 * hidden, 2))


def _matrix_weights(layer: Layer, hidden: int) -> int:
    from ciera_piper_core.models.parameters import layer_parameters

    counts = layer_parameters(layer, hidden)
    return counts.attention + counts.dense


def _step_seconds(
    row: Mapping[str, Any], layer: Layer, sequence: int, tp: int, schedule: Schedule
) -> tuple[float, float]:
    """With full and with selective recomputation; the layers of a rank are equal, the schedule has its own chunks."""
    architecture = Architecture(row["model"], row["hidden"], VOCABULARY, (layer,) * row["layers"])
    question = Question(
        architecture,
        load_platform("dgx-a100"),
        row["pp"] * tp,
        sequence=sequence,
        sequences_per_gpu=row["batch"],
        flash=False,
    )
    estimator = Estimator(question)
    microbatches = row["batch"] // row["microbatch"]
    found = []
    for checkpointing in ("full", "selective"):
        strategy = Strategy(row["pp"], 1, 1, tp, microbatches, row["batch"], "1f1b", checkpointing, 0, "flat")
        rows = Strategies.of([strategy])
        ranks = estimator.timing.rank_seconds(row["pp"], "1f1b", rows)
        slowest = int(np.argmax((ranks[0] + ranks[1] + ranks[2])[0]))
        forward, backward, weight = (float(each[0, slowest]) for each in ranks)
        hop = float(estimator.timing.hop_seconds(rows)[0])
        chunks = row["chunks"] if schedule == "interleaved" else None
        pipeline = makespan(schedule, row["pp"], microbatches, forward, backward, weight, hop, chunks=chunks)
        state = estimator.footprint.state_bytes(row["pp"], "1f1b", rows)
        found.append(float(pipeline) + float(estimator.timing.step(row["pp"], "1f1b", rows, state).optimizer[0]))
    return found[0], found[1]
