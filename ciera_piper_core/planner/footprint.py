"""Memory of every pipeline rank, for many strategies at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.planner.memory import (
    PRECISIONS,
    activation_bytes_per_token,
    logits_bytes_per_token,
    logits_working_bytes_per_token,
    moment_elements,
    working_bytes,
    working_bytes_per_token,
)
from ciera_piper_core.planner.schedules import in_flight
from ciera_piper_core.planner.sharding import tensor_parallel_share
from ciera_piper_core.planner.stages import end_ranks
from ciera_piper_core.planner.strategy import CHOICES
from ciera_piper_core.planner.unique import Unique, by_value
from ciera_piper_core.planner.weights import Weight, layer_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.stages import LayerKinds
    from ciera_piper_core.planner.strategy import Question, Strategies

    Floats = NDArray[np.float64]

STATIC = ("weights", "gradients", "master", "moments")
REPLICATED = ("attention", "router", "shared_experts", "dense", "norms", "ends")
"""Parts of the weights that every data-parallel rank has; ``ends`` are embedding, output and last norm."""

LABELS = {part: part.replace("_", " ") for part in REPLICATED} | {"ends": "embedding and output"}

ACTIVATIONS = ("attention", "router", "routed_experts", "shared_experts", "dense", "dispatch", "norms")


class Footprint:
    """The memory model of one question.

    Peak of a rank = static bytes + in-flight microbatches x what its layers keep of one
    + what one layer's backward pass needs beyond that + the gathered weights of a layer under ZeRO-3
    + the platform's overhead. Tables by TP, EP and checkpointing are made as they are asked for.
    """

    def __init__(self, question: Question, kinds: LayerKinds) -> None:
        self._question = question
        self._kinds = kinds
        self._precision = PRECISIONS[question.precision]
        self._tables: dict[tuple[Any, ...], Any] = {}
        self._sequences = np.zeros(0, dtype=np.int64)

    def expect(self, rows: Strategies) -> None:
        """Make tables for these strategies' numbers of sequences in a microbatch, all at once."""
        self._sequences = np.unique(np.concatenate([self._sequences, rows.sequences_per_microbatch]))
        self._tables = {key: table for key, table in self._tables.items() if key[0] != "working"}

    def _expects(self, sequences: NDArray[np.int64]) -> bool:
        places = np.searchsorted(self._sequences, sequences)
        if not len(self._sequences) or places.max(initial=0) == len(self._sequences):
            return False
        return bool((self._sequences[places] == sequences).all())

    def rank_bytes(self, pp: int, schedule: Schedule, rows: Strategies) -> Floats:
        """Peak bytes of each rank, shape ``(len(rows), pp)``; all rows have this PP and schedule."""
        return np.asarray(sum(self.components(pp, schedule, rows, detailed=False).values()))

    def components(self, pp: int, schedule: Schedule, rows: Strategies, *, detailed: bool = True) -> dict[str, Floats]:
        """Bytes of each rank by component, each of shape ``(len(rows), pp)``; they add up to ``rank_bytes``.

        Args:
            detailed: static bytes by part of the model and kind of state, activations by part of a
                layer; else each in one sum, which is faster.
        """
        layers = self._kinds.by_rank(schedule, pp)
        first, last = end_ranks(schedule, pp)
        found = (
            self._static_parts(rows, layers, (first, last))
            if detailed
            else {"static": self._static(rows, layers, (first, last))}
        )
        tokens = (rows.sequences_per_microbatch * self._question.sequence).astype(np.float64)
        held = by_value(lambda count: in_flight(schedule, pp, count), rows.microbatches)
        kept = self._kept(rows)
        for name in kept if detailed else ("activations",):
            of_kinds = kept[name] if detailed else np.asarray(sum(kept.values()))
            label = f"activations: {name.replace('_', ' ')}" if detailed else "activations"
            found[label] = held * (tokens[:, None] * (of_kinds @ layers.T))
        ends = self._ends(rows, pp)
        logits = np.zeros((len(rows), pp))
        logits[:, last] += held[:, last] * tokens * ends["output"]
        logits[:, first] += held[:, first] * tokens * ends["embedding"]
        found["activations: logits and tokens"] = logits
        found["working memory"] = self._working(rows, tokens, layers, last, ends["output_working"])
        if (rows.zero_stage == 3).any():
            found["gathered weights"] = self._gathered(rows, layers)
        found["framework overhead"] = np.full((len(rows), pp), float(self._question.platform.overhead_bytes))
        return found

    def state_bytes(self, pp: int, schedule: Schedule, rows: Strategies) -> Floats:
        """Static bytes of each rank, shape ``(len(rows), pp)``."""
        return self._static(rows, self._kinds.by_rank(schedule, pp), end_ranks(schedule, pp))

    def replicated_parameters(self, pp: int, schedule: Schedule, tp: int) -> Floats:
        """Parameters of each rank that all its data-parallel ranks have, shape ``(pp,)``."""
        first, last = end_ranks(schedule, pp)
        numbers = self._replicated(tp)
        counts = self._kinds.by_rank(schedule, pp) @ sum(numbers[name][0] for name in REPLICATED[:-1])
        counts = counts + self._end_numbers(pp, first, last, tp)[0]
        return np.asarray(counts, dtype=np.float64)

    def expert_parameters(self, pp: int, schedule: Schedule, tp: int, ep: int) -> Floats:
        """Parameters of each rank's routed experts, where it holds the most, shape ``(pp,)``."""
        return np.asarray(self._kinds.by_rank(schedule, pp) @ self._experts(tp, ep)[0], dtype=np.float64)

    def held_experts(self, ep: int) -> list[int]:
        """Experts of each kind of layer on the rank that holds the most: ``ceil(E / EP)``."""
        return [-(-kind.experts.experts // ep) if kind.experts else 0 for kind in self._kinds.kinds]

    def _table(self, *key: Any) -> Any:
        """``self._make_<name>(*arguments)``, made once."""
        if key not in self._tables:
            self._tables[key] = getattr(self, f"_make_{key[0]}")(*key[1:])
        return self._tables[key]

    def _replicated(self, tp: int) -> dict[str, tuple[Floats, Floats]]:
        found: dict[str, tuple[Floats, Floats]] = self._table("replicated", tp)
        return found

    def _make_replicated(self, tp: int) -> dict[str, tuple[Floats, Floats]]:
        """By part: numbers of weights and of moments of each kind of layer, on one tensor-parallel rank."""
        shares = [
            layer_weights(tensor_parallel_share(kind, tp), self._question.architecture.hidden)
            for kind in self._kinds.kinds
        ]
        return {
            part: self._numbers([[weight for weight in share if weight.component == part] for share in shares])
            for part in REPLICATED[:-1]
        }

    def _experts(self, tp: int, ep: int) -> tuple[Floats, Floats]:
        found: tuple[Floats, Floats] = self._table("experts", tp, ep)
        return found

    def _make_experts(self, tp: int, ep: int) -> tuple[Floats, Floats]:
        """Numbers of weights and of moments of the routed experts of each kind of layer, on the fullest rank."""
        chosen = []
        for kind, held in zip(self._kinds.kinds, self.held_experts(ep), strict=True):
            share = layer_weights(tensor_parallel_share(kind, tp), self._question.architecture.hidden)
            all_of_them = kind.experts.experts if kind.experts else 1
            chosen.append(
                [
                    Weight(weight.component, weight.count * held // all_of_them, weight.rows, weight.columns)
                    for weight in share
                    if weight.component == "routed_experts"
                ]
            )
        return self._numbers(chosen)

    def _numbers(self, of_kinds: Iterable[list[Weight]]) -> tuple[Floats, Floats]:
        weights = list(of_kinds)
        elements = np.array([sum(weight.elements for weight in each) for each in weights], dtype=np.float64)
        moments = [moment_elements(self._question.optimizer, each) for each in weights]
        return elements, np.array(moments, dtype=np.float64)

    def _end_numbers(self, pp: int, first: int, last: int, tp: int) -> tuple[Floats, Floats]:
        """Weights and moments of embedding (first rank), output, last norm and MTP projections (last), ``(pp,)``."""
        architecture = self._question.architecture
        hidden = architecture.hidden
        output = architecture.output_vocab or architecture.vocab
        ends: list[list[Weight]] = [[] for _ in range(pp)]
        ends[first].append(Weight("ends", 1, -(-architecture.vocab // tp), hidden))
        # Tied embeddings on two ranks are two copies, kept equal by adding their gradients.
        if not architecture.tied_embeddings or first != last:
            ends[last].append(Weight("ends", 1, -(-output // tp), hidden))
        if architecture.extra_parameters:
            ends[last].append(Weight("ends", 1, 1, architecture.extra_parameters))
        ends[last] += [Weight("ends", 1, hidden, 2 * hidden) for _ in self._kinds.last]
        return self._numbers(ends)

    def _replicated_numbers(self, layers: NDArray[np.int64], ends: tuple[int, int], tp: int, part: str = "") -> Floats:
        """Weights and moments of each rank's replicated parts, or of one part, shape ``(2, pp)``."""
        at_ends = np.stack(self._end_numbers(len(layers), *ends, tp))
        if part == "ends":
            return at_ends
        table = self._replicated(tp)
        chosen = [table[part]] if part else list(table.values())
        numbers = np.stack([layers @ np.asarray(sum(each[place] for each in chosen)) for place in (0, 1)])
        return numbers if part else numbers + at_ends

    def _expert_numbers(self, layers: NDArray[np.int64], tp: int, ep: int) -> Floats:
        """Weights and moments of each rank's routed experts, shape ``(2, pp)``."""
        return np.stack([layers @ each for each in self._experts(tp, ep)])

    def _coefficients(self, rows: Strategies) -> dict[str, Floats]:
        """Bytes of each state that a replicated weight, or a moment of one, takes: each of shape ``(len(rows), 1)``."""
        precision, shards = self._precision, (rows.ep * rows.dp).astype(np.float64)
        divided = {stage: np.where(rows.zero_stage >= stage, shards, 1.0)[:, None] for stage in (1, 2, 3)}
        return {
            "weights": precision.weight_bytes / divided[3],
            "gradients": precision.gradient_bytes / divided[2],
            "master": precision.master_bytes / divided[1],
            "moments": precision.moment_bytes / divided[1],
        }

    def _static(self, rows: Strategies, layers: NDArray[np.int64], ends: tuple[int, int]) -> Floats:
        """Static bytes: the replicated parts divided as the ZeRO stage says, the experts not; ``(len(rows), pp)``."""
        each = self._coefficients(rows)
        replicated = by_value(lambda tp: self._replicated_numbers(layers, ends, tp), rows.tp)
        precision = self._precision
        a_weight = precision.weight_bytes + precision.gradient_bytes + precision.master_bytes

        def of_experts(tp: int, ep: int) -> Floats:
            numbers, moments = self._expert_numbers(layers, tp, ep)
            return np.asarray(numbers * a_weight + moments * precision.moment_bytes)

        static = replicated[:, 0] * (each["weights"] + each["gradients"] + each["master"])
        static += replicated[:, 1] * each["moments"]
        return static + by_value(of_experts, rows.tp, rows.ep)

    def _static_parts(self, rows: Strategies, layers: NDArray[np.int64], ends: tuple[int, int]) -> dict[str, Floats]:
        """The same by part and state."""
        each = self._coefficients(rows)
        found: dict[str, Floats] = {}
        for part in REPLICATED:
            numbers = by_value(lambda tp, part=part: self._replicated_numbers(layers, ends, tp, part), rows.tp)
            for state in STATIC:
                found[f"{LABELS[part]}: {state}"] = numbers[:, int(state == "moments")] * each[state]
        experts = by_value(lambda tp, ep: self._expert_numbers(layers, tp, ep), rows.tp, rows.ep)
        for state in STATIC:
            size = getattr(self._precision, f"{state.removesuffix('s')}_bytes")
            found[f"routed experts: {state}"] = experts[:, int(state == "moments")] * float(size)
        return {name: amount for name, amount in found.items() if amount.any()}

    def _kept(self, rows: Strategies) -> dict[str, Floats]:
        """Bytes a token that each kind of layer keeps, by part, each of shape ``(len(rows), kinds)``."""
        keys = Unique(rows.checkpointing, rows.tp, rows.ep)
        tables = [self._table("kept", *key) for key in keys.keys]
        return {name: np.stack([table[name] for table in tables])[keys.places] for name in ACTIVATIONS}

    def _make_kept(self, checkpointing: int, tp: int, ep: int) -> dict[str, Floats]:
        parts = [
            activation_bytes_per_token(kind, self._question.architecture.hidden, self._question.sequence, **settings)
            for kind, settings in self._settings(checkpointing, tp, ep)
        ]
        return {name: np.array([float(part[name]) for part in parts]) for name in ACTIVATIONS}

    def _settings(self, checkpointing: int, tp: int, ep: int) -> list[tuple[Any, dict[str, Any]]]:
        question = self._question
        return [
            (
                kind,
                {
                    "checkpointing": CHOICES["checkpointing"][checkpointing],
                    "flash": question.flash,
                    "tensor_parallel": tp,
                    "load_factor": self.load_factor(place, ep),
                    "precision": question.precision,
                },
            )
            for place, kind in enumerate(self._kinds.kinds)
        ]

    def load_factor(self, kind: int, ep: int) -> float:
        """Rows of the busiest rank's experts over the mean, in that kind of layer."""
        experts = self._kinds.kinds[kind].experts
        if experts is None or ep == 1:
            return 1.0
        factors = self._question.routing.factors(experts.experts, experts.top_k, np.array([ep]))
        return float(factors[0])

    def _working(
        self, rows: Strategies, tokens: Floats, layers: NDArray[np.int64], last: int, logits: Floats
    ) -> Floats:
        """The largest transient of any layer of a rank, and of the loss on the last."""
        sequences = rows.sequences_per_microbatch
        if not self._expects(sequences):
            self.expect(rows)
        keys = Unique(rows.checkpointing, rows.tp, rows.ep)
        tables = np.stack([self._table("working", *key) for key in keys.keys])
        several = (rows.microbatches > 1).astype(np.int64)
        of_kinds = tables[keys.places, several, np.searchsorted(self._sequences, sequences)]
        working = np.zeros((len(rows), len(layers)))
        for kind in range(of_kinds.shape[1]):
            np.maximum(working, of_kinds[:, kind : kind + 1] * (layers[:, kind] > 0), out=working)
        working[:, last] = np.maximum(working[:, last], tokens * logits)
        return working

    def _make_working(self, checkpointing: int, tp: int, ep: int) -> Floats:
        """Bytes for one and for several microbatches, each number of sequences in one, each kind of layer.

        With several, a weight's gradient exists beside their sum.
        """
        hidden, sequence = self._question.architecture.hidden, self._question.sequence
        tokens = self._sequences.astype(np.float64) * sequence
        one, several = [], []
        for kind, settings in self._settings(checkpointing, tp, ep):
            a_token = working_bytes_per_token(kind, hidden, sequence, expert_parallel=ep, **settings)
            one.append(tokens * a_token)
            several.append(
                np.broadcast_to(
                    working_bytes(kind, hidden, sequence, tokens, expert_parallel=ep, **settings), tokens.shape
                )
            )
        return np.stack([np.stack(one, axis=1), np.stack(several, axis=1)])

    def _gathered(self, rows: Strategies, layers: NDArray[np.int64]) -> Floats:
        """Under ZeRO-3, the whole weights of the largest layer of a rank while it runs."""
        gathered = np.zeros((len(rows), len(layers)))
        for tp in np.unique(rows.tp):
            table = self._replicated(int(tp))
            of_kinds = sum(table[part][0] for part in REPLICATED[:-1])
            largest = np.where(layers > 0, of_kinds, 0.0).max(axis=1) * self._precision.weight_bytes
            sharded = (rows.tp == tp) & (rows.zero_stage == 3) & (rows.ep * rows.dp > 1)
            gathered[sharded] = largest
        return gathered

    def _ends(self, rows: Strategies, pp: int) -> dict[str, Floats]:
        """Bytes a token of the two ends: kept by the first and the last rank, and transient on the last."""
        keys = Unique(rows.tp)
        tables = [self._table("ends", *key) for key in keys.keys]
        return {name: np.array([table[name] for table in tables])[keys.places] for name in tables[0]}

    def _make_ends(self, tp: int) -> dict[str, float]:
        settings = {"precision": self._question.precision, "vocab_parallel": tp}
        kept = logits_bytes_per_token(self._question.architecture, **settings)  # type: ignore[arg-type]
        working = logits_working_bytes_per_token(self._question.architecture, **settings)  # type: ignore[arg-type]
        # Each layer that predicts a further token has logits of its own.
        times = 1 + len(self._kinds.last)
        return {"embedding": kept["embedding"], "output": kept["output"] * times, "output_working": working}
