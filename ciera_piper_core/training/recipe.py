"""What is trained and how: all that two training systems must have in common before their speeds may be compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
OptimizerKind = Literal["adam", "adafactor"]
OPTIMIZERS: tuple[OptimizerKind, ...] = get_args(OptimizerKind)
CheckpointingKind = Literal["none", "selective", "full"]
CHECKPOINTING: tuple[CheckpointingKind, ...] = get_args(CheckpointingKind)
RouterKind = Literal["top_k", "capacity", "expert_choice", "loss_free"]
ROUTERS: tuple[RouterKind, ...] = get_args(RouterKind)


@dataclass(frozen=True)
class Routing:
    """How tokens choose experts. Whatever is counted, it is counted over one sequence.

    So neither the balance loss nor a capacity depends on how a batch is cut over ranks and microbatches,
    and all systems compute the same.

    Attributes:
        kind: ``top_k``: the k best, all served, with an auxiliary loss; ``capacity``: the same, but an expert
            takes at most ``ceil(capacity_factor * tokens * k / experts)`` of a sequence, the first ones;
            ``expert_choice``: each expert takes as many as that, its best; ``loss_free``: top k by
            probability plus a bias an expert, which follows the load, without auxiliary loss.
        balance_weight: of the auxiliary loss (``top_k`` and ``capacity``); 0 for none.
        capacity_factor: see ``kind``.
        bias_rate: what ``loss_free`` moves an expert's bias by after each step.
        skew: added to the scores of experts before all else, ``-skew * log(1 + rank)`` for the expert of that
            rank in a seeded order: Zipf's law, for experiments with imbalance; 0 for none.
    """

    kind: RouterKind = "top_k"
    balance_weight: float = 0.01
    capacity_factor: float = 1.25
    bias_rate: float = 0.001
    skew: float = 0.0

    def __post_init__(self) -> None:
        _refuse_unknown("router", self.kind, ROUTERS)
        for name in ("balance_weight", "bias_rate", "skew"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"routing: {name} must be 0 or more, not {getattr(self, name)}")
        if not self.capacity_factor > 0:
            raise ValueError(f"routing: capacity_factor must be above 0, not {self.capacity_factor}")


@dataclass(frozen=True)
class Recipe:
    """One training run, whichever system runs it.

    Attributes:
        architecture: the model as it is trained, already scaled down (``models.scaling``).
        sequence: tokens of a sequence.
        global_batch: sequences of a step, over all ranks.
        microbatches: parts that each rank's share of a step is cut into: for gradient accumulation, or
            for the pipeline.
        precision: of weights and activations in computing. Master weights and the optimizer's state are float32.
        gradient_precision: in which gradients travel and are summed between ranks.
        optimizer: ``adam`` (AdamW) or ``adafactor``.
        learning_rate, weight_decay: of it; constant, no schedule.
        clip_norm: the global gradient norm is clipped to it; 0 for no clipping.
        checkpointing: what the backward pass computes again; as ``models.transformer`` has it.
        routing: of the experts.
        seed: of the weights and the batches.

    Raises:
        ValueError: says which value is wrong.
    """

    architecture: Architecture
    sequence: int = 128
    global_batch: int = 8
    microbatches: int = 1
    precision: Precision = "fp32"
    gradient_precision: Precision = "fp32"
    optimizer: OptimizerKind = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    checkpointing: CheckpointingKind = "none"
    routing: Routing = field(default_factory=Routing)
    seed: int = 0

    def __post_init__(self) -> None:
        _refuse_unknown("precision", self.precision, PRECISIONS)
        _refuse_unknown("gradient precision", self.gradient_precision, PRECISIONS)
        _refuse_unknown("optimizer", self.optimizer, OPTIMIZERS)
        _refuse_unknown("checkpointing", self.checkpointing, CHECKPOINTING)
        for name in ("sequence", "global_batch", "microbatches"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"recipe: {name} must be a whole number above 0, not {getattr(self, name)!r}")
        if not self.learning_rate > 0:
            raise ValueError(f"recipe: learning_rate must be above 0, not {self.learning_rate}")
        if not (self.weight_decay >= 0 and self.clip_norm >= 0):
            raise ValueError("recipe: weight_decay and clip_norm must be 0 or more")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step predicts, over all ranks."""
        return self.global_batch * self.sequence

    def sequences_per_microbatch(self, data_width: int) -> int:
        """Sequences of one microbatch of one of ``data_width`` ranks that share a batch.

        Raises:
            ValueError: they do not come out whole.
        """
        parts = data_width * self.microbatches
        if self.global_batch % parts:
            raise ValueError(
                f"a batch of {self.global_batch} sequences does not make {self.microbatches} microbatches"
                f" on each of {data_width} ranks; choose a multiple of {parts}"
            )
        return self.global_batch // parts


def _refuse_unknown(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(known)}")
