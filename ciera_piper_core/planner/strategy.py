"""A training strategy, what a plan is asked for, and many strategies as columns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

import numpy as np

from ciera_piper_core.models.flops import CONVENTIONS, Convention
from ciera_piper_core.models.wording import shorten
from ciera_piper_core.planner.communication import ALL_TO_ALL, Overlap
from ciera_piper_core.planner.imbalance import Routing, most_factor
from ciera_piper_core.planner.memory import CHECKPOINTING, OPTIMIZERS, PRECISIONS
from ciera_piper_core.planner.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.platforms.platform import Platform

ZERO_STAGES = (0, 1, 2, 3)
Placement = Literal["even", "uneven"]
PLACEMENTS: tuple[Placement, ...] = ("even", "uneven")

CHOICES: Mapping[str, Sequence[str | int]] = {
    "schedule": SCHEDULES,
    "checkpointing": CHECKPOINTING,
    "zero_stage": ZERO_STAGES,
    "alltoall": ALL_TO_ALL,
}
"""The values of the dimensions that have a closed set; columns hold the place in it."""

BALANCED = Routing()
NO_OVERLAP = Overlap()

NUMBERS = ("pp", "ep", "dp", "tp", "microbatches", "sequences_per_gpu")
DIMENSIONS = (*NUMBERS, *CHOICES)

SEQUENCES_PER_GPU_OF_JOB = 4
"""Sequences a step for each GPU of the job, where neither the global batch nor the one of a GPU is given. DeepSeek-V3
was trained with about 7; fewer is the harder case for a pipeline."""

MOST_SEQUENCES = 1 << 24
"""Sequences of a step that a question may have. The search tries every number of microbatches that divides them; up
to here it takes seconds."""

MOST_TOKENS = 1 << 24
"""Tokens that a sequence may have."""

PLANNED_PRECISIONS = tuple(name for name in PRECISIONS if name != "fp32")
"""Those that a plan can be made for."""


@dataclass(frozen=True)
class Strategy:
    """One way to train a model on ``pp * ep * dp * tp`` GPUs.

    A stage of the pipeline has ``ep * dp * tp`` GPUs. Its routed experts are spread over ``ep`` and
    replicated ``dp`` times; everything else is replicated on all ``ep * dp`` and takes other
    sequences on each. ``tp`` divides the heads and the inner widths of both.

    Attributes:
        pp, ep, dp, tp: pipeline, expert, data and tensor parallelism.
        microbatches: into which the sequences of a step are cut.
        sequences_per_gpu: that go through a GPU in a step; a tensor-parallel group shares them.
        schedule: of the pipeline. checkpointing: what is computed again. zero_stage: of all but the
            routed experts, over ``ep * dp``. alltoall: the algorithm of dispatch and combine.
    """

    pp: int
    ep: int
    dp: int
    tp: int
    microbatches: int
    sequences_per_gpu: int
    schedule: str
    checkpointing: str
    zero_stage: int
    alltoall: str

    def __post_init__(self) -> None:
        for name in NUMBERS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(map(str, known))}, not {getattr(self, name)!r}")
        if self.sequences_per_gpu % self.microbatches:
            raise ValueError(
                f"{self.sequences_per_gpu} sequences a GPU cannot be cut into {self.microbatches} equal microbatches"
            )

    @property
    def gpus(self) -> int:
        return self.pp * self.ep * self.dp * self.tp

    @property
    def sequences_per_microbatch(self) -> int:
        return self.sequences_per_gpu // self.microbatches

    @property
    def global_batch(self) -> int:
        """Sequences of a step over all GPUs."""
        return self.sequences_per_gpu * self.ep * self.dp

    def __str__(self) -> str:
        return (
            f"PP {self.pp} x EP {self.ep} x DP {self.dp} x TP {self.tp}, {self.microbatches} microbatches of"
            f" {self.sequences_per_microbatch}, {self.schedule}, checkpointing {self.checkpointing},"
            f" ZeRO {self.zero_stage}, {self.alltoall} all-to-all"
        )


@dataclass(frozen=True)
class Strategies:
    """Many strategies: one array a dimension, all of one length; the closed sets as places in ``CHOICES``."""

    pp: NDArray[np.int64]
    ep: NDArray[np.int64]
    dp: NDArray[np.int64]
    tp: NDArray[np.int64]
    microbatches: NDArray[np.int64]
    sequences_per_gpu: NDArray[np.int64]
    schedule: NDArray[np.int64]
    checkpointing: NDArray[np.int64]
    zero_stage: NDArray[np.int64]
    alltoall: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pp)

    def __getitem__(self, place: int) -> Strategy:
        values = {name: int(getattr(self, name)[place]) for name in NUMBERS}
        chosen = {name: CHOICES[name][int(getattr(self, name)[place])] for name in CHOICES}
        return Strategy(**values, **chosen)  # type: ignore[arg-type]

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Strategies:
        """Those that a mask or places choose."""
        return Strategies(**{each.name: getattr(self, each.name)[which] for each in fields(self)})

    @property
    def sequences_per_microbatch(self) -> NDArray[np.int64]:
        return self.sequences_per_gpu // self.microbatches

    @classmethod
    def of(cls, strategies: Sequence[Strategy]) -> Strategies:
        """The same strategies as columns."""
        columns = {name: [getattr(each, name) for each in strategies] for name in NUMBERS}
        for name, known in CHOICES.items():
            columns[name] = [known.index(getattr(each, name)) for each in strategies]
        return cls(**{name: np.array(values, dtype=np.int64) for name, values in columns.items()})


@dataclass(frozen=True)
class Question:
    """What a plan is asked for.

    Attributes:
        architecture: the model. platform: the machine. gpus: of it to use.
        sequence: tokens of one.
        global_batch: sequences of a step over all GPUs; or
        sequences_per_gpu: those through one GPU; with neither, ``SEQUENCES_PER_GPU_OF_JOB`` times the GPUs.
        optimizer, precision: of ``planner.memory``.
        flash: fused attention, which keeps no scores.
        routing: how uneven the experts' load is. A load factor that no EP can have is refused.
        placement: ``even`` needs EP to divide the experts; ``uneven`` lets ranks hold one more than others.
        convention: of the model's FLOPs in MFU.
        only: by dimension, the values to which the search is restricted.
        mtp: whether the layers that predict further tokens are trained, where the model has them.
        overlap: the shares of communication that hide behind computation, declared.
    """

    architecture: Architecture
    platform: Platform
    gpus: int
    sequence: int = 4096
    global_batch: int | None = None
    sequences_per_gpu: int | None = None
    optimizer: str = "adam"
    precision: str = "bf16"
    flash: bool = True
    routing: Routing = BALANCED
    placement: Placement = "even"
    convention: Convention = "causal"
    only: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict, hash=False)
    mtp: bool = False
    overlap: Overlap = NO_OVERLAP

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"gpus must be 1 or more, not {self.gpus}")
        for name, most in (
            ("sequence", MOST_TOKENS),
            ("global_batch", MOST_SEQUENCES),
            ("sequences_per_gpu", MOST_SEQUENCES),
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"--{name.replace('_', '-')} must be from 1 to {most}, not {shorten(str(value))}")
        if self.global_batch is not None and self.sequences_per_gpu is not None:
            raise ValueError("give the global batch or the sequences a GPU, not both: one follows from the other")
        if self.precision == "fp32":
            raise ValueError(
                f"platform {self.platform.name!r} has product rates for {self.platform.dtype} only;"
                " plan with bf16 or fp16"
            )
        for name, known in (
            ("optimizer", tuple(OPTIMIZERS)),
            ("precision", PLANNED_PRECISIONS),
            ("placement", PLACEMENTS),
            ("convention", CONVENTIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        for name, values in self.only.items():
            if name not in DIMENSIONS:
                raise ValueError(f"unknown dimension {name!r}; the search has {', '.join(DIMENSIONS)}")
            for value in values:
                if name in CHOICES and value not in CHOICES[name]:
                    raise ValueError(f"{name} is one of {', '.join(map(str, CHOICES[name]))}, not {value!r}")
                if name in NUMBERS and (not isinstance(value, int) or value < 1):
                    raise ValueError(f"{name} must be 1 or more, not {value!r}")
        self.platform.require_gpus(self.gpus)
        self._check_load_factor()

    def _check_load_factor(self) -> None:
        bounds = self._load_bounds(most_gpus=None)
        factor = self.routing.load_factor
        if bounds and factor > max(bounds.values()):
            widest = max(bounds, key=lambda ep: bounds[ep])
            raise ValueError(
                f"a load factor of {factor:g} is impossible for {self.architecture.name}: a token goes to an expert"
                f" once, so the busiest rank gets at most {bounds[widest]:g} times the mean, at EP {widest}"
            )

    def _load_bounds(self, most_gpus: int | None) -> dict[int, float]:
        """By EP above 1, the largest load over the mean that a rank of any layer can get; empty for dense models.

        Args:
            most_gpus: EP must divide it; None for any number.
        """
        pairs = {(each.experts.experts, each.experts.top_k) for each in self.architecture.layers if each.experts}
        found = {}
        for ep in range(2, min((experts for experts, _ in pairs), default=1) + 1):
            fits = self.placement == "uneven" or all(experts % ep == 0 for experts, _ in pairs)
            if fits and (most_gpus is None or most_gpus % ep == 0):
                found[ep] = max(float(most_factor(*pair, np.array([ep]))[0]) for pair in pairs)
        return found

    @property
    def routing_text(self) -> str:
        """The routing for people, with the EPs at which the load factor is cut to what is possible there."""
        factor = self.routing.load_factor
        bounds = {ep: most for ep, most in self._load_bounds(self.gpus).items() if most < factor}
        if not bounds:
            return str(self.routing)
        cut = ", ".join(f"{most:g} x at EP {ep}" for ep, most in bounds.items())
        return f"{self.routing} (cut to what is possible: {cut})"

    @property
    def batch_rule(self) -> str:
        """Where the sequences of a step come from, for people."""
        if self.global_batch is not None:
            return f"{self.global_batch} sequences a step over all GPUs"
        if self.sequences_per_gpu is not None:
            return f"{self.sequences_per_gpu} sequences a step through each GPU, so EP x DP times that over all"
        whole = SEQUENCES_PER_GPU_OF_JOB * self.gpus
        return f"{whole} sequences a step over all GPUs (the default: {SEQUENCES_PER_GPU_OF_JOB} times the GPUs)"

    @property
    def global_sequences(self) -> int | None:
        """Sequences of a step over all GPUs; None where those of a GPU are given."""
        if self.sequences_per_gpu is not None:
            return None
        return self.global_batch or SEQUENCES_PER_GPU_OF_JOB * self.gpus


def parse_only(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    """Restrictions from ``pp=4``, ``ep=8:64`` (doubling) or ``schedule=1f1b,zbv``.

    Raises:
        ValueError: an unknown dimension or value; the message lists the known ones.
    """
    only: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if name not in DIMENSIONS:
            raise ValueError(f"unknown dimension {name!r} in --set {text}; the search has {', '.join(DIMENSIONS)}")
        if not equals or not values:
            raise ValueError(f"--set takes DIMENSION=VALUES, not {text!r}")
        if name in only:
            raise ValueError(f"--set {name} is given twice; give its values in one, as in --set {name}=VALUE,VALUE")
        parts = [part.strip() for part in values.split(",")]
        if name in CHOICES and name != "zero_stage":
            only[name] = tuple(parts)
            for part in parts:
                if part not in CHOICES[name]:
                    raise ValueError(f"{name} is one of {', '.join(map(str, CHOICES[name]))}, not {part!r}")
        else:
            only[name] = tuple(dict.fromkeys(number for part in parts for number in doubling(part)))
    return only


def doubling(text: str) -> list[int]:
    """Whole numbers from ``8`` or from ``8:64``, which doubles and always ends with its last.

    Raises:
        ValueError: no number, or a range that falls.
    """
    first, colon, last = text.partition(":")
    if not first.isascii() or not first.isdigit() or (colon and not (last.isascii() and last.isdigit())):
        raise ValueError(f"{text!r} is no whole number and no range such as 8:64")
    low, high = int(first), int(last or first)
    if colon and not 0 < low <= high:
        raise ValueError(f"{text!r} is no range: it needs 0 < first <= last")
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return [*values, high]
